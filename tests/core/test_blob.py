"""Blob: shapes, sharing, arithmetic, messages, live views."""

import copy
from itertools import pairwise

import numpy as np
import pytest
from expect_error import expect_error
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from demitasse.blob import Blob, VersionCounter
from demitasse.core.device import Device
from demitasse.errors import ErrorCode, ShapeError
from demitasse.io.proto import BlobProto, BlobShape


def blob(values, device="numpy", dtype="float32", diff=None):
    values = np.asarray(values, dtype)
    made = Blob(values.shape, dtype, device, "b")
    made.mutable_cpu_data()[...] = values
    if diff is not None:
        made.mutable_cpu_diff()[...] = diff
    return made


# -- shape -------------------------------------------------------------------------------------


def test_shape_count_and_string():
    made = Blob((2, 3, 4), device="numpy")

    assert (made.shape, made.count, made.num_axes) == ((2, 3, 4), 24, 3)
    assert made.shape_string == "2 3 4 (24)"
    assert Blob((), device="numpy").shape_string == "(1)"


@pytest.mark.parametrize(
    "how",
    [(4, 5), ((4, 5),), ([4, 5],), (BlobShape(dim=[4, 5]),)],
    ids=["integers", "tuple", "list", "BlobShape"],
)
def test_reshape_takes(how):
    made = Blob((2,), device="numpy")

    answer = made.reshape(*how)

    assert answer is None
    assert made.shape == (4, 5)


def test_an_axis_may_be_empty():
    made = Blob((3, 0), device="numpy")

    assert made.count == 0
    assert made.data.shape == (3, 0)
    assert made.asum_data() == 0


@pytest.mark.parametrize("shape", [(-1,), (2, -3), (1,) * 33])
def test_impossible_shapes_are_refused(shape):
    with pytest.raises(ShapeError):
        Blob(shape, device="numpy")


def test_memory_never_shrinks_and_growth_renews_both_and_ends_sharing():
    one, two = blob([1, 2, 3, 4]), blob([5, 6, 7, 8])
    two.share_data(one)
    small = one.data_memory

    two.reshape(2)
    kept = two.data_memory
    two.reshape(5)

    assert kept is small
    assert two.data_memory is not one.data_memory
    np.testing.assert_array_equal(one.data, [1, 2, 3, 4])
    np.testing.assert_array_equal(two.data, np.zeros(5))


def test_a_blob_tells_of_another_shape_or_memory_and_of_nothing_else():
    made, other, changes = (
        Blob((2, 3), device="numpy"),
        Blob((3, 2), device="numpy"),
        VersionCounter(),
    )
    made.subscribe(changes)
    seen = [changes.number]

    for act in (
        lambda: made.reshape(2, 3),
        lambda: made.reshape(3, 2),
        lambda: made.share_data(other),
        lambda: made.share_data(other),
        lambda: made.share_diff(other),
        lambda: other.reshape(100),
        lambda: made.data.fill(1),
        lambda: made.reshape(200),
    ):
        act()
        seen.append(changes.number)

    moved = [before != after for before, after in pairwise(seen)]
    assert moved == [False, True, True, False, True, False, False, True]


def test_a_blob_of_two_nets_tells_both():
    made, first, second = Blob((2,), device="numpy"), VersionCounter(), VersionCounter()
    for changes in (first, second, first):
        made.subscribe(changes)

    made.reshape(3)

    assert first.number != 0 != second.number


def test_axes_count_from_either_end():
    made = Blob((2, 3, 4, 5), device="numpy")

    assert [made.canonical_axis(i) for i in (0, 3, -1, -4)] == [0, 3, 3, 0]
    assert (made.count_from(2), made.count_to(2), made.count_between(1, 3)) == (20, 6, 12)
    for axis in (4, -5):
        with expect_error(ShapeError, mentions="2 3 4 5 (120)"):
            made.canonical_axis(axis)
    for start, end in ((3, 2), (-1, 2), (0, 5)):
        with pytest.raises(ShapeError):
            made.count_between(start, end)


