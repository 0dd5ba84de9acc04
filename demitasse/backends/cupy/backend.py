"""The device side on an NVIDIA GPU: cupy arrays, pinned host memory, asynchronous uploads.

Everything is queued on the stream that is current in the calling thread: CUDA's default stream
unless another was made current. All work on one net must use one stream.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from demitasse.backends.arrays import Array, Event, PrivateLayout, address
from demitasse.backends.base import Backend
from demitasse.backends.cupy.library.cudnn_library import status
from demitasse.backends.cupy.library.detect import advice, look
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.library.failures import Scope
from demitasse.backends.cupy.library.memory_pools import Pools, joules_of, pinned_memory
from demitasse.backends.cupy.library.nccl import NcclConnector
from demitasse.backends.cupy.library.recorder import GraphRecorder
from demitasse.backends.cupy.library.uploads import GpuUploader
from demitasse.backends.cupy.lowerings import LOWERINGS
from demitasse.backends.cupy.steps.fusion import fuse
from demitasse.backends.cupy.updates import Updates
from demitasse.backends.ops import Op
from demitasse.backends.step import AnyStep, Lowerings, Operands
from demitasse.backends.storage import STORAGES, Stored
from demitasse.core.config import settings
from demitasse.errors import DeviceError, ErrorCode


@dataclass(frozen=True)
class _Use:
    """GPU and stream of an array's last use."""

    gpu: "CupyBackend"
    stream: Any


