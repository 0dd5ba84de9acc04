"""The cupy backend's kernels and Steps, run on the host by g++ and ctypes.

What runs is the real thing: the text of the ``.cu`` files, the Steps, the arguments of every
launch and of every matrix product. Only the launcher, the memory and the library behind the
products are others. ``host_cuda()`` is a device like any other, so nets can be made on it::

    net = Net("lenet.prototxt", device=host_cuda())

Tests that ask for a ``place`` run there and, on a machine that has one, on a GPU.

DEMITASSE_KERNEL_FLAGS goes to g++ as well. With ``-fsanitize=address,undefined`` in it (and libasan
in LD_PRELOAD, and PYTHONMALLOC=malloc) what is read or written beside an array is seen.
"""

import ctypes
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pytest
from gpu import blas, plugin
from gpu.host import Kernels, kernels

from demitasse.backends.base import Backend
from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library.convolutions import Convolution, Rival
from demitasse.backends.cupy.library.cublas import Cublas, CublasHandle, Product
from demitasse.backends.cupy.library.cudnn import Cudnn, Executable
from demitasse.backends.cupy.library.engine import Engine, Grid, Launch, source
from demitasse.backends.cupy.steps.fusion import fuse
from demitasse.backends.cupy.updates import Updates
from demitasse.backends.ops import Op
from demitasse.backends.recording import NotRecorded
from demitasse.backends.step import AnyStep, Declined, Lowerings, Operands
from demitasse.backends.storage import array_dtype, computed
from demitasse.core.device import Device


