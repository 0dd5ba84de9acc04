"""Datum: arrays into records and back."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.datum import array_to_datum, datum_to_array, label_of
from demitasse.io.proto import Datum


def test_bytes_survive_the_round_trip():
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)

    datum = array_to_datum(pixels, label=7)

    assert (datum.channels, datum.height, datum.width, datum.label) == (2, 3, 4, 7)
    assert not datum.encoded
    back = datum_to_array(datum)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, pixels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_other_numbers_are_stored_as_floats(dtype):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype) - 7

    datum = array_to_datum(values)

    assert not datum.HasField("data")
    assert not datum.HasField("label")
    back = datum_to_array(datum)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, values)


def test_an_array_in_another_memory_order_is_stored_in_c_order():
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 3, 2).transpose(2, 1, 0)

    np.testing.assert_array_equal(datum_to_array(array_to_datum(pixels)), pixels)


def test_an_array_of_other_than_three_axes_is_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(28, 28)"):
        array_to_datum(np.zeros((28, 28), np.uint8))


@pytest.mark.parametrize(
    "datum",
    [
        Datum(channels=3, height=2, width=2, data=b"too short"),
        Datum(channels=3, height=2, width=2, float_data=[1.0, 2.0]),
        Datum(channels=3, height=2, width=2),
        Datum(channels=2**31 - 1, height=2**31 - 1, width=2**31 - 1, data=b"?"),
        Datum(channels=-1, height=-1, width=1, data=b"?"),
        Datum(data=b"no size"),
    ],
    ids=["data", "float_data", "nothing", "huge", "negative", "no size"],
)
def test_a_record_that_holds_other_than_it_says_is_refused(datum):
    with expect_error(DataError, ErrorCode.COUNT_MISMATCH):
        datum_to_array(datum)


@pytest.mark.parametrize(
    ("label", "stored"),
    [
        (7, 7),
        (np.int64(7), 7),
        (np.array(7), 7),
        (np.bool_(True), 1),
        (np.float32(7), 7),
        (3e9, 3e9),
        (0.5, 0.5),
        ([1, 0, 1], (1.0, 0.0, 1.0)),
        (np.array([0.25]), 0.25),
        (None, 0),
    ],
)
def test_a_label_may_be_a_class_a_number_or_several(label, stored):
    datum = array_to_datum(np.zeros((1, 2, 2), np.uint8), label)

    assert label_of(datum) == stored
    assert datum.label == (stored if isinstance(stored, int) else 0)  # what Caffe would see


def test_lists_are_arrays():
    assert array_to_datum([[[1.5, 2]]], 1).float_data == [1.5, 2]


@pytest.mark.parametrize("label", ["cat", {}, 1 << 40, [1, "a"], [[1, 2], [3, 4]]])
def test_a_label_that_is_no_number_is_refused(label):
    with expect_error(DataError, ErrorCode.INVALID, field="label"):
        array_to_datum(np.zeros((1, 2, 2), np.uint8), label)
