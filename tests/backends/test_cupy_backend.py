"""The cupy backend's transfers over a cupy made of numpy arrays, which notes what it is asked.

What cupy itself does is tested on a GPU; this holds what we ask of it.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import errors
from demitasse.backends import ops
from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library import engine as gpu_engine
from demitasse.backends.cupy.library.cublas import CUBLAS_WORKSPACE, Product
from demitasse.backends.step import Declined
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.errors import DeviceError, ErrorCode
from demitasse.memory import Head, SyncedMemory


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


class CompileException(Exception):  # noqa: N818 - cupy's name
    pass


class DynamicLibNotFoundError(RuntimeError):
    pass


class CUBLASError(RuntimeError):
    pass


class NVRTCError(RuntimeError):
    pass


class Array(np.ndarray):
    """A device array: moves by ``set`` and ``get`` alone."""

    def set(self, host, stream):
        assert type(host) is np.ndarray
        assert (host.dtype, host.shape) == (self.dtype, self.shape)
        stream.queue.append("up")
        self[...] = host

    def get(self, stream, out):
        assert not isinstance(out, Array)
        stream.queue.append("down")
        out[...] = self


class Event:
    """Not done until somebody waits for it, or for everything."""

    events: ClassVar[list["Event"]] = []

    def __init__(self, disable_timing):
        assert disable_timing
        self.done = False
        Event.events.append(self)

    def record(self, stream):
        stream.queue.append("event")

    def synchronize(self):
        self.done = True


class FakeCupy(ModuleType):
    """As much of cupy as the backend asks for."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.stream = SimpleNamespace(queue=[], ptr=0)
        self.current: list[int] = []
        self.pinned = 0
        self.limits: list[int] = []
        self.direct: list[int] = []
        self.fail: Exception | None = None
        pool = SimpleNamespace(
            used_bytes=lambda: 3 << 30, free_bytes=lambda: 1 << 30,
            get_limit=lambda: self.limits[-1] if self.limits else 0,
            set_limit=lambda *, size: self.limits.append(size),
            free_all_blocks=lambda: None, n_free_blocks=lambda: 7,
        )  # fmt: skip
        self.get_default_memory_pool = self.get_default_pinned_memory_pool = lambda: pool
        self.cuda = SimpleNamespace(
            Device=lambda index: FakeDevice(self, index),
            Event=Event,
            alloc_pinned_memory=self.alloc_pinned_memory,
            PinnedMemory=self.pinned_memory,
            PinnedMemoryPointer=lambda memory, offset: memoryview(memory)[offset:],
            compiler=SimpleNamespace(CompileException=CompileException),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            get_current_stream=lambda device_id=-1: self.stream,
            pinned_memory=SimpleNamespace(is_memory_pinned=lambda ptr: False),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceCount=lambda: 2,
                getDeviceProperties=lambda index: {
                    "name": b"NVIDIA Test",
                    "multiProcessorCount": 2,
                },
                runtimeGetVersion=lambda: 13020,
                driverGetVersion=lambda: 13020,
            ),
        )

    def alloc_pinned_memory(self, nbytes):
        self.broken()
        assert self.current
        self.pinned += 1
        return bytearray(b"\xff" * (-(-nbytes // 512) * 512))

    def pinned_memory(self, nbytes):
        self.direct.append(nbytes)
        return bytearray(nbytes)

    def empty(self, size, dtype):
        return SimpleNamespace(size=size, nbytes=size, data=SimpleNamespace(ptr=id(self)))

    def zeros(self, size, dtype):
        self.broken()
        return np.zeros(size, dtype).view(Array)

    def array(self, host, order, blocking):
        self.broken()
        return np.array(host, order=order).view(Array)

    def asnumpy(self, array):
        return np.array(array)

    def broken(self):
        if self.fail is not None:
            raise self.fail


class FakeDevice:
    def __init__(self, cupy, index):
        self.cupy, self.id, self.waited = cupy, index, 0
        self.mem_info = (10 << 30, 80 << 30)

    def __enter__(self):
        self.cupy.current.append(self.id)

    def __exit__(self, *exception):
        self.cupy.current.pop()

    def synchronize(self):
        self.waited += 1
        for event in Event.events:
            event.done = True


@pytest.fixture
def cupy(monkeypatch):
    made = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", np)
    monkeypatch.setattr(Device, "_known", {})
    Event.events.clear()
    return made


@pytest.fixture
def gpu(cupy):
    return CupyBackend("1")


class TestHostMemory:
    def test_it_is_pinned_and_zero(self, cupy, gpu):
        host = gpu.empty_host(3, "float64")

        assert cupy.pinned == 1
        np.testing.assert_array_equal(host, np.zeros(3))
        host[:] = 1  # and can be written

    @pytest.mark.parametrize("error", [CUDARuntimeError("no"), MemoryError()])
    def test_it_is_ordinary_where_none_can_be_pinned(self, cupy, gpu, error):
        cupy.fail = error

        host = gpu.empty_host(3, "float32")

        np.testing.assert_array_equal(host, np.zeros(3, "float32"))

    def test_a_large_one_takes_no_more_than_it_has(self, cupy, gpu):
        host = gpu.empty_host((1 << 18) + 1, "float32")

        assert cupy.direct == [(1 << 20) + 4]  # and not 2 MiB of a pool that rounds up
        assert cupy.pinned == 0
        assert host.shape == ((1 << 18) + 1,)
        host[:] = 1

    def test_none_is_pinned_for_nothing(self, cupy, gpu):
        assert gpu.empty_host(0, "float32").shape == (0,)
        assert cupy.pinned == 0


class TestTransfers:
    def test_an_upload_is_queued_with_an_event_behind_it(self, cupy, gpu):
        host, device = np.arange(4.0), gpu.zeros(4, "float64")

        event = gpu.upload(host, device)

        assert cupy.stream.queue == ["up", "event"]
        assert event is Event.events[0]
        assert not event.done
        np.testing.assert_array_equal(np.asarray(device), host)

    def test_memory_under_way_is_held(self, gpu):
        gpu.upload(np.arange(4.0), gpu.zeros(4, "float64"))
        gpu.upload(np.arange(4.0), gpu.zeros(4, "float64"))
        assert len(gpu.engine.in_flight) == 2

        Event.events[0].done = True
        gpu.upload(np.arange(4.0), gpu.zeros(4, "float64"))
        assert len(gpu.engine.in_flight) == 2

        gpu.synchronize()
        assert len(gpu.engine.in_flight) == 0

    def test_a_download_fills_the_host_side(self, cupy, gpu):
        device = gpu.asarray(np.arange(3.0))
        host = np.zeros(3)

        gpu.download(device, host)

        np.testing.assert_array_equal(host, [0, 1, 2])
        assert cupy.stream.queue == ["down"]

    def test_nothing_is_not_moved(self, cupy, gpu):
        assert gpu.upload(np.zeros(0), gpu.zeros(0, "float64")) is None
        gpu.download(gpu.zeros(0, "float64"), np.zeros(0))

        assert cupy.stream.queue == []

    def test_views_share_memory(self, gpu):
        flat = gpu.zeros(6, "float32")

        gpu.view(flat, (2, 2), 4)[...] = 1

        np.testing.assert_array_equal(np.asarray(flat), [1, 1, 1, 1, 0, 0])

    def test_the_host_side_is_not_overwritten_while_it_is_read(self, cupy):
        memory = SyncedMemory(4, "float32", Device("cuda:1"))
        memory.mutable_cpu_data()[...] = 1
        memory.gpu_data()
        event = Event.events[0]

        memory.cpu_data()
        assert not event.done
        memory.mutable_cpu_data()

        assert event.done
        assert memory.head is Head.HEAD_AT_CPU


class TestFailures:
    def test_no_room(self, cupy, gpu):
        cupy.fail = OutOfMemoryError("Out of memory allocating 4 bytes")

        with expect_error(
            errors.OutOfMemoryError,
            ErrorCode.OUT_OF_MEMORY,
            mentions=["cuda:1", "1.0 GiB", "80.0 GiB", "NVIDIA Test", "11.0 GiB", "3.0 GiB", " 4 "],
        ) as caught:
            gpu.zeros(1 << 28, "float32")

        assert caught.value.details == {"device": "cuda:1", "requested": 1 << 30}

    @pytest.mark.parametrize(
        ("error", "code", "mentions"),
        [
            (OutOfMemoryError("x"), ErrorCode.OUT_OF_MEMORY, ["cuda:1", "80.0 GiB"]),
            (CUDARuntimeError("cudaErrorIllegalAddress"), ErrorCode.FAILED, "cuda:1"),
            (CUDADriverError("CUDA_ERROR_UNKNOWN"), ErrorCode.FAILED, "cuda:1"),
            (CompileException("no cuda_fp16.h"), ErrorCode.FAILED, "cupy-cuda13x[ctk]"),
            (DynamicLibNotFoundError("libnvrtc.so.13"), ErrorCode.UNAVAILABLE, "cupy-cuda13x[ctk]"),
            (NVRTCError("NVRTC_ERROR_INVALID_OPTION"), ErrorCode.FAILED, "cupy-cuda13x[ctk]"),
            (
                CUBLASError("CUBLAS_STATUS_ARCH_MISMATCH"),
                ErrorCode.FAILED,
                ["cuda:1", "cupy-cuda13x[ctk]"],
            ),
            (
                RuntimeError("Failed to find CUDA headers. Please install the CUDA Toolkit"),
                ErrorCode.UNAVAILABLE,
                ["cupy-cuda13x[ctk]", "CUDA_PATH"],
            ),
        ],
    )
    def test_what_fails_in_a_pass(self, gpu, error, code, mentions):
        with (
            expect_error(DeviceError, code, device="cuda:1", mentions=mentions) as caught,
            gpu.enter(),
        ):
            raise error

        assert str(error) in str(caught.value)

    @pytest.mark.parametrize(
        ("error", "seen"),
        [(CompileException("no cuda_fp16.h"), DeviceError), (Declined("another dtype"), Declined)],
    )
    def test_what_fails_while_a_step_is_made(self, cupy, gpu, monkeypatch, error, seen):
        def lowering(engine, op, at):
            del engine, op, at
            assert cupy.current == [1]
            raise error

        monkeypatch.setattr(CupyBackend, "lowerings", {ops.Split: [lowering]})
        monkeypatch.setattr(CupyBackend, "engine", None)

        with expect_error(seen, mentions=str(error)):
            gpu.lower(ops.Split("float32", (2, 3), 2), None)

        assert cupy.current == []

    def test_an_error_of_cupy_is_explained_where_it_is_caught_on_the_way(self, gpu):
        error = OutOfMemoryError("Out of memory allocating 4 bytes")

        said = gpu.explained(error)

        assert isinstance(said, errors.OutOfMemoryError)
        assert said.details["device"] == "cuda:1"
        assert said.__cause__ is error

    def test_an_error_of_somebody_else_is_left_as_it_is(self, gpu):
        error = ValueError("mine")

        assert gpu.explained(error) is error

    def test_other_errors_pass(self, gpu):
        with expect_error(RuntimeError, mentions="mine"), gpu.enter():
            raise RuntimeError("mine")

    def test_a_pass_runs_on_its_gpu(self, cupy, gpu):
        with gpu.enter():
            assert cupy.current == [1]
        assert cupy.current == []


def test_what_is_free_includes_what_the_pool_keeps(gpu):
    assert gpu.memory_info() == (11 << 30, 80 << 30)


def test_the_pool_is_kept_within_the_limit_that_is_set(cupy, gpu):
    with settings.override(memory_limit="4GiB"):
        gpu.zeros(4, "float32")

        assert cupy.limits == [4 << 30]
        assert gpu.memory_info()[0] == 1 << 30  # as 3 GiB are used

    gpu.zeros(4, "float32")

    assert cupy.limits == [4 << 30, 0]


def test_the_pools_know_the_gpu_and_its_memory(gpu):
    pools = gpu.pools

    assert (pools.gpu, pools.total, pools.free) == ("NVIDIA Test", 80 << 30, 11 << 30)
    assert (pools.used, pools.idle, pools.limit) == (3 << 30, 1 << 30, 0)


class TestStreams:
    """What the engine keeps for each stream that work was queued on."""

    @pytest.fixture
    def engine(self, cupy, gpu, monkeypatch):
        def handle(library, workspace):
            assert library == "cuBLAS"
            assert workspace[1] == CUBLAS_WORKSPACE
            return SimpleNamespace(use=self.streams.append, multiply=self.multiply)

        self.products, self.streams = [], []

        monkeypatch.setattr(gpu_engine, "load", lambda: "cuBLAS")
        monkeypatch.setattr(gpu_engine, "Cublas", str)
        monkeypatch.setattr(gpu_engine, "CublasHandle", handle)
        return gpu.engine

    def test_each_has_a_handle_and_scratch_of_its_own(self, cupy, engine):
        first = engine._handle(), engine.scratch_memory(100)
        cupy.stream.ptr = 1
        second = engine._handle(), engine.scratch_memory(100)
        cupy.stream.ptr = 0

        assert self.streams == [0, 1]
        assert first[0] is not second[0]
        assert first[1] is not second[1]
        assert engine.scratch_memory(100) is first[1]

    def test_those_of_streams_long_gone_are_let_go(self, cupy, engine):
        for address in range(100):
            cupy.stream.ptr = address
            engine._handle()
            engine.scratch_memory(100)

        assert len(engine._local.handles) == len(engine._local.scratch) == gpu_engine.STREAMS

    def test_scratch_grows_and_never_shrinks(self, engine):
        small = engine.scratch_memory(100)
        large = engine.scratch_memory(1000)

        assert small.size < large.size == 1000
        assert engine.scratch_memory(100) is large

    def multiply(self, product, a, b, out, *, rounds):
        self.products.append(rounds)

    def test_which_products_are_rounded_to_tf32(self, engine):
        array = SimpleNamespace(data=SimpleNamespace(ptr=0))
        for word in ("off", "auto", "on", "off"):
            with settings.override(tf32=word):
                for convolution in (False, True):
                    product = Product("float32", 1, 1, 1, convolution=convolution)
                    engine.multiply(product, array, array, array)

        assert self.products == [False, False, False, True, True, True, False, False]
