"""Arguments with values that cannot be are refused with errors of ours, or of the system."""

import errno

import numpy as np
import pytest
from expect_error import expect_error
from needs import needs

from demitasse import Blob, Net, Solver
from demitasse.errors import ConfigError, DataError, ErrorCode, ShapeError
from demitasse.io.data import array_to_datum, resize_image
from demitasse.io.proto import NetParameter, SolverParameter, parse_text

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "y" type: "Power" bottom: "x" top: "y" }
"""
IMAGE = np.zeros((3, 4, 5), np.uint8)


@pytest.fixture
def net():
    return Net(parse_text(NET, NetParameter), device="numpy")


@pytest.mark.parametrize("shape", ["wide", [float("nan")], [float("inf"), 2], [1.5, 2], [None, 2]])
def test_a_shape_is_whole_numbers(shape):
    with expect_error(ShapeError, ErrorCode.INVALID, mentions=repr(shape)):
        Blob(shape, device="numpy")


@pytest.mark.parametrize("label", ["cat", 1 << 31, 10**30, [[1], [1, 2]]])
def test_a_label_is_a_number(label):
    with expect_error(DataError, mentions="label"):
        array_to_datum(IMAGE, label)


@pytest.mark.parametrize(
    ("image", "height", "width"),
    [
        (IMAGE[0], 2, 2),
        (np.zeros(3), 2, 2),
        (np.zeros((1, 1, 2, 2, 2)), 2, 2),
        (IMAGE, 0, 2),
        (IMAGE, 2, -1),
        (IMAGE[:, :0], 2, 2),
    ],
)
def test_an_image_has_three_axes_and_becomes_one_with_pixels(image, height, width):
    with expect_error(ShapeError, mentions=f"{height} x {width}"):
        resize_image(image, height, width)


def test_an_input_holds_numbers(net):
    with expect_error(ShapeError, ErrorCode.DTYPE_MISMATCH, blob="x", got="<U3"):
        net.set_input("x", np.array(["cat"]))


def test_rows_of_an_input_have_one_length(net):
    with expect_error(ShapeError, ErrorCode.INVALID):
        net.predict([[1], [1, 2]])


def test_a_test_net_has_a_number():
    param = parse_text('base_lr: 0.1 lr_policy: "fixed"', SolverParameter)
    param.net_param.CopyFrom(parse_text(NET, NetParameter))
    with Solver(param, device="numpy") as solver:
        for index in (-1, 0, 3):
            with expect_error(ConfigError, mentions=str(index)):
                solver.test(index)


@pytest.mark.parametrize(
    "path",
    ["", "/", "a\0b", pytest.param("half a \ud800", marks=needs("names in UTF-8"))],
)
def test_what_cannot_be_a_file_is_not_written(net, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for save in (net.save, net.save_hdf5):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked below
            save(path)
        assert caught.value.errno in {errno.EISDIR, errno.EINVAL}

    assert list(tmp_path.iterdir()) == []
