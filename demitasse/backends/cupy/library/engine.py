"""Engine of the Steps on a GPU: kernels by name, products, scratch memory, device scalars."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from demitasse.backends.arrays import Array, Event
from demitasse.backends.cupy.library.convolutions import Convolution, Rival
from demitasse.backends.cupy.library.cublas import (
    CUBLAS_WORKSPACE,
    Cublas,
    CublasHandle,
    Product,
    load,
)
from demitasse.backends.cupy.library.cublas_lt import BiasProduct, CublasLt
from demitasse.backends.cupy.library.cudnn import Cudnn, Executable
from demitasse.backends.cupy.library.memory_pools import pinned_memory
from demitasse.backends.cupy.library.uploads import InFlightCopies
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.random import MASK, WORDS_PER_BLOCK, Draw
from demitasse.backends.step import Declined, decline_if
from demitasse.backends.storage import array_dtype, computed
from demitasse.core.config import settings
from demitasse.errors import DeviceError

FAMILIES = (
    "activation", "batch_norm", "conv", "elementwise", "function", "input", "loss", "lrn", "pool",
    "random", "region", "softmax", "storage", "sums", "update",
)  # fmt: skip

MOST_THREADS = 512
"""Most threads in a block that adds up or compares; ``common.cuh`` has the same number."""

ALIGNMENT = 256  # bytes that the beginning of every scratch array is a multiple of

STREAMS = 4
"""Streams per thread that have scratch memory, and a cuBLAS handle with its workspace."""

TILE = 32
"""Rows and columns that a block transposes at a time; ``SIDE`` in ``storage.cu``."""

TIMED = 5  # repetitions of a timed piece of work

REAL = {"float32": "float", "float64": "double"}

STORED = {"half": 1, "bfloat16": 2}
"""Type name in the CUDA sources by storage dtype; 0 for ``Real``."""


@cache
def source(family: str) -> str:
    """Return the text of one family of kernels, after the text that all families share."""
    folder = files("demitasse.backends.cupy") / "kernels"
    common = (folder / "common.cuh").read_text(encoding="utf-8")
    return common + (folder / f"{family}.cu").read_text(encoding="utf-8")


def options(dtype: str, *, wide: bool) -> tuple[str, ...]:
    """Return the options that choose the types ``Real``, ``Stored`` and ``Index`` of the sources.

    "half" and "bfloat16" are for float32 kept in 16 bits. With ``wide``, indices have 64 bits.
    """
    real, stored = REAL.get(dtype, "float"), STORED.get(dtype, 0)
    return ("-std=c++17", f"-DReal={real}", f"-DSTORED={stored}", f"-DWIDE={int(wide)}")


THREADS = 256  # threads in a block of a kernel that has no rows
PACK = 16  # bytes that a thread reads and writes at a time where arrays are aligned

WIDE = 1 << 30
"""Most elements of an array that kernels index with 32 bits; far enough below 2^31 that adding the
size of a grid does not overflow."""

Launch = Callable[..., None]  # a kernel with its size and numbers fixed; called with its arrays


@dataclass(frozen=True)
class Grid:
    """Launch configuration: blocks of a grid, threads of a block."""

    blocks: int
    threads: int


class _Local(threading.local):
    """Scratch memory and handles of each thread, for its ``STREAMS`` last streams.

    Older entries are released although their stream may still use them: cupy's pool reuses memory
    only for later work on the same stream.

    Attributes:
        home: The stream that a capture replaces, or None.
        input_updates: Copies of numbers of the host before each replay; None without a capture.
    """

    def __init__(self) -> None:
        self.home: Any = None
        self.input_updates: list[Callable[[], None]] | None = None
        self.scratch: LRUCache[Array] = LRUCache(STREAMS)
        self.handles: LRUCache[tuple[CublasHandle, Array]] = LRUCache(STREAMS)


class Engine:
    """Kernels compiled by NVRTC, products by cuBLAS, convolutions by cuDNN if it is installed.

    All work is queued on the current stream.

    Every thread has its own scratch memory and cuBLAS handle for each stream, so that concurrent
    work uses different memory. Scratch memory grows to the size that the largest layer needs; a
    recorded CUDA graph must keep the result of ``scratch_memory`` alive. Recorded work uses the
    scratch memory of its *home*, the stream on which it will run.
    """

    most_blocks: int = 4096
    """Most blocks of a launch; each block loops over the remaining elements."""

    column_budget: int = 1 << 29
    """Bytes that one convolution may use for columns, unless a single sample needs more, or as the
    workspace of a library."""

    def __init__(self, cupy: Any, device: Any) -> None:
        self._cupy, self._device, self._local = cupy, device, _Local()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.most_blocks = 32 * int(properties["multiProcessorCount"])
        self.column_budget = min(self.column_budget, int(device.mem_info[1]) // 16)
        self._kernel = cache(self._compile)
        self.in_flight = InFlightCopies()

    @property
    def input_updates(self) -> list[Callable[[], None]] | None:
        """Copies of host numbers before each replay, while this thread records; otherwise None."""
        return self._local.input_updates

    def update_input(self, update: Callable[[], None]) -> None:
        """Copy the present numbers to the device now, or before each replay of recorded work."""
        if self.input_updates is None:
            update()
        else:
            self.input_updates.append(update)

    def elementwise(
        self, family: str, name: str, dtype: str, count: int, *numbers: float, reach: int = 0
    ) -> Launch:
        """Return kernel ``name`` of a family, with one thread for each of ``count`` elements.

        A kernel computes in "float32" or "float64"; "half" and "bfloat16" keep float32 in 16 bits.
        The arguments after the arrays are ``count`` and ``numbers``: int becomes an index, float a
        value of ``dtype``. ``reach`` is the size of the largest array, if more than ``count``.
        """
        grid = self._grid(count)
        return self._launch(family, name, dtype, grid, max(count, reach), (count, *numbers))

    def vectorized(
        self, family: str, name: str, dtype: str, count: int, *numbers: float, reach: int = 0
    ) -> Launch:
        """Return a kernel that has one thread for 16 bytes of ``count`` elements."""
        grid = self._grid(-(-count * np.dtype(array_dtype(dtype)).itemsize // PACK))
        return self._launch(family, name, dtype, grid, max(count, reach), (count, *numbers))

    def row_blocks(
        self, family: str, name: str, dtype: str, count: int, length: int, *numbers: float,
        reach: int = 0,
    ) -> Launch:  # fmt: skip
        """Return a kernel that has one block for each of ``count`` rows, of ``length`` elements.

        ``numbers`` are all arguments after the arrays; see ``elementwise``.
        """
        threads = 32
        while threads < min(length, MOST_THREADS):
            threads *= 2
        grid = Grid(min(count, self.most_blocks), threads)
        return self._launch(family, name, dtype, grid, max(count * length, reach), numbers)

    def _grid(self, threads: int) -> Grid:
        return Grid(min(-(-threads // THREADS), self.most_blocks), THREADS)

    def _launch(
        self, family: str, name: str, dtype: str, grid: Grid, reach: int, numbers: Sequence[float]
    ) -> Launch:
        if not grid.blocks:
            return _nothing
        wide = reach > WIDE
        real = np.dtype(computed(dtype)).type
        index = np.int64 if wide else np.int32
        arguments = tuple(real(n) if isinstance(n, float) else index(n) for n in numbers)
        return self.function(family, name, options(dtype, wide=wide), grid, arguments)

    def dot(self, a: Array, b: Array) -> Array:
        """Return the sum of the products of two arrays' elements. Shapes: any, the same -> ()."""
        dtype, count = str(a.dtype), int(a.size)
        total = self.empty(1, dtype)
        self.row_blocks("elementwise", "dot", dtype, 1, count, count)(a, b, total)
        return total.reshape(())

    def add(self, a: Array, b: Array) -> Array:
        """Return a + b. Shapes: () -> ()."""
        dtype = str(a.dtype)
        total = self.empty(1, dtype)
        self.elementwise("elementwise", "weighted_sum", dtype, 1, 1.0, 1.0)(a, b, total)
        return total.reshape(())

    def narrow(self, array: Array, kind: str, out: Array | None = None) -> Array:
        """Write float32 values to an array of 16 bits, which is new unless one is given.

        Shapes: any -> the same; ``out`` has as many elements.
        """
        count = int(array.size)
        target = self.empty(count, array_dtype(kind)) if out is None else out
        self.vectorized("storage", "narrow", kind, count)(array, target)
        return target if out is not None else target.reshape(array.shape)

    def widen(self, array: Array, kind: str) -> Array:
        """Return float32 values of an array of 16 bits. Shapes: any -> the same."""
        count = int(array.size)
        target = self.empty(count, "float32")
        self.vectorized("storage", "widen", kind, count, 0)(array, target)
        return target.reshape(array.shape)

    def transposed(self, name: str, dtype: str, sizes: tuple[int, int, int], *add: int) -> Launch:
        """Return a kernel that transposes matrices. Sizes: (samples, rows, columns).

        ``name`` is "transposed", or "transposed_sum" with ``add``.
        """
        samples, rows, columns = sizes
        tiles, tile = samples * -(-rows // TILE) * -(-columns // TILE), TILE * TILE
        return self.row_blocks("storage", name, dtype, tiles, tile, *sizes, *add)

    def reordered(self, array: Array, here: Any, there: Any) -> Array:
        """Return elements in another layout, in a new array; see ``Backend.reordered``."""
        # bits are copied, so one type of 16 bits stands for the other
        dtype = "half" if array.dtype.itemsize == 2 else str(array.dtype)
        for layout, last in ((here, False), (there, True)):
            if layout is not None:
                rows = (layout.channels, layout.plane)
                sizes = (layout.samples, *(rows if last else rows[::-1]))
                source, array = array, self.empty(int(array.size), str(array.dtype))
                self.transposed("transposed", dtype, sizes)(source, array)
        return array

    def dropout(self, dtype: str, count: int, draw: Draw, threshold: int, factor: float) -> Launch:
        """Return a kernel: x -> y, mask, by the words of the pass whose number it reads.

        The number of the pass is the kernel's last array, (1,), uint64. The mask is 0 where a word
        is not above ``threshold``, and ``factor`` elsewhere.
        """
        if not count:
            return _nothing
        blocks = -(-count // WORDS_PER_BLOCK)
        numbers = (
            *(np.int64(n) for n in (blocks, count)),
            *(np.uint64(word & MASK) for word in (draw.seed, draw.stream, threshold)),
            np.dtype(computed(dtype)).type(factor),
        )
        flags = options(dtype, wide=count > WIDE)
        return self.function("random", "dropout", flags, self._grid(blocks), numbers)

    def random_bits(self, seed: int, stream: int, passes: int, count: int, first: int = 0) -> Array:
        """Return random words, as ``demitasse.backends.random.bits`` does. Shape: (count,)."""
        out = self.empty(count, "uint32")
        if not count:
            return out
        blocks = -(-(first + count) // WORDS_PER_BLOCK) - first // WORDS_PER_BLOCK
        numbers = (
            *(np.int64(n) for n in (blocks, first, count)),
            *(np.uint64(word & MASK) for word in (seed, stream, passes)),
        )
        flags = options("float32", wide=False)
        self.function("random", "philox", flags, self._grid(blocks), numbers)(out)
        return out

    def function(
        self, family: str, name: str, flags: tuple[str, ...], grid: Grid, numbers: tuple[Any, ...]
    ) -> Launch:
        """Return kernel ``name`` of ``family``, compiled with ``flags``, bound to its numbers."""
        kernel = self._kernel(family, name, flags)
        blocks, threads = (grid.blocks,), (grid.threads,)

        def launch(*arrays: Array) -> None:
            kernel(blocks, threads, (*arrays, *numbers))

        return launch

    def _compile(self, family: str, name: str, flags: tuple[str, ...]) -> Any:
        # cupy keeps the compiled module, in memory and on disk, by text and options
        return self._cupy.RawModule(code=source(family), options=flags).get_function(name)

    def scratch(self, dtype: str, *counts: int) -> list[Array]:
        """Return arrays with these numbers of elements; the next caller gets the same memory.

        Shapes: (count,) each, not initialised.
        """
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
        """Bytes of scratch memory and workspaces that this thread's Steps share."""
        handles = (memory for _, memory in self._local.handles.values())
        return sum(int(memory.nbytes) for memory in (*self._local.scratch.values(), *handles))

    def scratch_memory(self, nbytes: int = 0) -> Array:
        """Return the scratch memory of this thread and stream, of at least ``nbytes`` bytes."""
        mine, home = self._local.scratch, self.work_stream().ptr
        found = mine.find(home)
        if found is None or found.size < nbytes:
            found = None
            mine.pop(home, None)  # releases the old memory before the allocation
            found = mine.keep(home, self._cupy.empty(max(nbytes, ALIGNMENT), "uint8"))
        return found

    def held(self) -> tuple[object, ...]:
        """Return scratch memory and handles of this thread, to be kept while a graph uses them."""
        return (*self._local.scratch.values(), *self._local.handles.values())

    def empty(self, count: int, dtype: str) -> Array:
        """Return a new array that is not initialised. Shape: (count,)."""
        return self._cupy.empty(count, dtype)

    def asarray(self, host: np.ndarray) -> Array:
        """Return a copy of a host array on the device."""
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
        """Queue a copy of a host array, which may be overwritten at once, into one of its size."""
        # GPUs that use the host's page tables read ordinary memory when the copy runs
        staged = pinned_memory(self._cupy, host.size, str(host.dtype)).reshape(host.shape)
        staged[...] = host
        self.upload(staged, array)

    def address(self, array: Array) -> int:
        """Return the address of an array in the device's memory."""
        return int(array.data.ptr)

    def multiply(self, product: Product, a: Array, b: Array, out: Array) -> None:
        """Compute a matrix product of contiguous arrays into ``out``."""
        rounds = self.rounds(product)
        self._handle().multiply(product, *map(self.address, (a, b, out)), rounds=rounds)

    @staticmethod
    def rounds(product: Product) -> bool:
        """Return whether a product may round float32 to TF32 now."""
        rounding = settings.get_often("tf32")
        return bool(rounding == "on" or (product.convolution and rounding == "auto"))

    def prepare_bias_product(self, product: Product) -> BiasProduct:
        """Return a product that adds a bias, ready to run; may raise Declined."""
        try:
            return BiasProduct(self._cublas_lt, self, product)
        except DeviceError as error:
            raise Declined(str(error)) from error

    @cached_property
    def _cublas(self) -> Cublas:
        return Cublas(load())

    @cached_property
    def _cublas_lt(self) -> CublasLt:
        return CublasLt(load("cublasLt"))

    def prepare_convolution(
        self, convolution: Convolution, rival: Rival | None = None
    ) -> Executable:
        """Return a convolution of a library, ready to run; may raise Declined.

        ``rival`` is other code for it, which is timed, too, where plans are timed.
        """
        decline_if(not settings.get("cudnn"), "the setting cudnn is off")
        return self._cudnn.prepare(convolution, rival)

    def elapsed(self, work: Callable[[], None]) -> float:
        """Return the mean time of queued work on the GPU, after a first run, in milliseconds."""
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
        load()  # cuDNN uses the loaded cuBLAS, and ends the process if none can be found
        return Cudnn(self, self._device.id)

    def _handle(self) -> CublasHandle:
        mine, home = self._local.handles, self.work_stream().ptr
        found = mine.find(home)
        if found is None:
            workspace = self._cupy.empty(CUBLAS_WORKSPACE, "uint8")
            place = (workspace.data.ptr, workspace.nbytes)
            found = mine.keep(home, (CublasHandle(self._cublas, place), workspace))
        found[0].use(self.stream())
        return found[0]

    def stream(self) -> int:
        """Return the address of the stream that is current."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def work_stream(self) -> Any:
        """Return the stream on which work runs that is queued now, or recorded."""
        home = self._local.home
        return self._cupy.cuda.get_current_stream(self._device.id) if home is None else home

    @contextmanager
    def recording(self, home: Any, updates: list[Callable[[], None]]) -> Iterator[None]:
        """Collect input updates in ``updates``, for work that is captured, to run on ``home``."""
        self._local.home, self._local.input_updates = home, updates
        try:
            yield
        finally:
            self._local.home = self._local.input_updates = None


def _nothing(*arrays: Array) -> None:
    """Do nothing: the kernel for 0 elements."""


class DeviceScalars:
    """A small device array of numbers from the host.

    A kernel's own arguments are constant after graph capture; numbers that it reads from this array
    can change. Nothing is written during the capture; the array is written before each replay.
    """

    def __init__(self, engine: Engine, count: int, dtype: str) -> None:
        self.array: Array = engine.empty(count, dtype)
        self._engine, self._held = engine, b""

    def holding(self, values: Callable[[], np.ndarray]) -> Array:
        """Return the array, filled with the present values, now or before each replay."""
        self._engine.update_input(lambda: self.write(values()))
        return self.array

    def write(self, values: np.ndarray) -> None:
        """Copy numbers to the device, unless it has the same ones. Shape: (count,)."""
        bits = values.tobytes()
        if bits != self._held:
            self._held = b""  # in case the copy fails
            self._engine.put(values, self.array)
            self._held = bits