class CupyBackend(Backend):
    """One NVIDIA GPU through cupy, by its index among those CUDA shows to this process.

    Raises:
        DeviceError: cupy, the driver or the GPU is missing.
    """

    name = "cupy"
    queues = True
    records_arrays: ClassVar[bool] = True
    default_index = "0"
    lowerings: ClassVar[Lowerings] = LOWERINGS

    trains_narrow: ClassVar[bool] = True

    @property
    def storages(self) -> tuple[Stored, ...]:
        return STORAGES

    def __init__(self, index: str = "") -> None:
        super().__init__(index or self.default_index)
        try:
            self._cupy: Any = import_module("cupy")
            self.xp = import_module("array_api_compat.cupy")
            self.array_device = self._cupy.cuda.Device(int(self.index))
        except Exception as error:  # whatever a missing driver or library raises
            device = f"cuda:{self.index}"
            raise DeviceError(self.missing(), code=ErrorCode.UNAVAILABLE, device=device) from error
        self._limit = 0
        self._capturing = threading.RLock()

    @classmethod
    def devices(cls) -> list[str]:
        return [f"cuda:{i}" for i in range(look().devices)]

    @classmethod
    def missing(cls) -> str:
        return advice(look())

    def enter(self) -> Scope:
        """Make the GPU current; its failures leave the block as DeviceError."""
        return self._scope

    device_scope = enter

    def order_after(self, before: object) -> object:
        """Let the current stream wait for the stream of the last use, if different."""
        stream = self.engine.work_stream()
        if isinstance(before, _Use) and before.gpu is self:
            if before.stream == stream:
                return before
            # no wait during a capture: the work runs at replay
            if self.engine.input_updates is None:
                with self._failures():
                    event = self._cupy.cuda.Event(disable_timing=True)
                    stream.wait_event(before.stream.record(event))
        return _Use(self, stream)

    def environment(self) -> dict[str, str]:
        return {
            "GPU": self.pools.gpu,
            "cupy": self._cupy.__version__,
            "cuDNN": (status().version if settings.get("cudnn") else "") or "none",
            "tf32": str(settings.get("tf32")),
        }

    def empty_host(self, size: int, dtype: str) -> np.ndarray:
        """Return zeros in pinned memory, or in ordinary memory if pinning fails."""
        with self.array_device:
            host = pinned_memory(self._cupy, size, dtype)
        host[...] = 0
        return host

    def zeros(self, size: int, dtype: str) -> Array:
        limit = settings.get_often("memory_limit")  # also of temporary arrays, from the same pool
        if limit != self._limit:
            self.pools.limit_to(limit)
            self._limit = limit
        with self._failures(size * np.dtype(dtype).itemsize):
            return self._cupy.zeros(size, dtype)

    def upload(self, host: np.ndarray, device: Array) -> Event | None:
        """Queue a copy, which may still read pinned memory after this has returned."""
        if not host.size:
            return None
        with self._failures():
            return self.engine.upload(host, device)

    def download(self, device: Array, host: np.ndarray) -> None:
        if not host.size:
            return
        with self._failures():
            device.get(stream=self._cupy.cuda.get_current_stream(), out=host)

    def asarray(self, host: np.ndarray) -> Array:
        with self._failures(host.nbytes):
            # cupy copies other memory before it returns, but reads pinned memory when the copy runs
            pinned = self._cupy.cuda.pinned_memory.is_memory_pinned(address(host))
            return self._cupy.array(host, order="C", blocking=pinned)

    def to_host(self, array: Array) -> np.ndarray:
        with self._failures():
            host: np.ndarray = self._cupy.asnumpy(array)
        return host

    def view(self, flat: Array, shape: tuple[int, ...], count: int) -> Array:
        part = flat if flat.size == count else flat[:count]
        return part.reshape(shape)

    def synchronize(self) -> None:
        """Wait until everything queued on any stream of the GPU is done."""
        # a wait for all streams would end the capture of another thread
        with self._capturing, self._failures():
            self.array_device.synchronize()
        self.engine.in_flight.release_done()

    @property
    def joules(self) -> float | None:
        """Return the energy that the GPU has used; None without NVML's package or its counter."""
        return joules_of(str(self.array_device.pci_bus_id))

    @property
    def pooled(self) -> int:
        """Return the idle bytes of cupy's pool."""
        with self._failures():
            return self.pools.idle

    def memory_info(self) -> tuple[int, int]:
        """Return free and total device memory in bytes; idle memory in cupy's pool is free."""
        with self._failures():
            return self.pools.free, self.pools.total

    def random_bits(self, seed: int, stream: int, passes: int, count: int, first: int = 0) -> Array:
        with self._failures(4 * count):
            return self.engine.random_bits(seed, stream, passes, count, first)

    def dot(self, a: Array, b: Array) -> Array:
        return self.engine.dot(a, b)

    def add(self, a: Array, b: Array) -> Array:
        return self.engine.add(a, b)

    def narrow(self, array: Array, storage: str, out: Array | None = None) -> Array:
        with self._failures():
            array = self._cupy.ascontiguousarray(array, "float32")
            return self.engine.narrow(array, storage, out)

    def widen(self, array: Array, storage: str) -> Array:
        with self._failures():
            return self.engine.widen(array, storage)

    def reordered(
        self, array: Array, here: PrivateLayout | None, there: PrivateLayout | None
    ) -> Array:
        with self._failures():
            return self.engine.reordered(array, here, there)

    def copier(self, pairs: Sequence[tuple[Array, Array]]) -> Callable[[], None]:
        with self._failures():
            return self.updates.copier(pairs)

    def uploader(self) -> GpuUploader:
        with self._failures():
            return GpuUploader(self._cupy, self.array_device, self.engine)

    def lower(self, op: Op, at: Operands, refused: Sequence[str] = ()) -> AnyStep:
        with self._failures():
            return super().lower(op, at, refused)

    def fuse(
        self, chain: Sequence[Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
    ) -> AnyStep:
        with self._failures():
            return fuse(self.engine, chain, at, steps)

    @cached_property
    def engine(self) -> Engine:
        """Kernels, matrix products and scratch memory of this GPU."""
        return Engine(self._cupy, self.array_device)

    @cached_property
    def updates(self) -> Updates:
        """Updates of a net's parameters, for solvers."""
        return Updates(self.engine)

    @cached_property
    def recorder(self) -> GraphRecorder:
        """Records work as CUDA graphs."""
        return GraphRecorder(self._cupy, self.engine, self._capturing)

    @property
    def connector(self) -> NcclConnector:
        """Connects this GPU to others by NCCL."""
        return NcclConnector(self._cupy, self)

    @cached_property
    def pools(self) -> Pools:
        """Return properties of the GPU and of cupy's memory pools."""
        return Pools(self._cupy, self.array_device)

    @cached_property
    def _scope(self) -> Scope:
        return Scope(self._cupy, self.pools)

    def _failures(self, asked: int = 0) -> Scope:
        """Convert errors of CUDA in a block that allocates ``asked`` bytes."""
        return Scope(self._cupy, self.pools, asked) if asked else self._scope
