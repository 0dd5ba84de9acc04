"""SyncedMemory: the table of states, adoption, live views, transfers."""

import gc

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode, ShapeError
from demitasse.memory import Head, SyncedMemory, transfers
from demitasse.memory.sides import any_live_view

FAR = "strict:device1"  # a device that does not share the host's memory


def memory(head: Head, device: str = FAR) -> SyncedMemory:
    """A memory of 1, 2, 3 whose head is where it is asked to be."""
    made = SyncedMemory(3, "float32", Device(device))
    if head is not Head.UNINITIALIZED:
        made.mutable_cpu_data()[...] = [1, 2, 3]
    if head in {Head.HEAD_AT_GPU, Head.SYNCED}:
        made.gpu_data()
    if head is Head.HEAD_AT_GPU:
        made.mutable_gpu_data()
    assert made.head is head
    transfers.reset()
    return made


TABLE = {
    # access: {head before: (head after, copies to the host, copies to the device)}
    "cpu_data": {
        Head.UNINITIALIZED: (Head.HEAD_AT_CPU, 0, 0),
        Head.HEAD_AT_CPU: (Head.HEAD_AT_CPU, 0, 0),
        Head.HEAD_AT_GPU: (Head.SYNCED, 1, 0),
        Head.SYNCED: (Head.SYNCED, 0, 0),
    },
    "mutable_cpu_data": {
        Head.UNINITIALIZED: (Head.HEAD_AT_CPU, 0, 0),
        Head.HEAD_AT_CPU: (Head.HEAD_AT_CPU, 0, 0),
        Head.HEAD_AT_GPU: (Head.HEAD_AT_CPU, 1, 0),
        Head.SYNCED: (Head.HEAD_AT_CPU, 0, 0),
    },
    "gpu_data": {
        Head.UNINITIALIZED: (Head.HEAD_AT_GPU, 0, 0),
        Head.HEAD_AT_CPU: (Head.SYNCED, 0, 1),
        Head.HEAD_AT_GPU: (Head.HEAD_AT_GPU, 0, 0),
        Head.SYNCED: (Head.SYNCED, 0, 0),
    },
    "mutable_gpu_data": {
        Head.UNINITIALIZED: (Head.HEAD_AT_GPU, 0, 0),
        Head.HEAD_AT_CPU: (Head.HEAD_AT_GPU, 0, 1),
        Head.HEAD_AT_GPU: (Head.HEAD_AT_GPU, 0, 0),
        Head.SYNCED: (Head.HEAD_AT_GPU, 0, 0),
    },
}


