"""What is packed for kernels is not kept in C order too, unless somebody looks at it there."""

import threading

import numpy as np
import pytest

from demitasse import Net, Solver
from demitasse.backends.cpu import slow_reason
from demitasse.backends.cpu.layout import channels_last
from demitasse.core.device import Device
from demitasse.io.proto import NetParameter, SolverParameter, parse_text
from demitasse.memory import Head, SyncedMemory

pytestmark = pytest.mark.skipif(bool(slow_reason()), reason=slow_reason())

SHAPE = (2, 3, 1, 2)
VALUES = np.arange(12, dtype=np.float32)

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param {
    shape { dim: 4 dim: 16 dim: 9 dim: 9 } shape { dim: 4 }
    data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 32 kernel_size: 3 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def layout():
    return channels_last(SHAPE, 16)


@pytest.fixture
def memory():
    made = SyncedMemory(12, "float32", Device("cpu"))
    made.mutable_cpu_data()[...] = VALUES
    return made


def test_the_host_side_is_let_go_of_and_made_again_when_it_is_read(memory, layout):
    memory.private_data(layout, alone=True)

    assert memory.allocated == layout.size * 4
    assert memory.head is Head.HEAD_AT_GPU
    np.testing.assert_array_equal(memory.cpu_data(), VALUES)


def test_one_that_was_made_again_stays(memory, layout):
    memory.private_data(layout, alone=True)
    memory.mutable_cpu_data()[0] = 7

    memory.private_data(layout, alone=True)

    assert memory.head is Head.SYNCED
    assert memory.cpu_data()[0] == 7


def test_a_live_view_stays_the_host_side(memory, layout):
    view = memory.live_view()

    memory.private_data(layout, alone=True)

    memory.mutable_cpu_data()[0] = 7
    assert view[0] == 7


def test_an_array_of_somebody_else_stays_the_host_side(memory, layout):
    theirs = VALUES.copy()
    memory.set_cpu_data(theirs)

    memory.private_data(layout, alone=True)

    assert memory.cpu_data() is theirs


def test_a_net_holds_its_packed_weights_once():
    message = parse_text(NET, NetParameter)
    del message.layer[-1]  # without a loss, nothing learns the weights
    net = Net(message, "TEST", device="cpu", seed=1)
    weights = [layer.blobs[0] for layer in net.layers if layer.blobs]
    before = [blob.cpu_data().copy() for blob in weights]

    net.forward()

    packed = [blob for blob in weights if blob.data_memory.layout is not None]
    assert packed
    assert all(blob.data_memory.head is Head.HEAD_AT_GPU for blob in packed)
    for blob, values in zip(weights, before, strict=True):
        np.testing.assert_array_equal(blob.cpu_data(), values)


def test_training_gives_the_same_weights_whether_they_are_read_in_between_or_not():
    def trained(*, look: bool):
        param = parse_text("base_lr: 0.1 momentum: 0.9 lr_policy: 'fixed'", SolverParameter)
        param.net_param.CopyFrom(parse_text(NET, NetParameter))
        param.snapshot_after_train = False
        solver = Solver(param, device="cpu", seed=1)
        for _ in range(4):
            solver.step(1)
            if look:
                _ = [blob.cpu_data().sum() for blob in solver.net.learnable_params]
        return [blob.cpu_data().copy() for blob in solver.net.learnable_params]

    for looked, alone in zip(trained(look=True), trained(look=False), strict=True):
        np.testing.assert_array_equal(looked, alone)


def test_threads_that_read_at_once_see_whole_values(memory, layout, monkeypatch):
    """As clones of a net do, whose parameters are in a private layout alone."""
    backend = memory.device.backend
    empty_host, unpack = backend.empty_host, backend.unpack
    first_is_done, second_copies, second_may_copy = (threading.Event() for _ in range(3))

    def empty_late(size, dtype):
        if threading.current_thread() is second:
            first_is_done.wait(5)
        return empty_host(size, dtype)

    def unpack_late(*arguments):
        if threading.current_thread() is second:
            second_copies.set()
            second_may_copy.wait(5)
        unpack(*arguments)

    monkeypatch.setattr(backend, "empty_host", empty_late)
    monkeypatch.setattr(backend, "unpack", unpack_late)
    memory.private_data(layout, alone=True)
    second = threading.Thread(target=memory.cpu_data)
    second.start()
    memory.cpu_data()
    first_is_done.set()
    assert second_copies.wait(5)
    seen = memory.cpu_data().copy()
    second_may_copy.set()
    second.join()

    np.testing.assert_array_equal(seen, VALUES)
    np.testing.assert_array_equal(memory.cpu_data(), VALUES)
