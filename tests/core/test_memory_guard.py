"""Memory guards: which states of memories a replay requires, and which it leaves."""

import numpy as np
import pytest
from cuda_host import cuda_at

from demitasse.backends.cpu.layout import plain
from demitasse.backends.recording import NotRecorded
from demitasse.core.device import Device
from demitasse.memory import Head, SyncedMemory
from demitasse.memory.memory_guard import MemoryGuard


def memory(device="cpu", value=None):
    one = SyncedMemory(4, "float32", Device(device) if isinstance(device, str) else device)
    if value is not None:
        one.mutable_cpu_data()[...] = value
    return one


def double(source, target):
    target.mutable_cpu_data(discard=True)[...] = 2 * source.cpu_data()


def recorded(work, *memories, rewritten=(), overwritten=()):
    """Return the guard of some work on the host, whose memories were written before."""
    versions = {m.serial: m.version - (m in rewritten) for m in memories}
    guard = MemoryGuard(memories, versions, frozenset(m.serial for m in overwritten))
    work()
    guard.record_effects()
    versions.update({m.serial: m.version for m in memories})
    return guard


# -- on the host -------------------------------------------------------------------------------


def test_a_parameter_must_be_unchanged():
    weight, top = memory(value=1), memory(value=0)
    guard = recorded(lambda: double(weight, top), weight, top, overwritten=[top])

    assert guard.matches()
    weight.mutable_cpu_data()[...] = 3
    assert not guard.matches()


CHANGES = {
    "a write": lambda weight: weight.mutable_cpu_data(),
    "other contents": lambda weight: weight.set_cpu_data(np.ones(4, np.float32)),
    "none": lambda weight: weight.clear(),
    "a private side": lambda weight: weight.private_data(plain((4,))),
    "a private side alone": lambda weight: weight.private_data(plain((4,)), alone=True),
    "other buffers": lambda weight: weight.assign(None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_parameter_is_compared_again_after_each_change(change):
    weight, top = memory(value=1), memory(value=0)
    guard = recorded(lambda: double(weight, top), weight, top, overwritten=[top])
    guard.apply()
    assert guard.unchanged
    assert guard.matches()

    change(weight)

    assert not guard.unchanged
    assert not guard.matches()


def test_work_that_writes_what_other_work_only_reads_is_noticed():
    weight, top = memory(value=1), memory(value=0)
    writes = recorded(lambda: double(top, weight), top, weight, overwritten=[weight])
    reader = recorded(lambda: double(weight, top), weight, top, overwritten=[top])
    reader.apply()

    writes.apply()

    assert not reader.matches()


def test_an_input_that_others_write_between_runs_may_change():
    data, top = memory(value=1), memory(value=0)
    guard = recorded(lambda: double(data, top), data, top, rewritten=[data], overwritten=[top])

    data.mutable_cpu_data()[...] = 3
    assert guard.matches()
    data.set_cpu_data(np.ones(4, np.float32))
    assert not guard.matches()


def test_an_output_has_the_state_after_the_work():
    data, top = memory(value=1), memory(value=0)
    guard = recorded(lambda: double(data, top), data, top, overwritten=[top])
    version = top.version
    top.clear()

    assert guard.matches()
    guard.apply()

    assert top.state is Head.HEAD_AT_CPU
    assert top.version == version + 2


def test_a_sum_begins_with_the_contents_of_the_run_before():
    part, total = memory(value=1), memory(value=1)

    def add():
        total.mutable_cpu_data()[...] += part.cpu_data()

    guard = recorded(add, part, total)

    assert guard.matches()
    guard.apply()
    assert guard.matches()
    total.mutable_cpu_data()[...] = 0
    assert not guard.matches()


def test_a_cleared_memory_must_be_cleared():
    total = memory(value=1)
    total.clear()
    guard = recorded(lambda: total.mutable_cpu_data(discard=True).fill(1), total, rewritten=[total])

    assert not guard.matches()
    total.clear()
    assert guard.matches()
    total.lazy_init(lambda host: host.fill(7))
    assert not guard.matches()


def test_a_replay_that_exchanges_private_arrays_leaves_no_others_in_use():
    backend = Device("cpu").backend
    if backend.engine is None or backend.recorder is None:
        pytest.skip("no private layouts here")
    one, layout, other = memory(value=1), plain((4,)), backend.empty_private(4)
    first = one.mutable_private_data(layout)
    guard = recorded(lambda: one.exchange_private(layout, other), one, rewritten=[one])
    one.exchange_private(layout, first)

    assert guard.matches()
    guard.apply()

    assert one.device_side.array is other
    assert one.device_side.buffer is other


def test_a_memory_that_is_read_while_empty_prevents_a_recording():
    empty, top = memory(), memory(value=0)

    with pytest.raises(NotRecorded):
        recorded(lambda: double(empty, top), empty, top, overwritten=[top])


def test_a_memory_that_moves_prevents_a_recording():
    one = memory(value=1)

    with pytest.raises(NotRecorded):
        recorded(lambda: one.set_cpu_data(np.ones(4, np.float32)), one)


# -- on a device that queues its work ----------------------------------------------------------


@pytest.fixture(params=["host", "cuda:0"])
def device(request):
    return cuda_at(request.param)


def queued(work, *memories):
    guard = MemoryGuard(memories)
    work()
    guard.record_effects()
    return guard


def test_inputs_of_queued_work_are_copied_and_may_have_any_contents(device):
    data, top = memory(device, 1), memory(device, 0)
    for one in (data, top):
        one.gpu_data()
    guard = queued(lambda: top.mutable_gpu_data(discard=True).fill(2), data, top)

    data.mutable_cpu_data()[...] = 5
    top.mutable_cpu_data()[...] = 6
    assert guard.matches()
    guard.apply()

    assert (data.state, top.state) == (Head.SYNCED, Head.HEAD_AT_GPU)
    assert device.backend.to_host(data.gpu_data()).tolist() == [5] * 4


def test_queued_work_requires_its_arrays_and_its_device(device):
    def fresh():
        one = memory(device, 1)
        one.gpu_data()
        return one, queued(lambda: None, one)

    replaced, of_replaced = fresh()
    replaced.set_gpu_data(device.backend.zeros(4, "float32"))
    moved, of_moved = fresh()
    moved.to(Device("numpy"))
    read, of_read = fresh()
    read.cpu_data()

    assert not of_replaced.matches()
    assert not of_moved.matches()
    assert of_read.matches()


def test_a_memory_that_queued_work_clears_must_be_cleared(device):
    total = memory(device, 1)
    total.gpu_data()
    total.clear()
    guard = queued(total.gpu_data, total)

    assert not guard.matches()
    total.clear()
    assert guard.matches()
    guard.apply()
    assert total.state is Head.HEAD_AT_GPU