def test_legacy_axes_that_are_not_there_read_one():
    made = Blob((6, 7), device="numpy")

    assert (made.num, made.channels, made.height, made.width) == (6, 7, 1, 1)
    assert [made.legacy_shape(i) for i in (-4, -3, -2, -1)] == [1, 1, 6, 7]
    for index in (4, -5):
        with pytest.raises(ShapeError):
            made.legacy_shape(index)
    with expect_error(ShapeError, mentions="4"):
        _ = Blob((1,) * 5, device="numpy").num


def test_offsets_are_checked():
    made = blob(np.arange(24).reshape(2, 3, 4))

    assert made.offset(1, 2, 3) == 23
    assert made.offset([1, 2]) == 20
    assert made.data_at(1, 0, 2) == 14
    for wrong in ((2, 0, 0), (0, -1), (0, 0, 0, 0)):
        with pytest.raises(ShapeError):
            made.offset(*wrong)


# -- memory ------------------------------------------------------------------------------------


def test_sharing_needs_equal_counts_only(backend):
    one, two = blob(np.arange(6), backend), blob(np.zeros((2, 3)), backend)

    two.share_data(one)
    two.data[1, 2] = 9

    assert one.data[5] == 9
    with expect_error(ShapeError, ErrorCode.COUNT_MISMATCH):
        one.share_diff(blob([1], backend))


def test_views_are_live_and_writable(backend):
    made = blob([1, 2, 3], backend)
    view = made.data[1:]

    view[0] = 20
    made.scale_data(2)

    np.testing.assert_array_equal(made.data, [2, 40, 6])


def test_read_cannot_be_written_on_the_readonly_device():
    array = blob([1, 2], "readonly").read()

    with expect_error(ValueError, mentions="read-only"):
        array[0] = 5


def test_write_takes_exactly_the_shape(backend):
    made = blob(np.zeros((2, 3)), backend)
    convert = Device(backend).backend.asarray

    made.write(convert(np.ones((2, 3), np.float32)))

    np.testing.assert_array_equal(made.data, np.ones((2, 3)))
    for shape in ((3, 2), (3,), (1, 3), ()):
        with pytest.raises(ShapeError):
            made.write(convert(np.ones(shape, np.float32)))


def test_gradients_are_overwritten_or_accumulated(backend):
    made = blob([0, 0], backend)
    one = Device(backend).backend.asarray(np.array([1, 2], np.float32))

    made.add_diff(one)
    made.add_diff(one)
    summed = made.diff.copy()
    made.write_diff(one)

    np.testing.assert_array_equal(summed, [2, 4])
    np.testing.assert_array_equal(made.diff, [1, 2])


def test_adopting_another_size_renews_everything():
    made = blob(np.zeros(6))
    made.reshape(4)
    mine = np.arange(4, dtype=np.float32)

    made.set_cpu_data(mine)
    mine[0] = 7

    np.testing.assert_array_equal(made.data, [7, 1, 2, 3])
    assert made.diff_memory.size == 4
    with expect_error(ShapeError, ErrorCode.COUNT_MISMATCH, got=(5,)):
        made.set_cpu_data(np.zeros(5, np.float32))


def test_other_libraries_can_see_it(backend):
    made = blob([[1, 2], [3, 4]], backend)

    np.testing.assert_array_equal(np.asarray(made), [[1, 2], [3, 4]])
    assert np.asarray(made, dtype=np.float64).dtype == np.float64
    if Device(backend).shares_host:
        np.testing.assert_array_equal(np.from_dlpack(made), [[1, 2], [3, 4]])


# -- arithmetic --------------------------------------------------------------------------------


@pytest.mark.parametrize("on_device", [False, True], ids=["head at host", "head at device"])
def test_update_and_norms(backend, on_device):
    made = blob([3, -4], backend, diff=[1, 1])
    if on_device:
        made.gpu_data()
        made.mutable_gpu_data()

    made.update()

    assert made.asum_data() == 7
    assert made.sumsq_data() == 29
    assert made.asum_diff() == 2
    assert made.sumsq_diff() == 2
    np.testing.assert_array_equal(made.data, [2, -5])
    made.scale_diff(3)
    np.testing.assert_array_equal(made.diff, [3, 3])


