"""Synchronization of host and device memory: newest side, number of copies."""

from typing import Any

import numpy as np
import pytest

from demitasse.blob import Blob
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.memory import Head, SyncedMemory, transfers


def memory(device: Device, *values: float) -> SyncedMemory:
    """Return a memory written on the host."""
    made = SyncedMemory(len(values), "float32", device)
    made.mutable_cpu_data()[...] = values
    transfers.reset()
    return made


def on_device(made: SyncedMemory) -> Any:
    """Return the values of the device side."""
    return made.device.backend.to_host(made.gpu_data()).tolist()


def expect_copies(device: Device, up: int, down: int) -> None:
    """Check the copies since the last reset; a device that shares host memory makes none."""
    counted = (transfers.to_device, transfers.to_host)
    assert counted == ((0, 0) if device.shares_host else (up, down))


def test_what_the_host_wrote_goes_up_once(device):
    made = memory(device, 1, 2, 3)

    found = [on_device(made) for _ in range(3)]

    assert found == [[1, 2, 3]] * 3
    expect_copies(device, 1, 0)
    assert made.head is (Head.HEAD_AT_CPU if device.shares_host else Head.SYNCED)


def test_what_the_device_wrote_comes_down_once(device):
    made = memory(device, 1, 2, 3)

    made.mutable_gpu_data()[...] = 5.0
    found = [made.cpu_data().tolist() for _ in range(3)]

    assert found == [[5, 5, 5]] * 3
    expect_copies(device, 1, 1)


def test_what_will_be_overwritten_is_not_copied(device):
    made = memory(device, 1, 2, 3)

    made.mutable_gpu_data(discard=True)[...] = 5.0
    made.mutable_cpu_data(discard=True)[...] = 6.0

    assert on_device(made) == [6, 6, 6]
    expect_copies(device, 1, 0)


def test_host_and_device_may_write_by_turns(device):
    made = memory(device, 1, 2)

    for turn in range(3):
        side = made.mutable_gpu_data()
        side += 1.0
        made.mutable_cpu_data()[0] += 10.0
        assert made.cpu_data().tolist() == [11 * (turn + 1) + 1, turn + 3]

    assert on_device(made) == [34, 5]


@pytest.mark.parametrize("written", [False, True])
def test_memory_is_zero_until_it_is_written_and_once_it_is_cleared(device, written):
    made = SyncedMemory(3, "float32", device)
    if written:
        made.mutable_gpu_data()[...] = 5.0
        made.clear()

    assert on_device(made) == [0, 0, 0]
    assert made.cpu_data().tolist() == [0, 0, 0]


def test_data_pushed_early_is_there_when_it_is_read(device):
    made = memory(device, 1, 2, 3)

    made.async_push()
    host = made.mutable_cpu_data()
    host[...] = 9.0  # waits for the copy, and is newer than it

    assert on_device(made) == [9, 9, 9]


def test_a_device_array_of_the_caller_can_be_adopted(device):
    made = memory(device, 1, 2, 3)
    mine = device.backend.asarray(np.array([4, 5, 6], np.float32))

    made.set_gpu_data(mine)
    side = made.mutable_gpu_data()
    side += 1.0

    assert made.cpu_data().tolist() == [5, 6, 7]
    written = [5, 6, 7] if device.backend.mutable else [4, 5, 6]
    assert device.backend.to_host(mine).tolist() == written


@pytest.mark.parametrize("other", ["numpy", "cpu"])
def test_data_follows_to_another_device_and_back(device, other):
    made = memory(device, 1, 2, 3)
    made.mutable_gpu_data()[...] = 5.0

    made.to(Device(other))
    there = on_device(made)
    made.mutable_gpu_data()[...] = 6.0
    made.to(device)

    assert there == [5, 5, 5]
    assert on_device(made) == [6, 6, 6]


def test_stale_sides_can_be_spoilt_for_debugging(device):
    with settings.override(debug_fill_stale=True):
        made = memory(device, 1, 2, 3)
        made.gpu_data()

        made.mutable_cpu_data()[...] = 4.0

    assert on_device(made) == [4, 4, 4]


def test_blobs_of_any_shape_read_and_write(device):
    blob = Blob((2, 3), "float32", device, "mine")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)

    blob.write(device.backend.asarray(values))
    blob.add_diff(device.backend.asarray(values))
    blob.add_diff(device.backend.asarray(values))
    blob.scale_data(3.0)

    assert blob.cpu_data().tolist() == (3 * values).tolist()
    assert blob.cpu_diff().tolist() == (2 * values).tolist()
    blob.update()
    assert blob.cpu_data().tolist() == values.tolist()
    assert blob.asum_data() == 15
    assert blob.sumsq_diff() == 4 * 55


def test_blobs_take_scalars_and_slices_of_arrays(device):
    array = device.backend.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    total, part = Blob((), "float32", device), Blob((2, 2), "float32", device)

    total.write(device.backend.xp.sum(array))
    part.write(array[1:, 1:4:2])

    assert float(total.cpu_data()) == 66
    assert part.cpu_data().tolist() == [[5, 7], [9, 11]]


def test_live_views_show_what_the_device_wrote_and_count_when_written(device):
    made = memory(device, 1, 2, 3)
    view = made.live_view()
    made.gpu_data()

    view[1] = 20.0
    made.before_pass()
    side = made.mutable_gpu_data()
    side += 1.0
    made.after_pass()

    assert view.tolist() == [2, 21, 4]
