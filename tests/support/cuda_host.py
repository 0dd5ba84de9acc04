"""The cupy backend's kernels and Steps, run on the host by g++ and ctypes.

What runs is the real thing: the text of the ``.cu`` files, the Steps, the arguments of every
launch and of every matrix product. Only the launcher, the memory and the library behind the
products are others. ``host_cuda()`` is a device like any other, so nets can be made on it::

    net = Net("lenet.prototxt", device=host_cuda())

Tests that ask for a ``place`` run there and, on a machine that has one, on a GPU.

DEMITASSE_KERNEL_FLAGS goes to g++ as well. With ``-fsanitize=thread`` in it (and libtsan in
LD_PRELOAD) a barrier that a kernel lacks is a data race; ``-fsanitize=address,undefined`` (and
libasan, and PYTHONMALLOC=malloc) sees what is read or written beside an array.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from demitasse.backends.base import Backend
from demitasse.backends.cupy import CupyBackend
from demitasse.backends.cupy.library.cublas import Cublas, Handle
from demitasse.backends.cupy.library.engine import Engine, Grid, Launch
from demitasse.backends.cupy.library.gemm import Product
from demitasse.backends.cupy.library.sources import source
from demitasse.backends.cupy.steps.fusion import fuse
from demitasse.backends.cupy.updates import Updates
from demitasse.backends.ops import Op
from demitasse.backends.step import AnyStep, Lowerings, Operands
from demitasse.device import Device
from demitasse.errors import DeviceError

SUPPORT = Path(__file__).resolve().parent
C_TYPES = {
    np.dtype("int32"): ctypes.c_int32,
    np.dtype("int64"): ctypes.c_int64,
    np.dtype("uint32"): ctypes.c_uint32,
    np.dtype("uint64"): ctypes.c_uint64,
    np.dtype("float32"): ctypes.c_float,
    np.dtype("float64"): ctypes.c_double,
}


def need_compiler() -> None:
    """Skip where there is no g++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the host")


@cache
def kept() -> Path:
    """A folder for what is compiled, kept between runs, told apart by its sources."""
    folder = Path(tempfile.gettempdir()) / "demitasse-host-kernels"
    folder.mkdir(exist_ok=True)
    return folder


def _extra() -> list[str]:
    return shlex.split(os.environ.get("DEMITASSE_KERNEL_FLAGS", ""))


def compiled(text: str, *flags: str) -> ctypes.CDLL:
    """Compile C++ to a shared library, unless that was done before, and load it."""
    name = hashlib.sha256("\0".join((text, *flags, *_extra())).encode()).hexdigest()[:24]
    library = kept() / f"{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=kept()) as folder:
            code, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            code.write_text(text)
            warnings = ["-Wall", "-Wextra", "-Wno-unused-function", "-Werror"]
            command = ["g++", "-O2", "-shared", "-fPIC", "-pthread", *warnings, *flags, *_extra()]
            subprocess.run([*command, "-o", made, code], check=True)
            made.replace(library)  # at once: other processes never load a part of it
    return ctypes.CDLL(str(library))


def kernels(family: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """One family of kernels as host functions."""
    need_compiler()
    return compiled((SUPPORT / "cuda_shim.h").read_text() + source(family), *flags)


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class HostEngine(Engine):
    """Runs kernels on numpy arrays.

    Attributes:
        launched: Names of the kernels that ran.
    """

    def __init__(self, grid: Grid | None = None) -> None:
        self.grid = Grid(1, 1) if grid is None else grid
        self.launched: list[str] = []
        self._scratch = np.empty(0, np.uint8)

    def function(
        self, family: str, name: str, flags: tuple[str, ...], grid: Grid, numbers: tuple[Any, ...]
    ) -> Launch:
        assert 1 <= grid.blocks < 2**31
        assert grid.threads in {32, 64, 128, 256, 512}
        library = kernels(family, flags)
        function = getattr(library, name)
        fixed = [C_TYPES[np.asarray(n).dtype](n.item()) for n in numbers]

        def launch(*arrays: np.ndarray) -> None:
            arrays = tuple(map(np.asarray, arrays))  # numpy's sums are scalars, cupy's are arrays
            assert all(a.flags.c_contiguous for a in arrays)
            self.launched.append(name)
            arguments = [*map(pointer, arrays), *fixed]
            self._run(library, function, arguments)

        return launch

    def _run(self, library: ctypes.CDLL, function: Any, arguments: list[Any]) -> None:
        blocks, threads = self.grid.blocks, self.grid.threads

        def thread(index: int, block: int) -> None:
            library.shim_stand(index, threads, block, blocks)
            function(*arguments)

        for block in range(blocks):
            if threads == 1:
                thread(0, block)
                continue
            crew = [threading.Thread(target=thread, args=(i, block)) for i in range(threads)]
            for one in crew:
                one.start()
            for one in crew:
                one.join()

    def scratch(self, dtype: str, *counts: int) -> list[np.ndarray]:
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

    def address(self, array: np.ndarray) -> int:
        return int(array.ctypes.data)

    def multiply(self, product: Product, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        assert all(x.flags.c_contiguous and x.dtype == product.dtype for x in (a, b, out))
        self._handle.multiply(product, a.ctypes.data, b.ctypes.data, out.ctypes.data)

    @cached_property
    def _handle(self) -> Handle:
        need_compiler()
        library = compiled((SUPPORT / "cuda_blas.cpp").read_text())
        return Handle(Cublas(library), 0, (1, 1), tf32=False)


class HostCudaBackend(Backend):
    """The cupy backend's Steps over numpy arrays that are not the host side's."""

    name = "host-cuda"
    lowerings: ClassVar[Lowerings] = CupyBackend.lowerings
    xp = np
    array_device = "cpu"

    @classmethod
    def devices(cls) -> list[str]:
        return ["host-cuda"]

    def zeros(self, size: int, dtype: str) -> np.ndarray:
        return np.zeros(size, dtype)

    def upload(self, host: np.ndarray, device: np.ndarray) -> None:
        device[...] = host

    def download(self, device: np.ndarray, host: np.ndarray) -> None:
        host[...] = device

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

    @property
    def updates(self) -> Updates:
        return Updates(self.engine)

    def random_bits(self, *args: int) -> np.ndarray:
        return self.engine.random_bits(*args)


def cuda_at(place: str | tuple[int, int]) -> Device:
    """Return a GPU, or the stand-in for "host" or a grid; skips or fails where there is none."""
    if place == "host":
        return host_cuda()
    if isinstance(place, tuple):
        return host_cuda(*place)
    try:
        device = Device(place)
        device.backend.synchronize()
    except DeviceError as error:
        if os.environ.get("DEMITASSE_REQUIRE_GPU") == "1":
            pytest.fail(f"DEMITASSE_REQUIRE_GPU=1, but: {error}")
        pytest.skip(f"no GPU: {error}")
    return device


def host_cuda(blocks: int = 1, threads: int = 1) -> Device:
    """Return a new device that runs the GPU's kernels on the host."""
    need_compiler()
    device = object.__new__(Device)
    device.name = device.kind = "host-cuda"
    device.index, device.backend = "", HostCudaBackend()
    device.backend.engine.grid = Grid(blocks, threads)
    return device
