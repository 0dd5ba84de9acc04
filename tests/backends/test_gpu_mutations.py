"""Faults put into the GPU's code on purpose: tests on the stand-in notice each of them."""

from contextlib import nullcontext

import numpy as np
import pytest
from expect_error import expect_error
from gpu.errors import Misuse

from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library import engine
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.uploads import InFlightCopies
from demitasse.blob import Blob
from demitasse.core.device import Device
from demitasse.memory import SyncedMemory
from demitasse.memory.sides import HostSide

pytestmark = pytest.mark.usefixtures("stand_in")


def overwriting():
    memory = SyncedMemory(4, "float32", Device("cuda:0"))
    memory.mutable_cpu_data()[...] = 1
    device = memory.gpu_data().copy()
    memory.mutable_cpu_data()[...] = 2
    assert device.get().tolist() == [1, 1, 1, 1]


def letting_go():
    backend = Device("cuda:0").backend
    device = backend.zeros(4, "float32")
    host = backend.empty_host(4, "float32")
    host[...] = 1
    backend.upload(host, device)
    del host
    other = backend.empty_host(4, "float32")
    other[...] = -1
    assert device.get().tolist() == [1, 1, 1, 1]


def two_streams():
    import cupy

    memory = SyncedMemory(4, "float32", Device("cuda:0"))
    memory.mutable_cpu_data()[...] = 1
    with cupy.cuda.Stream(non_blocking=True):
        array = memory.mutable_gpu_data()
        array += 1
    assert memory.cpu_data().tolist() == [2, 2, 2, 2]


def another_gpu():
    blob = Blob((2, 2), device="cuda:1")
    blob.set_diff(3)
    assert (blob.cpu_diff() == 3).all()


def launching():
    backend = Device("cuda:0").backend
    with backend.enter():
        x = backend.asarray(np.array([-1, 2, -3, 4], "float32"))
        y = backend.engine.empty(4, "float32")
        Engine(backend._cupy, backend.array_device).elementwise(
            "activation", "relu", "float32", 4, 0.5
        )(x, y)
        assert y.get().tolist() == [-0.5, 2, -1.5, 4]


def no_wait(monkeypatch):
    monkeypatch.setattr(HostSide, "wait", lambda self: None)


def no_hold(monkeypatch):
    monkeypatch.setattr(InFlightCopies, "add", lambda self, event, host: None)


def no_order(monkeypatch):
    monkeypatch.setattr(CupyBackend, "order_after", lambda self, before: before)


def no_enter(monkeypatch):
    monkeypatch.setattr(CupyBackend, "device_scope", lambda self: nullcontext())


def wide_numbers(monkeypatch):
    monkeypatch.setattr(engine, "WIDE", -1)
    right = engine.options
    monkeypatch.setattr(engine, "options", lambda dtype, wide, **more: right(dtype, wide=False))


def one_number_less(monkeypatch):
    right = Engine.function
    monkeypatch.setattr(
        Engine, "function", lambda self, *given: right(self, *given[:-1], given[-1][:-1])
    )


def numbers_in_another_order(monkeypatch):
    right = Engine.function
    monkeypatch.setattr(
        Engine, "function", lambda self, *given: right(self, *given[:-1], given[-1][::-1])
    )


@pytest.mark.parametrize(
    ("work", "fault", "error", "mentions"),
    [
        (overwriting, no_wait, AssertionError, "2.0, 2.0"),
        (letting_go, no_hold, AssertionError, "-1.0, -1.0"),
        (two_streams, no_order, AssertionError, "assert"),
        (another_gpu, no_enter, ValueError, "device"),
        (launching, wide_numbers, Misuse, ["int64", "i4"]),
        (launching, one_number_less, Misuse, ["4", "3"]),
        (launching, numbers_in_another_order, Misuse, []),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_fault_is_noticed(work, fault, error, mentions, monkeypatch):
    work()

    fault(monkeypatch)

    with expect_error(error, mentions=mentions):
        work()
