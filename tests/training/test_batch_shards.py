"""Readers that take turns: each makes some batches of a net and passes over the others."""

import numpy as np
import pytest

from demitasse.io.data.databases.writing import write_database
from demitasse.io.data.sources.source import UNSHARDED, Shard
from demitasse.testing import make_layer

COUNT = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eleven images as LMDB and LevelDB, HDF5 files, and lists of images, labels and windows."""
    h5py = pytest.importorskip("h5py")
    image_of = pytest.importorskip("PIL.Image").fromarray
    folder = tmp_path_factory.mktemp("turns")
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (COUNT, 3, 6, 6), np.uint8)
    labels = np.arange(COUNT)
    for backend in ("LMDB", "LEVELDB"):
        pairs = zip(images, labels.tolist(), strict=True)
        write_database(folder / backend, pairs, backend=backend)
    lines, pairs, windows, files, first = [], [], [], [], 0
    for index, image in enumerate(images):
        image_of(image.transpose(1, 2, 0)).save(folder / f"{index}.png")
        image_of(image[0] % 3).save(folder / f"{index}.label.png")
        lines.append(f"{folder}/{index}.png {index}")
        pairs.append(f"{folder}/{index}.png {folder}/{index}.label.png")
        windows.append(f"# {index}\n{folder}/{index}.png\n3\n6\n6\n2\n1 0.9 0 0 3 3\n0 0.1 2 2 5 5")
    for count in (4, 1, 6):
        files.append(str(folder / f"{count}.h5"))
        with h5py.File(files[-1], "w") as file:
            file["data"] = images[first : first + count].astype("float32")
            file["label"] = labels[first : first + count].astype("float32")
        first += count
    for name, text in (("list", lines), ("pairs", pairs), ("windows", windows), ("files", files)):
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
    return folder


SOURCES = {
    "lmdb": 'type: "Data" data_param { source: "DIR/LMDB" backend: LMDB batch_size: 4 }',
    "leveldb": 'type: "Data" data_param { source: "DIR/LEVELDB" backend: LEVELDB batch_size: 4 }',
    "list": 'type: "ImageData" image_data_param { source: "DIR/list.txt" batch_size: 4 '
    "shuffle: true }",
    "label images": 'type: "ImageSegData" image_data_param { source: "DIR/pairs.txt" '
    "batch_size: 4 label_type: PIXEL }",
    "hdf5": 'type: "HDF5Data" hdf5_data_param { source: "DIR/files.txt" batch_size: 4 '
    "shuffle: true }",
    "windows": 'type: "WindowData" window_data_param { source: "DIR/windows.txt" batch_size: 4 '
    "crop_size: 3 fg_threshold: 0.5 bg_threshold: 0.5 fg_fraction: 0.5 }",
}
CASES = [(source, epochs) for source in SOURCES for epochs in (False, True)]
CASES.remove(("windows", True))  # which are drawn at random, without end


@pytest.fixture
def reading(folder):
    opened = []

    def read(source):
        text = SOURCES[source].replace("DIR", folder.as_posix())
        one = make_layer(f'top: "data" top: "label" {text}', phase="TEST", dtype="float32")
        opened.append(one)
        return one

    yield read
    for one in opened:
        one.layer.close()


def batches(one, count):
    """Return the tops of so many batches, None for each that is passed over; and where it stands.

    Whole epochs are begun anew where they end.
    """
    found = []
    for _ in range(count):
        if getattr(one.layer, "whole_epochs", False) and one.layer.epoch_ended:
            one.layer.begin_epoch()
        if one.layer.has_turn():
            one.forward()
            found.append([top.cpu_data().tobytes() for top in one.top])
        else:
            one.layer.skip()
            found.append(None)
    return found, one.layer.state()


@pytest.mark.parametrize("readers", [2, 3, 5])
@pytest.mark.parametrize(("source", "epochs"), CASES)
def test_each_batch_is_made_by_one_and_is_what_a_single_reader_makes(
    reading, source, epochs, readers
):
    alone, several = reading(source), [reading(source) for _ in range(readers)]
    for number, one in enumerate(several):
        one.layer.set_batch_shard(Shard(number, readers))
    for one in (alone, *several) if epochs else ():
        one.layer.begin_epoch()

    expected, end = batches(alone, 10)
    found = [batches(one, 10) for one in several]

    assert [state for _, state in found] == [end] * readers
    for number, batch in enumerate(expected):
        assert [made[number] for made, _ in found if made[number] is not None] == [batch]


@pytest.mark.parametrize("source", SOURCES)
def test_who_wants_a_batch_of_another_s_gets_it(reading, source):
    alone, one = reading(source), reading(source)
    one.layer.set_batch_shard(Shard(1, 2))

    for each in (alone, one):
        each.forward()

    assert one.layer.batch_shard == UNSHARDED
    for top, wanted in zip(one.top, alone.top, strict=True):
        np.testing.assert_array_equal(top.cpu_data(), wanted.cpu_data())
