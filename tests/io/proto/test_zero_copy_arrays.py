"""Numbers in and out of blob messages, in blocks."""

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import BlobProto, Datum, floats, set_floats, stored_shape
from demitasse.io.proto import zero_copy as arrays
from demitasse.io.proto.wire_format import length_prefix, payloads


@pytest.fixture(params=["blocks", "messages"])
def each_way(request, monkeypatch):
    """With the block access of protobuf 7, and as it is done without."""
    if request.param == "messages":
        monkeypatch.setattr(arrays, "has_blocks", lambda field: False)


@given(st.sampled_from(["f4", "f8"]).flatmap(lambda t: hnp.arrays(t, st.integers(0, 40))))
def test_what_is_set_is_what_is_read(values):
    blob = BlobProto()

    set_floats(blob, values)

    np.testing.assert_array_equal(floats(blob), values)
    assert floats(blob).dtype == (values.dtype if values.size else np.float32)


def test_floats_are_stored_as_caffe_stores_them():
    blob = BlobProto()

    set_floats(blob, np.array([1, 2.5], np.float32))
    set_floats(blob, np.array([3], np.float64), diff=True)

    assert list(blob.data) == [1, 2.5]
    assert list(blob.double_diff) == [3]
    assert blob == BlobProto(data=[1, 2.5], double_diff=[3])


def test_setting_replaces_values_of_every_kind():
    blob = BlobProto(data=[1], double_data=[2], raw_data=b"abc", diff=[4])
    blob.shape.dim.extend([1])

    set_floats(blob, np.array([5], np.float32))

    assert blob == BlobProto(shape={"dim": [1]}, data=[5], diff=[4])


@pytest.mark.usefixtures("each_way")
def test_both_kinds_of_numbers_are_read():
    blob = BlobProto(data=[1, 2], double_diff=[0.1])

    np.testing.assert_array_equal(floats(blob), np.array([1, 2], np.float32))
    np.testing.assert_array_equal(floats(blob, diff=True), np.array([0.1]))


@pytest.mark.usefixtures("each_way")
def test_number_fields_of_other_messages_are_read():
    datum = Datum(float_data=[0.5, -1])

    np.testing.assert_array_equal(floats(datum.float_data), np.array([0.5, -1], np.float32))


@pytest.mark.usefixtures("each_way")
def test_an_empty_message_has_no_values():
    assert floats(BlobProto()).shape == (0,)
    assert floats(BlobProto(), diff=True).dtype == np.float32


def test_any_layout_is_read_in_c_order():
    blob = BlobProto()

    set_floats(blob, np.arange(6, dtype=np.float32).reshape(2, 3).T)

    assert list(blob.data) == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("byte_order", "<>")
def test_doubles_of_any_byte_order_stay_doubles(byte_order):
    blob = BlobProto()

    set_floats(blob, np.array([0.1], f"{byte_order}f8"))

    assert blob == BlobProto(double_data=[0.1])


def test_integers_become_float32():
    blob = BlobProto()

    set_floats(blob, np.array([[1, 2]]))

    assert list(blob.data) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "width", "read"),
    [("FLOAT16", "<f2", np.float32), ("FLOAT", "<f4", np.float32), ("DOUBLE", "<f8", np.float64)],
)
def test_raw_data_of_nvcaffe_is_read(kind, width, read):
    values = np.array([1, -0.5, 2], width)
    blob = BlobProto(raw_data=values.tobytes(), raw_data_type=kind)

    np.testing.assert_array_equal(floats(blob), values)
    assert floats(blob).dtype == read


def test_raw_data_that_is_no_float_is_refused():
    with expect_error(WeightsError, ErrorCode.DTYPE_MISMATCH, mentions="UINT", field="raw_data"):
        floats(BlobProto(raw_data=b"1234", raw_data_type="UINT"))


def test_raw_data_with_a_piece_missing_is_refused():
    with expect_error(WeightsError, ErrorCode.CORRUPT, mentions=["3", "4"], field="raw_data"):
        floats(BlobProto(raw_data=b"123", raw_data_type="FLOAT"))


def test_shapes_of_new_and_old_messages():
    assert stored_shape(BlobProto(shape={"dim": [2, 3]})) == (2, 3)
    assert stored_shape(BlobProto(num=1, channels=3)) == (1, 3, 0, 0)
    assert stored_shape(BlobProto()) == ()


@given(st.integers(1, 2**29 - 1), st.binary(max_size=300))
def test_a_length_prefix_is_what_protobuf_reads(number, body):
    encoded = length_prefix(number, len(body)) + body

    assert [bytes(part) for part in payloads(encoded, number)] == [body]


def test_values_in_several_pieces_are_joined(monkeypatch):
    monkeypatch.setattr(arrays, "has_blocks", lambda field: False)
    one = BlobProto(num=3, data=[1]).SerializeToString()
    blob = BlobProto.FromString(one + BlobProto(data=[2]).SerializeToString())

    assert list(floats(blob)) == [1, 2]


def test_fields_of_other_kinds_are_stepped_over():
    group = bytes([11 << 3 | 3]) + length_prefix(5, 1) + b"x" + bytes([11 << 3 | 4])
    fixed = bytes([12 << 3 | 1]) + bytes(8) + bytes([13 << 3 | 5]) + bytes(4)
    encoded = group + fixed + BlobProto(num=300).SerializeToString() + length_prefix(5, 2) + b"ok"

    assert [bytes(part) for part in payloads(encoded, 5)] == [b"ok"]