def test_norms_of_an_unwritten_blob_are_zero_and_its_update_is_refused(backend):
    made = Blob((3,), device=backend)

    made.scale_data(2)

    assert made.asum_data() == made.sumsq_diff() == 0
    with expect_error(ShapeError, ErrorCode.BAD_STATE):
        made.update()


def test_integer_blobs_have_no_arithmetic():
    made = Blob((3,), "int32", "numpy")

    for name in ("update", "asum_data", "sumsq_diff"):
        with expect_error(ShapeError, ErrorCode.DTYPE_MISMATCH, got="int32"):
            getattr(made, name)()


@pytest.mark.parametrize("newest", ["host", "device"])
@pytest.mark.parametrize("how", ["copy_from", "set_floats"])
def test_a_copy_into_a_part_of_shared_memory_leaves_the_rest(how, newest, backend):
    values = np.array([1, 2, 3, 4], np.float32)
    whole, source = blob(values if newest == "host" else 0 * values, backend), blob([7, 8], backend)
    if newest == "device":
        whole.write(whole.device.backend.asarray(values))
    whole.reshape(2)
    part = blob([0, 0], backend)
    part.share_data(whole)

    if how == "copy_from":
        part.copy_from(source)
    else:
        part.set_floats(source.data, np.array([]))

    whole.reshape(4)
    np.testing.assert_array_equal(whole.data, [7, 8, 3, 4])


def test_copy_from(backend):
    source, target = blob([1, 2], backend, diff=[3, 4]), blob([0, 0], backend, diff=[0, 0])

    target.copy_from(source)
    after_data = (target.data.copy(), target.diff.copy())
    target.copy_from(source, copy_diff=True)

    np.testing.assert_array_equal(after_data, [[1, 2], [0, 0]])
    np.testing.assert_array_equal(target.diff, [3, 4])
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="reshape=True"):
        target.copy_from(blob([1, 2, 3], backend))
    target.copy_from(blob([1, 2, 3], backend), reshape=True)
    np.testing.assert_array_equal(target.data, [1, 2, 3])


def test_a_blob_is_not_copied_by_assignment():
    for how in (copy.copy, copy.deepcopy):
        with expect_error(TypeError, mentions="copy_from"):
            how(blob([1]))


# -- messages ----------------------------------------------------------------------------------


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.float64]), arrays.array_shapes(min_dims=0, max_dims=4)
    ),
    st.booleans(),
)
def test_a_message_gives_back_what_was_put_in(values, write_diff):
    dtype = str(values.dtype)
    made = blob(values, dtype=dtype, diff=values[...])

    message = BlobProto.FromString(made.to_proto(write_diff).SerializeToString())
    back = Blob((), dtype, "numpy")
    back.from_proto(message)

    np.testing.assert_array_equal(back.data, values)
    np.testing.assert_array_equal(back.diff, values if write_diff else np.zeros_like(values))


def test_legacy_dimensions_are_compared_from_the_end():
    message = BlobProto(num=1, channels=1, height=2, width=3)

    assert Blob((2, 3), device="numpy").shape_equals(message)
    assert Blob((1, 1, 2, 3), device="numpy").shape_equals(message)
    assert not Blob((3, 2), device="numpy").shape_equals(message)
    assert not Blob((1, 1, 1, 2, 3), device="numpy").shape_equals(message)


def test_double_values_win_over_single_ones():
    message = BlobProto(data=[1, 1], double_data=[2, 2])
    message.shape.dim.append(2)
    made = Blob((), device="numpy")

    made.from_proto(message)

    np.testing.assert_array_equal(made.data, [2, 2])


def test_messages_that_do_not_fit_change_nothing():
    made = blob([1, 2])
    short = BlobProto(data=[5])
    short.shape.dim.append(2)
    other = BlobProto(data=[5, 6, 7])
    other.shape.dim.append(3)

    for message, reshape in ((short, True), (other, False)):
        with pytest.raises(ShapeError):
            made.from_proto(message, reshape=reshape)

    np.testing.assert_array_equal(made.data, [1, 2])
