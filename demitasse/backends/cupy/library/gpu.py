"""The engine that talks to a GPU through cupy."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array, Event
from demitasse.backends.cupy.library.convolutions import Convolution, Prepared, Rival
from demitasse.backends.cupy.library.cublas import Cublas, Handle, Product, load
from demitasse.backends.cupy.library.cudnn import Cudnn
from demitasse.backends.cupy.library.engine import Engine, Grid, Launch, source
from demitasse.backends.cupy.library.memory_pools import pinned_memory
from demitasse.backends.cupy.library.uploads import InFlightCopies
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.step import decline_if
from demitasse.backends.storage import array_dtype
from demitasse.core.config import settings

CUBLAS_WORKSPACE = 32 << 20
"""Bytes of workspace for matrix products; what NVIDIA recommends for Hopper."""

ALIGNMENT = 256  # bytes that the beginning of every scratch array is a multiple of

STREAMS = 4
"""For how many streams a thread keeps scratch memory, and cuBLAS handles with their workspace."""

TIMED = 5  # repetitions of a timed piece of work


class _Local(threading.local):
    """Scratch memory and handles of each thread by stream, and the stream that a capture replaces.

    Those of streams that were not used for long go: what is queued on a stream keeps its memory,
    which cupy's pool gives to later work on the same stream only.
    """

    def __init__(self) -> None:
        self.home: Any = None
        self.scratch: LRUCache[Array] = LRUCache(STREAMS)
        self.handles: LRUCache[tuple[Handle, Array]] = LRUCache(STREAMS)


class GpuEngine(Engine):
    """Kernels compiled by NVRTC, products by cuBLAS, convolutions by cuDNN where there is one.

    All of them work on the stream that is current.

    Every thread has scratch memory and cuBLAS handles of its own for each stream, so that work
    queued at the same time never overwrites another's. Scratch memory grows to what the largest
    layer needs; a recorded CUDA graph must keep what ``scratch_memory`` returns alive. Recorded
    work uses those of its *home*, the stream on which it will run.
    """

    def __init__(self, cupy: Any, device: Any) -> None:
        self._cupy, self._device, self._local = cupy, device, _Local()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.most_blocks = 32 * int(properties["multiProcessorCount"])
        self.column_budget = min(self.column_budget, int(device.mem_info[1]) // 16)
        self._kernel = cache(self._compile)
        self._cublas: Cublas | None = None
        self.in_flight = InFlightCopies()

    def function(
        self, family: str, name: str, flags: tuple[str, ...], grid: Grid, numbers: tuple[Any, ...]
    ) -> Launch:
        kernel = self._kernel(family, name, flags)
        blocks, threads = (grid.blocks,), (grid.threads,)

        def launch(*arrays: Array) -> None:
            kernel(blocks, threads, (*arrays, *numbers))

        return launch

    def _compile(self, family: str, name: str, flags: tuple[str, ...]) -> Any:
        # cupy keeps the compiled module, in memory and on disk, by text and options
        return self._cupy.RawModule(code=source(family), options=flags).get_function(name)

    def scratch(self, dtype: str, *counts: int) -> list[Array]:
        dtype = array_dtype(dtype)
        width = np.dtype(dtype).itemsize
        sizes = [-(-count * width // ALIGNMENT) * ALIGNMENT for count in counts]
        memory, start, parts = self.scratch_memory(sum(sizes)), 0, []
        for count, size in zip(counts, sizes, strict=True):
            parts.append(memory[start : start + count * width].view(dtype))
            start += size
        return parts

    @property
    def nbytes(self) -> int:
        handles = (memory for _, memory in self._local.handles.values())
        return sum(int(memory.nbytes) for memory in (*self._local.scratch.values(), *handles))

    def scratch_memory(self, nbytes: int = 0) -> Array:
        """Return the scratch memory of this thread and stream, of at least ``nbytes`` bytes."""
        mine, home = self._local.scratch, self.home().ptr
        found = mine.find(home)
        if found is None or found.size < nbytes:
            found = None
            mine.pop(home, None)  # first, so that its memory can be used again
            found = mine.keep(home, self._cupy.empty(max(nbytes, ALIGNMENT), "uint8"))
        return found

    def held(self) -> tuple[object, ...]:
        """Return scratch memory and handles of this thread, to be kept while a graph uses them."""
        return (*self._local.scratch.values(), *self._local.handles.values())

    def empty(self, count: int, dtype: str) -> Array:
        return self._cupy.empty(count, dtype)

    def asarray(self, host: np.ndarray) -> Array:
        return self._cupy.array(host, order="C")

    def upload(self, host: np.ndarray, array: Array) -> Event:
        """Queue a copy of a host array, which is read until the returned event."""
        stream = self._cupy.cuda.get_current_stream()
        array.set(host, stream=stream)
        event: Event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)  # type: ignore[attr-defined]
        self.in_flight.add(event, host)
        return event

    def put(self, host: np.ndarray, array: Array) -> None:
        # GPUs that use the host's page tables read ordinary memory when the copy runs
        staged = pinned_memory(self._cupy, host.size, str(host.dtype)).reshape(host.shape)
        staged[...] = host
        self.upload(staged, array)

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def multiply(self, product: Product, a: Array, b: Array, out: Array) -> None:
        rounding = settings.get_often("tf32")
        rounds = rounding == "on" or (product.convolution and rounding == "auto")
        self._handle().multiply(product, *map(self.address, (a, b, out)), rounds=rounds)

    def prepare_convolution(self, convolution: Convolution, rival: Rival | None = None) -> Prepared:
        decline_if(not settings.get("cudnn"), "the setting cudnn is off")
        return self._cudnn.prepare(convolution, rival)

    def elapsed(self, work: Callable[[], None]) -> float:
        """Return the milliseconds that the GPU takes for what ``work`` queues, once it is warm."""
        work()
        begin, end = (self._cupy.cuda.Event() for _ in range(2))
        begin.record()
        for _ in range(TIMED):
            work()
        end.record()
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / TIMED

    @cached_property
    def _cudnn(self) -> Cudnn:
        load()  # cuDNN takes the cuBLAS that is loaded, and ends the process where it finds none
        return Cudnn(self, self._device.id)

    def _handle(self) -> Handle:
        mine, home = self._local.handles, self.home().ptr
        found = mine.find(home)
        if found is None:
            if self._cublas is None:
                self._cublas = Cublas(load())
            workspace = self._cupy.empty(CUBLAS_WORKSPACE, "uint8")
            place = (workspace.data.ptr, workspace.nbytes)
            found = mine.keep(home, (Handle(self._cublas, place), workspace))
        found[0].use(self.stream())
        return found[0]

    def stream(self) -> int:
        """Return the address of the stream that is current."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def home(self) -> Any:
        """Return the stream on which work runs that is queued now, or recorded."""
        home = self._local.home
        return self._cupy.cuda.get_current_stream(self._device.id) if home is None else home

    @contextmanager
    def recording(self, home: Any, updates: list[Callable[[], None]]) -> Iterator[None]:
        """Collect input updates in ``updates``, for work that is captured, to run on ``home``."""
        self._local.home, self.input_updates = home, updates
        try:
            yield
        finally:
            self._local.home = self.input_updates = None
