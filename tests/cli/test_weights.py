"""``demitasse weights``: list, export, diff."""

import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.cli.comparison import weights_difference
from demitasse.errors import WeightsError
from demitasse.io.weights import formats
from demitasse.io.weights.formats import FORMATS, load_weights

WEIGHTS = {
    "conv/1": [np.arange(6, dtype=np.float32).reshape(1, 2, 3), np.zeros(1, np.float32)],
    "wide": [np.linspace(0, 1, 5)],
    "scalar": [np.array(2.5, np.float32)],
}


def write_weights(path, kind, weights):
    formats.write_weights(
        path, kind, {layer: dict(enumerate(arrays)) for layer, arrays in weights.items()}
    )


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_weights(Path("model.caffemodel"), "caffemodel", WEIGHTS)
    return "model.caffemodel"


def test_list(model, run):
    lines = [line.split() for line in run(f"weights list {model}").stdout.splitlines()]

    assert ["conv/1", "0", "1", "2", "3", "float32", "6"] in lines
    assert ["wide", "0", "5", "float64", "5"] in lines
    assert lines[-1][:4] == ["3", "layers,", "13", "values,"]


def test_list_as_json(model, run):
    first, *_ = json.loads(run(f"weights list {model} --json").stdout)

    assert first == {
        "layer": "conv/1", "index": 0, "shape": [1, 2, 3], "dtype": "float32", "count": 6,
    }  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_holds_the_same(model, run, kind):
    result = run(f"weights export {model} out.{kind}")

    assert result.exit_code == 0
    found = load_weights(Path(f"out.{kind}"))
    assert set(found) == set(WEIGHTS)
    for layer, arrays in WEIGHTS.items():
        for mine, theirs in zip(arrays, found[layer], strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            assert (mine == theirs).all()


def test_an_export_loads_where_caffe_weights_load(model, run):
    run(f"weights export {model} out.h5")

    assert (load_weights("out.h5")["conv/1"][0] == WEIGHTS["conv/1"][0]).all()


def test_npz_is_numpys(model, run):
    run(f"weights export {model} out.npz")

    with np.load("out.npz") as file:
        assert sorted(file.files) == ["conv/1/0", "conv/1/1", "scalar/0", "wide/0"]


def test_a_npz_that_an_archiver_packed_is_read(model, run):
    run(f"weights export {model} out.npz")
    shutil.unpack_archive("out.npz", "unpacked", "zip")
    shutil.make_archive("packed", "zip", "unpacked")  # with an entry for each folder

    packed = load_weights(Path("packed.zip").rename("packed.npz"))

    assert packed.keys() == load_weights("out.npz").keys()


def test_safetensors_is_as_its_format_says(model, run):
    run(f"weights export {model} out.safetensors")

    content = Path("out.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert header["wide/0"]["dtype"] == "F64"
    begin, end = header["conv/1/0"]["data_offsets"]
    stored = np.frombuffer(content[8 + length :][begin:end], "<f4")
    assert (stored == WEIGHTS["conv/1"][0].reshape(-1)).all()
    offsets = [about["data_offsets"] for name, about in header.items() if name[0] != "_"]
    assert offsets[-1][1] == len(content) - 8 - length
    assert all(a[1] == b[0] for a, b in pairwise(offsets))


def test_the_kind_may_be_said(model, run):
    assert run(f"weights export {model} weights.dat --to npz").exit_code == 0
    assert run(f"weights export {model} weights.dat").exit_code == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 40,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 66)
        + b'{"a/0": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}   ',
        struct.pack("<Q", 66)
        + b'{"a/0": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}}   ',
    ],
)
def test_damaged_safetensors_are_refused(tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)

    with expect_error(WeightsError, mentions="bad.safetensors"):
        load_weights(path)


def test_a_tensor_of_an_unknown_type_is_named(tmp_path):
    header = b'{"a/0": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}'
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"8")

    with expect_error(WeightsError, mentions=["'a/0'", "F8_E4M3", "BF16"]):
        load_weights(path)


@pytest.mark.parametrize("name", ["none.caffemodel", "none.npz", "none.safetensors"])
def test_a_missing_file_is_3(run, name):
    assert run(f"weights list {name}").exit_code == 3


# -- diff --------------------------------------------------------------------------------------


def changed(**arrays: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    return {**WEIGHTS, **arrays}


def test_equal_files_differ_in_nothing(model, run):
    result = run(f"weights diff {model} {model}")

    assert result.exit_code == 0
    assert result.stdout == "0 of 4 arrays of equal shape differ\n"


def test_the_largest_difference_comes_first(model, run):
    other = [WEIGHTS["wide"][0].copy()]
    other[0][3] += 0.5
    write_weights(Path("b.npz"), "npz", changed(wide=other, scalar=[np.array(2.6, np.float32)]))

    result = run(f"weights diff {model} b.npz")

    rows = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert rows[1] == ["wide", "0", "4.000e-01", "5.000e-01", "3", "0.75", "1.25"]
    assert rows[2][0] == "scalar"
    assert "2 of 4 arrays" in result.stdout
    assert run(f"weights diff {model} b.npz -rtol 0.5").exit_code == 0


def test_what_only_one_has_is_named(model, run):
    other = {"wide": [np.zeros((5, 1))], "new": [np.zeros(1)], "conv/1": WEIGHTS["conv/1"][:1]}
    write_weights(Path("b.npz"), "npz", other)

    shown = run(f"weights diff {model} b.npz --rtol 9").stdout

    assert "only in the first: scalar" in shown
    assert "only in the second: new" in shown
    assert "wide, parameter 0: (5,) and (5, 1)" in shown
    assert "conv/1, parameter 1: (1,) and missing" in shown


def test_the_four_axes_of_old_files_make_no_difference():
    old, new = np.arange(6.0).reshape(1, 1, 2, 3), np.arange(6.0).reshape(2, 3)
    new[1, 2] = 7

    result = weights_difference({"ip": [old]}, {"ip": [new]})
    other = weights_difference({"ip": [new]}, {"ip": [new.reshape(3, 2)]})

    [one] = result.arrays
    assert (result.shapes, one.place, one.first, one.second) == ([], (1, 2), 5, 7)
    assert other.shapes == [("ip", 0, (2, 3), (3, 2))]


def test_nan_is_equal_to_nan_and_to_nothing_else():
    holes = np.array([np.nan, 1.0, np.inf])

    same = weights_difference({"a": [holes]}, {"a": [holes.copy()]})
    other = weights_difference({"a": [holes]}, {"a": [np.array([0.0, 1.0, np.inf])]})

    assert same.arrays[0].absolute == 0
    assert other.arrays[0].absolute == np.inf
    assert other.arrays[0].place == (0,)


def test_diff_as_json(model, run):
    found = json.loads(run(f"weights diff {model} {model} --json").stdout)

    assert found["within_rtol"] is True
    assert len(found["arrays"]) == 4
