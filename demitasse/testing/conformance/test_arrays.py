"""Arrays, transfers and random words, as :class:`demitasse.backends.base.Backend` specifies."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from demitasse.backends import backend_class, devices_of, random
from demitasse.backends.arrays import Array, ArrayRef
from demitasse.backends.base import Backend
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode

DTYPES = ["float32", "float64", "int32", "int64"]


@pytest.fixture(params=DTYPES)
def kind(request: pytest.FixtureRequest, device: Device) -> str:
    """Element type of memories; skips types that the device does not support."""
    try:
        device.backend.dtype(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def backend(device: Device) -> Backend:
    """Backend of the device under test."""
    return device.backend


def test_float64_is_refused_without_it(device: Device) -> None:
    kind: Any = type(device.backend)
    narrow: Any = object.__new__(type(kind.__name__, (kind,), {"has_float64": False}))
    narrow.index = device.backend.index

    with pytest.raises(DeviceError) as caught:
        narrow.dtype("float64")

    assert caught.value.code == ErrorCode.UNSUPPORTED


def uploaded(backend: Backend, values: np.ndarray) -> Array:
    """Return a device array with these values."""
    if not backend.mutable:
        return backend.asarray(values)
    side = backend.zeros(values.size, values.dtype.name)
    event = backend.upload(values, side)
    if event is not None:
        event.synchronize()
    return side


def downloaded(backend: Backend, side: Array, dtype: str = "float32") -> Any:
    """Return the values of a device array."""
    host = np.full(side.shape, 77, dtype)
    backend.download(side, host)
    return host.tolist()


def added_up(backend: Backend, rows: np.ndarray, places: np.ndarray, size: int) -> Array:
    """Return a device array of ``size`` rows with the sum of the rows for each place."""
    with backend.enter():
        return backend.scatter_add(backend.asarray(rows), backend.asarray(places), size)


class Side:
    """The device side of a memory, a one-dimensional array."""

    def __init__(self, backend: Backend, values: np.ndarray) -> None:
        self._backend, self.array = backend, uploaded(backend, values)

    def view(self, shape: tuple[int, ...], count: int) -> Any:
        """Return the first elements in a shape, for writing."""
        backend, flat = self._backend, self.array
        if not backend.mutable:
            flat = ArrayRef(backend, self, tuple(flat.shape))
        return backend.view(flat, shape, count)

    def values(self) -> Any:
        """Return the values on the host."""
        return downloaded(self._backend, self.array)


# -- names ---------------------------------------------------------------------------------------


def test_the_device_is_listed_under_its_name(device):
    assert str(device) in devices_of(device.kind)


def test_devices_begin_with_the_name_they_are_found_by(device):
    names = [name.partition(":")[0] for name in backend_class(device.kind).devices()]

    assert device.kind in {*names, "cpu"}  # `cpu` is numpy without kernels


def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(DeviceError) as caught:
        Device(f"{device.kind}:no such index")

    assert str(device) in str(caught.value)


def test_the_device_can_be_waited_for_and_tells_its_memory(backend):
    backend.synchronize()
    memory = backend.memory_info()

    assert memory is None or 0 <= memory[0] <= memory[1]


def test_it_knows_its_own_arrays(backend):
    assert backend.holds(backend.zeros(3, "float32"))
    assert not backend.holds([0.0, 0.0, 0.0])


# -- one-dimensional arrays ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5])
def test_new_memory_is_zero_and_one_dimensional(backend, kind, size):
    side = backend.zeros(size, kind)

    assert tuple(side.shape) == (size,)
    assert side.dtype == backend.dtype(kind)
    assert downloaded(backend, side, kind) == [0] * size


def test_host_memory_is_zero_writable_and_in_one_piece(backend, kind):
    host = backend.empty_host(5, kind)

    assert host.dtype == kind
    assert host.flags.c_contiguous
    assert host.flags.writeable
    assert host.tolist() == [0] * 5


def test_what_goes_up_comes_down(backend, kind):
    values = np.array([3, -1, 0, 2, 100], kind)
    values.flags.writeable = False

    side = uploaded(backend, values)

    assert downloaded(backend, side, kind) == values.tolist()


def test_every_value_goes_up_and_stays_when_the_host_side_is_overwritten(backend):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    given = values.copy()

    side = uploaded(backend, given)
    given[...] = 9
    host = np.zeros(5, np.float32)
    backend.download(side, host)

    assert host.tobytes() == values.tobytes()


# -- views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 1, 2), (6, 1)])
def test_views_write_through(backend, shape):
    side = Side(backend, np.zeros(6, np.float32))
    view = side.view(shape, 6)

    view[...] = backend.asarray(np.arange(6, dtype=np.float32).reshape(shape))

    assert tuple(view.shape) == shape
    assert side.values() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("shape", "count"), [((2, 2), 4), ((), 1), ((0, 3), 0)])
def test_views_of_the_beginning_write_there_alone(backend, shape, count):
    side = Side(backend, np.full(6, 7, np.float32))

    side.view(shape, count)[...] = 1.0

    assert side.values() == [1] * count + [7] * (6 - count)


def test_views_compute_in_place_and_see_what_is_written_later(backend):
    side = Side(backend, np.zeros(6, np.float32))
    view = side.view((2, 3), 6)
    other = backend.asarray(np.array([[1, 1, 1], [2, 2, 2]], np.float32))

    side.view((6,), 6)[...] = backend.asarray(np.arange(6, dtype=np.float32))
    seen = backend.to_host(view[...]).tolist()
    with backend.enter():
        view += other
        view *= 2.0
        view -= other

    assert seen == [[0, 1, 2], [3, 4, 5]]
    assert side.values() == [1, 3, 5, 8, 10, 12]


def test_slices_are_assigned_to_and_parts_are_views_of_the_whole(backend):
    side = Side(backend, np.zeros(12, np.float32))
    view = side.view((3, 4), 12)

    with backend.enter():
        view[1:, ::2] = backend.asarray(np.array([[1, 2], [3, 4]], np.float32))
        view[0, ...] = -1.0
        part = side.view((12,), 12)[2:5]
        part[1:] += 4.0

    assert tuple(part.shape) == (3,)
    assert side.values() == [-1] * 3 + [3, 5, 0, 2, 0, 3, 0, 4, 0]


def test_values_are_put_and_added_at_slices_of_new_arrays(backend):
    at = slice(None), slice(0, 3, 2)

    with backend.enter():
        blank = backend.xp.zeros(
            (2, 3), dtype=backend.dtype("float32"), device=backend.array_device
        )
        ones = backend.asarray(np.ones((2, 2), np.float32))
        blank = backend.set_at(blank, at, ones)
        blank = backend.add_at(blank, at, ones + ones)
        blank = backend.set_at(blank, (1, slice(None)), 5.0)

    assert backend.to_host(blank).tolist() == [[3, 0, 3], [5, 5, 5]]


def test_guarded_arrays_have_the_same_values(backend):
    side = uploaded(backend, np.arange(3, dtype=np.float32))

    guarded = backend.guard(backend.view(side, (3,), 3))

    assert backend.to_host(guarded).tolist() == [0, 1, 2]


# -- arrays of any shape ---------------------------------------------------------------------------

HOST_ARRAYS: dict[str, np.ndarray] = {
    "no axes": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "three axes": np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    "turned round": np.arange(6, dtype=np.float32)[::-1],
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "with gaps": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    "bytes": np.array([0, 255], np.uint8),
    "truths": np.array([True, False]),
}


@pytest.mark.parametrize("name", HOST_ARRAYS)
def test_host_arrays_of_any_kind_become_device_arrays(backend, name):
    given = HOST_ARRAYS[name]

    there = backend.asarray(given)
    back = backend.to_host(there)

    assert tuple(there.shape) == given.shape
    assert back.dtype == given.dtype
    assert back.tolist() == given.tolist()


def test_arrays_of_host_and_device_are_copies(backend):
    given = np.arange(4, dtype=np.float32)
    side, there = uploaded(backend, given), backend.asarray(given)
    back = backend.to_host(backend.view(side, (2, 2), 4))

    given[...], back[...] = 9, 9

    assert backend.to_host(there).tolist() == [0, 1, 2, 3]
    assert downloaded(backend, side) == [0, 1, 2, 3]


def test_results_of_the_namespace_come_down(backend):
    values = backend.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))

    with backend.enter():
        total = backend.xp.sum(values)
        turned = backend.xp.flip(backend.xp.permute_dims(values, (1, 0)), axis=1)

    assert float(backend.to_host(total)) == 15
    assert backend.to_host(turned).tolist() == [[3, 0], [4, 1], [5, 2]]


def test_scattered_values_land_at_their_places(backend, kind):
    values = backend.asarray(np.array([5, 6, 7], kind))

    with backend.enter():
        found = backend.scatter(values, backend.asarray(np.array([4, 0, 2])), 6)

    assert backend.to_host(found).tolist() == [6, 0, 7, 0, 5, 0]
    assert found.dtype == backend.dtype(kind)


def test_of_values_for_one_place_one_stands(backend):
    count = 50_000  # enough for a library to use several threads

    with backend.enter():
        found = backend.scatter(
            backend.asarray(np.arange(count, dtype=np.float32)),
            backend.asarray(np.arange(count) % 3),
            3,
        )

    assert [int(value) % 3 for value in backend.to_host(found)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "places", "want"),
    [
        (
            [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]],
            [3, 0, 3, 1, 3],
            [[3, 4], [7, 8], [0, 0], [15, 18], [0, 0]],
        ),
        (np.zeros((0, 2)), [], [[0, 0]] * 3),
    ],
    ids=["several", "none"],
)
def test_rows_are_added_up_at_their_places(backend, kind, rows, places, want):
    found = added_up(backend, np.array(rows, kind), np.array(places, np.int64), len(want))

    assert backend.to_host(found).tolist() == want
    assert found.dtype == backend.dtype(kind)


def test_many_rows_are_added_up(backend):
    count, width, size = 20_000, 7, 11
    places = np.random.default_rng(1).integers(0, size - 1, count)  # none at the last
    rows = (np.arange(count * width) % 5).reshape(count, width).astype(np.float32)
    want = np.zeros((size, width), np.float32)
    np.add.at(want, places, rows)

    found = added_up(backend, rows, places, size)

    np.testing.assert_array_equal(backend.to_host(found), want)


def test_what_is_infinite_at_one_place_stays_there(backend):
    rows = np.array([[1], [np.inf], [2], [-np.inf], [4], [np.nan]], np.float32)

    found = added_up(backend, rows, np.array([0, 1, 0, 2, 3, 4]), 6)

    want = [[3], [np.inf], [-np.inf], [4], [np.nan], [0]]
    np.testing.assert_array_equal(backend.to_host(found), want)


# -- work ------------------------------------------------------------------------------------------


def test_overflow_and_nan_are_values(backend):
    values = backend.asarray(np.array([3e38, 0.0, -1.0], np.float32))

    with backend.enter(), backend.enter():
        found = [values * 10.0, values / values, backend.xp.log(values)]

    host = [backend.to_host(array) for array in found]
    assert np.isinf(host[0][0])
    assert np.isnan(host[1][1])
    assert np.isinf(host[2][1])
    assert np.isnan(host[2][2])


def test_errors_leave_a_pass_as_they_are(backend):
    error = KeyError("mine")

    with pytest.raises(KeyError) as caught, backend.enter():
        raise error

    assert caught.value is error


def test_another_thread_may_use_the_device(backend):
    values = backend.asarray(np.arange(4, dtype=np.float32))

    def work() -> Any:
        with backend.enter():
            return backend.to_host(values * 2.0).tolist()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("seed", "stream", "passes", "count", "first"),
    [(1, 2, 3, 20, 0), (0, 0, 0, 1, 0), (7, 5, 0, 33, 13), (2**63 + 5, 2**32 - 1, 2**40, 9, 8)],
)
def test_random_words_are_the_same_everywhere(backend, seed, stream, passes, count, first):
    with backend.enter():
        words = backend.random_bits(seed, stream, passes, count, first)

    want = random.bits(seed, stream, passes, count, first)
    assert backend.to_host(words).tolist() == want.tolist()
