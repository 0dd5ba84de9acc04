"""A data layer whose source is of another kind says so in one sentence, and quotes nothing."""

import h5py
import numpy as np
import PIL.Image
import pytest

from demitasse import DemitasseError, Net, lint
from demitasse.io.data.databases.writing import write_database

SECRET = "hunter2"
LAYERS = {
    "HDF5Data": 'top: "data" top: "label" hdf5_data_param { source: "%s" batch_size: 2 }',
    "ImageData": 'top: "data" top: "label" image_data_param { source: "%s" batch_size: 2 }',
    "ImageSegData": 'top: "data" top: "label" top: "dim" image_data_param { source: "%s" }',
    "DenseImageData": 'top: "data" top: "label" dense_image_data_param { source: "%s" }',
    "WindowData": 'top: "data" top: "label" window_data_param { source: "%s" batch_size: 2 }',
    "Data": 'top: "data" top: "label" data_param { source: "%s" batch_size: 2 backend: LMDB }',
    "AnnotatedData": 'top: "data" top: "label" data_param { source: "%s" batch_size: 2 }',
    "Data mean": 'top: "data" data_param { source: "db" batch_size: 2 backend: LMDB } '
    'transform_param { mean_file: "%s" }',
}
KINDS = [
    "array.npz", "binary", "folder", "image.jpg", "image.png", "late-zero", "nul-in-text",
    "secrets.txt", "train.h5", "utf-16", "words",
]  # fmt: skip
BINARY = {"array.npz", "binary", "image.jpg", "image.png", "late-zero", "nul-in-text", "train.h5",
          "utf-16"}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file of each kind."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("train.h5", "w") as file:
        file["data"], file["label"] = np.zeros((4, 2), "f4"), np.zeros(4, "f4")
    noise = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    for name in ("image.png", "image.jpg"):
        PIL.Image.fromarray(noise).save(name)
    np.savez("array.npz", a=noise)
    texts = {
        "binary": noise.tobytes() + b"\0" + SECRET.encode(),
        "late-zero": b"a line\n" * 20_000 + b"\0" + SECRET.encode(),
        "nul-in-text": f"first\n\0password={SECRET} 7\n".encode(),
        "secrets.txt": f"password={SECRET} 7\nroot {SECRET}\n".encode(),
        "utf-16": f"{SECRET}.png 1\n".encode("utf-16"),
        "words": f"{SECRET} ".encode() * 1000,
    }
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    write_database(tmp_path / "db", [(noise.transpose(2, 0, 1), 0)] * 2)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_an_error_of_one_sentence_quotes_nothing(folder, layer, kind):
    text = f'layer {{ name: "d" type: "{layer.split()[0]}" {LAYERS[layer] % kind} }}'
    (folder / "n.prototxt").write_text(text)

    with pytest.raises(DemitasseError) as caught:
        Net("n.prototxt", phase="TRAIN", device="numpy").forward()

    said = str(caught.value)
    assert SECRET not in said
    assert len(said) < 400
    assert "\n" not in said


@pytest.mark.parametrize("kind", sorted(BINARY))
@pytest.mark.parametrize("layer", LAYERS)
def test_lint_finds_it(folder, layer, kind):
    text = f'layer {{ name: "d" type: "{layer.split()[0]}" {LAYERS[layer] % kind} }}'
    (folder / "n.prototxt").write_text(text)

    found = [one for one in lint.lint("n.prototxt") if one.code == "wrong-source"]

    assert found
    assert not any(SECRET in str(one) for one in found)