def need_compiler() -> None:
    """Skip where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the host")


def pointer(array: np.ndarray) -> np.ndarray:
    return np.array([array.ctypes.data], np.uint64)


class HostEngine(Engine):
    """Runs kernels on numpy arrays.

    Attributes:
        launched: Names of the kernels that ran.
        cudnn: What computes convolutions, or None for our own kernels.
    """

    cudnn: Cudnn | None = None
    input_updates: list[Callable[[], None]] | None = None
    nbytes = 0

    def __init__(self, grid: Grid | None = None) -> None:
        self.grid = Grid(1, 1) if grid is None else grid
        self.launched: list[str] = []
        self.tape: list[Callable[[], None]] = []
        self._scratch = np.empty(0, np.uint8)

    def function(
        self, family: str, name: str, flags: tuple[str, ...], grid: Grid, numbers: tuple[Any, ...]
    ) -> Launch:
        assert 1 <= grid.blocks < 2**31
        assert grid.threads in {32, 64, 128, 256, 512}
        need_compiler()
        library, function = kernels(source(family), flags), name
        fixed = [np.array([n]) for n in numbers]

        def launch(*arrays: np.ndarray) -> None:
            arrays = tuple(map(np.asarray, arrays))  # numpy's sums are scalars, cupy's are arrays
            assert all(a.flags.c_contiguous for a in arrays)
            self.launched.append(name)
            arguments = [*map(pointer, arrays), *fixed]
            self.do(lambda _=arrays: self._run(library, function, arguments))

        return launch

    def do(self, work: Callable[[], None]) -> None:
        """Do what the device would, or keep it while it is recorded."""
        if self.input_updates is None:
            work()
        else:
            self.tape.append(work)

    def _run(self, library: Kernels, name: str, arguments: list[np.ndarray]) -> None:
        grid = self.grid
        library.run(name, (grid.blocks, 1, 1), (grid.threads, 1, 1), arguments)

    def scratch(self, dtype: str, *counts: int) -> list[np.ndarray]:
        dtype = array_dtype(dtype)
        width = np.dtype(dtype).itemsize
        if self._scratch.size < sum(counts) * width:
            self._scratch = np.empty(sum(counts) * width, np.uint8)
        self._scratch[:] = 255  # NaN: what is read before it is written shows
        parts, start = [], 0
        for count in counts:
            parts.append(self._scratch[start : start + count * width].view(dtype))
            start += count * width
        return parts

    def empty(self, count: int, dtype: str) -> np.ndarray:
        return np.full(count, 99, dtype)

    def asarray(self, host: np.ndarray) -> np.ndarray:
        return np.array(host)

    def put(self, host: np.ndarray, array: np.ndarray) -> None:
        assert self.input_updates is None  # CUDA refuses copies from the host while it records
        array[...] = host

    def address(self, array: np.ndarray) -> int:
        return int(array.ctypes.data)

    def multiply(self, product: Product, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        dtype = array_dtype(product.dtype)
        result = computed(product.dtype) if product.wide else dtype
        assert all(x.flags.c_contiguous for x in (a, b, out))
        assert [x.dtype for x in (a, b, out)] == [dtype, dtype, result]
        self.do(lambda: self._handle.multiply(product, *(x.ctypes.data for x in (a, b, out))))

    def prepare_convolution(
        self, convolution: Convolution, rival: Rival | None = None
    ) -> Executable:
        if self.cudnn is None:
            raise Declined("no cuDNN on the host")
        return self.cudnn.prepare(convolution, rival)

    @cached_property
    def _handle(self) -> CublasHandle:
        need_compiler()
        handle = CublasHandle(Cublas(ctypes.CDLL(str(blas.at_once()))), (256, 1))
        handle.use(0)
        return handle


class HostRecorder:
    """Keeps what kernels, products and fills are asked for."""

    computes = False

    def __init__(self, engine: HostEngine) -> None:
        self.engine = engine

    def key(self) -> None:
        return None

    def record(self, work: Callable[[], None]) -> "HostRecording":
        engine, updates = self.engine, []
        engine.input_updates, engine.tape = updates, []
        try:
            work()
        except RuntimeError as error:
            raise NotRecorded(str(error)) from error
        finally:
            engine.input_updates = None
        return HostRecording(updates, engine.tape)


class HostRecording:
    """What was kept."""

    compiled = False

    def __init__(self, updates: list[Callable[[], None]], tape: list[Callable[[], None]]) -> None:
        self.updates, self.tape = updates, tape

    @property
    def nbytes(self) -> int:
        return 0

    def play(self) -> None:
        for one in (*self.updates, *self.tape):
            one()


class HostCudaBackend(Backend):
    """The cupy backend's Steps over numpy arrays that are not the host side's."""

    name = "host-cuda"
    queues = True
    lowerings: ClassVar[Lowerings] = CupyBackend.lowerings
    storages, trains_narrow = CupyBackend.storages, CupyBackend.trains_narrow
    xp = np
    array_device = "cpu"

    @classmethod
    def devices(cls) -> list[str]:
        return ["host-cuda"]

    def zeros(self, size: int, dtype: str) -> np.ndarray:
        return np.zeros(size, dtype)

    def upload(self, host: np.ndarray, device: np.ndarray) -> None:
        self.refuse_while_recording()
        device[...] = host

    def download(self, device: np.ndarray, host: np.ndarray) -> None:
        self.refuse_while_recording()
        host[...] = device

    def refuse_while_recording(self) -> None:
        """Refuse copies, as cupy does."""
        if self.engine.input_updates is not None:
            raise RuntimeError("copies between host and device cannot be captured")

    def fill(self, array: np.ndarray, value: float) -> None:
        self.engine.do(lambda: array.fill(value))

    def asarray(self, host: np.ndarray) -> np.ndarray:
        return np.array(host)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def guard(self, array: np.ndarray) -> np.ndarray:
        view = array.view()
        view.flags.writeable = False
        return view

    def fuse(
        self, chain: Sequence[Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
    ) -> AnyStep:
        return fuse(self.engine, chain, at, steps)

    @cached_property
    def engine(self) -> HostEngine:
        return HostEngine()

    @cached_property
    def recorder(self) -> HostRecorder:
        return HostRecorder(self.engine)

    @cached_property
    def updates(self) -> Updates:
        return Updates(self.engine)

    def narrow(self, array: np.ndarray, storage: str, out=None) -> np.ndarray:
        return self.engine.narrow(np.ascontiguousarray(array), storage, out)

    def widen(self, array: np.ndarray, storage: str) -> np.ndarray:
        return self.engine.widen(array, storage)

    def reordered(self, array: np.ndarray, here: Any, there: Any) -> np.ndarray:
        return self.engine.reordered(array, here, there)

    def dot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.engine.dot(a, b)

    def copier(self, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Callable[[], None]:
        return self.updates.copier(pairs)

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.engine.add(a, b)

    def random_bits(self, *args: int) -> np.ndarray:
        return self.engine.random_bits(*args)


def cuda_at(place: str | tuple[int, int]) -> Device:
    """Return the kernels on the host for "host" or a grid; or else a GPU, real or the stand-in's.

    Fails where there must be a real one and is none.
    """
    if place == "host":
        return host_cuda()
    if isinstance(place, tuple):
        return host_cuda(*place)
    plugin.need(place)
    return Device(place)


def host_cuda(blocks: int = 1, threads: int = 1) -> Device:
    """Return a new device that runs the GPU's kernels on the host."""
    need_compiler()
    device = object.__new__(Device)
    device.name = device.kind = "host-cuda"
    device.index, device.backend = "", HostCudaBackend()
    device.backend.engine.grid = Grid(blocks, threads)
    return device
