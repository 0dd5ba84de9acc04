"""``classify``, ``detect`` and ``draw_net``."""

import csv
from pathlib import Path

import numpy as np
import pytest
from cli_errors import failed_with
from PIL import Image

import demitasse.compat.pycaffe as caffe
from demitasse.errors import ErrorCode

NET = """
layer { name: "data" type: "Input" top: "data"
        input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean"
        pooling_param { pool: AVE global_pooling: true } }
"""

MODEL = "--model_def net.prototxt --pretrained_model w.caffemodel --device numpy"


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A net that averages each channel, and images of one colour each."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    caffe.Net("net.prototxt", caffe.TEST).save("w.caffemodel")
    Path("photos").mkdir()
    for name, color in (("a", (255, 0, 0)), ("b", (0, 128, 0))):
        Image.new("RGB", (280, 260), color).save(f"photos/{name}.png")


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("flags", ["", "--center_only", "-images_dim=8,6"])
def test_images_of_a_folder_are_classified(run, flags):
    shown = run(f"classify photos scores.npy {MODEL} --ext png {flags}")

    assert shown.stdout == "Wrote scores of 2 images to scores.npy\n"
    scores = np.load("scores.npy").reshape(2, 3)
    np.testing.assert_allclose(scores, [[0, 0, 255], [0, 128, 0]], atol=1e-4)


@pytest.mark.usefixtures("images")
def test_images_are_prepared_as_told(run):
    np.save("mean.npy", np.array([1.0, 2.0, 3.0]))
    flags = "--mean_file mean.npy --raw_scale 10 --input_scale 2 --center_only"

    run(f"classify photos/a.png scores.npy {MODEL} {flags}")
    run("classify", "photos/a.png", "red.npy", *MODEL.split(), "--channel_swap", "")

    np.testing.assert_allclose(np.load("scores.npy").ravel(), [-2, -4, 14], atol=1e-5)
    np.testing.assert_allclose(np.load("red.npy").ravel(), [255, 0, 0], atol=1e-4)


@pytest.mark.usefixtures("images")
def test_scores_get_the_ending_that_caffe_gives_them(run):
    run(f"classify photos/a.png scores.v2 {MODEL}")

    assert np.load("scores.v2.npy").shape[0] == 1


@pytest.mark.usefixtures("images")
def test_channels_that_are_counted_from_1_are_one_message(run):
    shown = run(f"classify photos/a.png scores.npy {MODEL} --channel_swap 3,2,1")

    assert shown.exit_code == 3
    assert "[3, 2, 1]" in shown.stderr


@pytest.mark.usefixtures("images")
def test_arrays_are_classified(run):
    np.save("images.npy", np.ones((3, 5, 5, 3), np.float32))

    run(f"classify images.npy scores.npy {MODEL}")

    np.testing.assert_allclose(np.load("scores.npy"), np.full((3, 3), 255.0), rtol=1e-6)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("classify none.png s.npy", 3, "none.png"),
        ("classify photos s.npy", 3, ".jpg"),
        ("classify photos/a.png s.npy --images_dim 5", 2, "--images_dim"),
        ("classify photos/a.png s.npy --images_dim 5,x", 2, "--images_dim"),
        ("classify photos/a.png s.npy --images_dim 2,2", 3, "2"),
        ("classify photos/a.png s.npy --mean_file none.npy", 3, "none.npy"),
        ("classify photos/a.png s.npy --gpu", 2, "--device and --gpu"),
        ("detect none.csv s.csv --crop_mode list", 3, "none.csv"),
        ("detect none.csv s.csv", 2, ".txt"),
        ("detect none.txt s.txt", 2, ".h5"),
    ],
)
def test_what_cannot_be_done_is_told(run, line, code, message):
    result = run(f"{line} {MODEL}")

    assert result.exit_code == code
    assert message in result.stderr


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_windows_are_scored(run, encoding):
    Path("windows.csv").write_text(
        "filename, xmin, ymin, xmax, ymax\n"
        "photos/a.png,0,0,9,7\nphotos/b.png,1,2,5,6\nphotos/a.png,3,3,8,7\n",
        encoding,
    )

    run(f"detect windows.csv found.csv {MODEL} --crop_mode list --context_pad 0")

    rows = list(csv.DictReader(Path("found.csv").read_text().splitlines()))
    assert [(row["filename"], row["ymin"], row["xmax"]) for row in rows] == [
        ("photos/a.png", "0", "9"),
        ("photos/a.png", "3", "8"),
        ("photos/b.png", "2", "5"),
    ]
    assert float(rows[0]["class2"]) == pytest.approx(255)
    assert float(rows[2]["class1"]) == pytest.approx(128)


@pytest.mark.usefixtures("images")
def test_scores_are_a_table_of_pandas(run):
    h5py = pytest.importorskip("h5py")
    Path("photos/b.png").rename("photos/é.png")
    Path("windows.csv").write_text(
        "filename,xmin,ymin,xmax,ymax\nphotos/a.png,0,0,9,7\nphotos/é.png,1,2,5,6\n"
    )

    run(f"detect windows.csv found.h5 {MODEL} --crop_mode list --context_pad 0")

    with h5py.File("found.h5") as file:
        table = file["df"]
        assert table.attrs["pandas_type"] == b"frame"
        assert [name.decode() for name in table["axis1"]] == ["photos/a.png", "photos/é.png"]
        assert [*table["block0_items"], *table["block1_items"]] == [*table["axis0"]]
        assert table["block0_values"][()].tolist() == [[0, 0, 7, 9], [2, 1, 6, 5]]
        assert table["block1_values"].shape == (2, 3)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("tables", reason="PyTables is not installed")
    frame = pandas.read_hdf("found.h5", "df")
    assert frame.index.name == "filename"
    assert list(frame.columns) == ["ymin", "xmin", "ymax", "xmax", "class0", "class1", "class2"]
    assert frame.loc["photos/é.png", "xmax"] == 5
    assert frame.class2.iloc[0] == pytest.approx(255)


@pytest.mark.usefixtures("images")
def test_a_table_without_rows_is_refused(run):
    pytest.importorskip("h5py")
    Path("windows.csv").write_text("filename,xmin,ymin,xmax,ymax\n")

    result = run(f"detect windows.csv found.h5 {MODEL} --crop_mode list")

    assert result.exit_code == 3
    failed_with(result, 3, ErrorCode.MISSING, mentions=".csv")


@pytest.mark.usefixtures("images")
def test_rows_without_windows_are_refused(run):
    Path("windows.csv").write_text("filename,xmin\nphotos/a.png,0\n")

    result = run(f"detect windows.csv found.csv {MODEL} --crop_mode list")

    assert result.exit_code == 3
    assert "windows.csv:2" in result.stderr


@pytest.mark.usefixtures("images")
def test_selective_search_that_is_not_there_is_told(run):
    Path("list.txt").write_text("photos/a.png\n")

    result = run(f"detect list.txt found.csv {MODEL}")

    assert result.exit_code == 3
    assert "selective_search_ijcv_with_python" in result.stderr


@pytest.mark.usefixtures("images")
def test_nets_are_drawn(run):
    shown = run("draw_net net.prototxt net.svg --rankdir tb --phase TEST --display_lrm")
    wrong = run("draw_net net.prototxt net.xyz")

    assert shown.stdout == "Drew net.prototxt to net.svg\n"
    assert "mean (Pooling AVE)" in Path("net.svg").read_text()
    assert wrong.exit_code == 3
    assert "'xyz'" in wrong.stderr