@pytest.mark.parametrize(
    ("access", "before"),
    [(access, head) for access, row in TABLE.items() for head in row],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_each_access_moves_the_head_and_copies_as_the_table_says(access, before):
    after, down, up = TABLE[access][before]
    tried = memory(before)

    side = getattr(tried, access)()

    assert tried.head is after
    assert (transfers.to_host, transfers.to_device) == (down, up)
    values = np.asarray(Device(FAR).backend.to_host(side) if "gpu" in access else side)
    expected = [0, 0, 0] if before is Head.UNINITIALIZED else [1, 2, 3]
    np.testing.assert_array_equal(values, expected)


def test_a_device_that_shares_the_host_never_copies(backend):
    device = Device(backend)
    tried = SyncedMemory(3, "float32", device)
    transfers.reset()

    with device.backend.device_scope():
        tried.mutable_gpu_data()[...] = 5.0
    host = tried.cpu_data()

    np.testing.assert_array_equal(host, [5, 5, 5])
    assert transfers.to_host == (0 if device.shares_host else 1)
    assert transfers.to_device == 0


def test_what_will_be_overwritten_is_not_copied_first():
    tried = memory(Head.HEAD_AT_CPU)

    tried.mutable_gpu_data(discard=True)[...] = 7.0

    assert transfers.to_device == 0
    np.testing.assert_array_equal(tried.cpu_data(), [7, 7, 7])


def test_every_write_makes_a_new_version_and_reading_does_not():
    tried = memory(Head.SYNCED)
    first = tried.version

    tried.cpu_data()
    tried.gpu_data()
    unread = tried.version
    tried.mutable_cpu_data()
    second = tried.version
    tried.mutable_gpu_data()

    assert unread == first
    assert first < second < tried.version


@pytest.mark.parametrize("before", list(Head), ids=lambda head: head.name)
def test_memory_that_holds_nothing_says_so(before):
    tried = memory(before)

    assert tried.cleared == (before is Head.UNINITIALIZED)
    tried.clear()
    assert tried.cleared


@pytest.mark.parametrize("before", list(Head), ids=lambda head: head.name)
def test_clear_reads_as_zero_on_either_side(before):
    for side in ("cpu_data", "gpu_data"):
        tried = memory(before)

        tried.clear()

        assert tried.head is Head.UNINITIALIZED
        values = getattr(tried, side)()
        host = values if side == "cpu_data" else Device(FAR).backend.to_host(values)
        np.testing.assert_array_equal(np.asarray(host), [0, 0, 0])


def test_adopted_host_memory_is_the_callers():
    tried, mine = memory(Head.HEAD_AT_GPU), np.array([4, 5, 6], np.float32)

    tried.set_cpu_data(mine)
    mine[0] = 9

    assert tried.head is Head.HEAD_AT_CPU
    np.testing.assert_array_equal(Device(FAR).backend.to_host(tried.gpu_data()), [9, 5, 6])


def test_adopted_device_memory_is_newest_and_the_callers():
    tried = memory(Head.HEAD_AT_CPU)
    theirs = Device(FAR).backend.asarray(np.array([4, 5, 6], np.float32))

    tried.set_gpu_data(theirs)

    assert tried.head is Head.HEAD_AT_GPU
    assert tried.gpu_data() is theirs
    np.testing.assert_array_equal(tried.cpu_data(), [4, 5, 6])


@pytest.mark.parametrize(
    "array",
    [np.zeros(4, np.float32), np.zeros(3, np.float64), np.zeros(6, np.float32)[::2]],
    ids=["other size", "other dtype", "with gaps"],
)
def test_memory_that_does_not_fit_is_not_adopted(array):
    tried = memory(Head.HEAD_AT_CPU)

    with expect_error(ShapeError, ErrorCode.INCOMPATIBLE, expected=(3,)):
        tried.set_cpu_data(array)

    np.testing.assert_array_equal(tried.cpu_data(), [1, 2, 3])


def test_pushing_needs_the_head_at_the_host():
    ready, empty = memory(Head.HEAD_AT_CPU), memory(Head.UNINITIALIZED)

    ready.async_push()

    assert ready.head is Head.SYNCED
    with expect_error(DeviceError, ErrorCode.BAD_STATE, head="UNINITIALIZED"):
        empty.async_push()


@pytest.mark.parametrize("before", list(Head), ids=lambda head: head.name)
@pytest.mark.parametrize("target", ["numpy", FAR])
def test_data_follows_to_another_device(before, target):
    tried = memory(before)

    tried.to(Device("numpy"))
    tried.to(Device(target))

    values = Device(target).backend.to_host(tried.gpu_data())
    expected = [0, 0, 0] if before is Head.UNINITIALIZED else [1, 2, 3]
    np.testing.assert_array_equal(values, expected)
    tried.mutable_gpu_data()[...] = 8.0
    np.testing.assert_array_equal(tried.cpu_data(), [8, 8, 8])


def test_a_slice_of_a_live_view_keeps_it_alive_and_counts():
    tried = memory(Head.HEAD_AT_GPU)
    part = tried.live_view().reshape(3, 1)[1:]
    gc.collect()
    assert tried.viewed
    assert any_live_view()

    tried.gpu_data()  # a pass has read the data, so the device side is up to date
    part[0] = 40
    tried.before_pass()

    np.testing.assert_array_equal(Device(FAR).backend.to_host(tried.gpu_data()), [1, 40, 3])


def test_a_live_view_shows_what_a_pass_computes():
    tried = memory(Head.HEAD_AT_CPU)
    view = tried.live_view()

    tried.mutable_gpu_data()[...] = 6.0
    tried.after_pass()

    np.testing.assert_array_equal(view, [6, 6, 6])


def test_a_dropped_view_costs_nothing():
    tried = memory(Head.HEAD_AT_CPU)
    view = tried.live_view()
    tried.gpu_data()
    del view
    gc.collect()
    transfers.reset()

    tried.mutable_gpu_data()
    tried.before_pass()
    tried.after_pass()

    assert not tried.viewed
    assert transfers.to_host == transfers.to_device == 0


def test_clearing_shows_in_a_live_view():
    tried = memory(Head.HEAD_AT_CPU)
    view = tried.live_view()

    tried.clear()

    np.testing.assert_array_equal(view, [0, 0, 0])


def test_poison_fills_the_stale_side():
    with settings.override(debug_fill_stale=True):
        tried = memory(Head.SYNCED)
        host = tried.cpu_data()
        tried.mutable_gpu_data()

    assert np.isnan(host).all()
    np.testing.assert_array_equal(tried.cpu_data(), [1, 2, 3])


def test_nothing_is_allocated_before_it_is_touched():
    tried = memory(Head.UNINITIALIZED)

    assert tried.allocated == 0
    tried.cpu_data()
    assert tried.allocated == tried.nbytes == 12
