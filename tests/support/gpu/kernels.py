"""RawModule and RawKernel: our kernels on the host, their arguments held against the source."""

from __future__ import annotations

import math
import subprocess
from typing import Any

import numpy as np

from gpu import machine
from gpu.arrays import ndarray
from gpu.errors import CompileException, CUDADriverError, Misuse
from gpu.host import Kernels, Parameter, kernels
from gpu.streams import get_current_stream

order = 0
"""In which order threads and blocks run: 0 as numbered, 1 the other way round, others shuffled."""

grid: tuple[int, int] | None = None
"""Blocks and threads of every launch instead of what was asked for; None for that."""

launched: list[str] = []
"""Names of the kernels that were launched, for tests that count them."""

MOST_THREADS = 1024


class RawModule:
    """As ``cupy.RawModule``."""

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: Any = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False, name_expressions: Any = None,
        jitify: bool = False,
    ) -> None:  # fmt: skip
        if code is None:
            raise NotImplementedError("the stand-in compiles source text")
        self.code, self.options = code, tuple(options)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self.code, name, self.options)

    def compile(self, log_stream: Any = None) -> None:
        _compiled(self.code, self.options)


class RawKernel:
    """As ``cupy.RawKernel``."""

    def __init__(
        self, code: str, name: str, options: Any = (), backend: str = "nvrtc",
        translate_cucomplex: bool = False, *, enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self._kernels = _compiled(code, tuple(options))
        if name not in self._kernels.names:
            raise CUDADriverError(500)  # CUDA_ERROR_NOT_FOUND

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        stream = get_current_stream()
        blocks, threads = _size(grid, block)
        if shared_mem:
            raise NotImplementedError("the stand-in has no dynamic shared memory")
        values = [
            _value(f"{self.name}, argument {i}", parameter, arg, args)
            for i, (parameter, arg) in enumerate(
                zip(self._checked(args), args, strict=True), start=1
            )
        ]
        launched.append(self.name)
        how = order
        stream.queue.add(lambda: self._run(blocks, threads, values, how))

    def _checked(self, args: Any) -> list[Parameter]:
        parameters = self._kernels.signature(self.name)
        if len(parameters) != len(args):
            message = f"{self.name} has {len(parameters)} parameters, {len(args)} were given"
            raise Misuse(message)
        return parameters

    def _run(self, blocks: Any, threads: Any, values: Any, how: int) -> None:
        try:
            self._kernels.run(self.name, blocks, threads, values, how)
        except AssertionError as error:
            raise Misuse(str(error)) from None


def _compiled(code: str, options: tuple[str, ...]) -> Kernels:
    try:
        return kernels(code, options)
    except subprocess.CalledProcessError as error:
        raise CompileException(error.stderr, code, "kernels.cu", options, "nvrtc") from None


def _size(blocks: Any, threads: Any) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return grid and block in three numbers each, as they will run."""
    if grid is not None:
        blocks, threads = (grid[0],), (grid[1],)
    full = tuple(tuple(int(n) for n in (*given, 1, 1)[:3]) for given in (blocks, threads))
    if not 1 <= full[0][0] < 2**31 or not 1 <= math.prod(full[1]) <= MOST_THREADS:
        raise CUDADriverError(1)  # CUDA_ERROR_INVALID_VALUE
    return full  # type: ignore[return-value]


def _value(what: str, parameter: Parameter, arg: Any, args: Any) -> np.ndarray:
    """Return an argument as an array of one value, of exactly the type that the kernel reads.

    An array that is among ``args`` twice may be of another type: it stands for one that the kernel
    is told to leave alone.

    Raises:
        Misuse: It has another type, or is an address that the current GPU cannot read.
    """
    if isinstance(arg, ndarray):
        _check_array(what, parameter, arg, args)
        return np.array([arg.data.ptr if arg.size else 0], np.uint64)  # cupy has none for nothing
    if arg is None:
        arg = np.uint64(0)
        given = np.array([arg])
        if not parameter.pointer:
            raise Misuse(f"{what}: None for {parameter}")
        return given
    given = np.array([arg])  # Python's int is int64 and float is float64, as in cupy
    dtype = given.dtype
    size = 8 if parameter.pointer else parameter.size
    kind = "u" if parameter.pointer else parameter.kind
    if dtype.itemsize != size or (dtype.kind != kind and parameter.kind != "V"):
        message = f"{what}: {dtype.name} was given, the kernel reads {parameter}"
        raise Misuse(message)
    return given


def _check_array(what: str, parameter: Parameter, array: ndarray, args: Any) -> None:
    """See that a kernel reads an array as what it is.

    Raises:
        Misuse: It does not.
    """
    if not parameter.pointer:
        raise Misuse(f"{what}: an array was given, the kernel reads {parameter}")
    plain = parameter.kind in "fiub" and parameter.size
    right = (array.dtype.kind, array.itemsize) == (parameter.kind, parameter.size)
    if plain and not right and sum(other is array for other in args) < 2:
        message = f"{what}: an array of {array.dtype} was given, the kernel reads {parameter}"
        raise Misuse(message)
    if not array.flags.c_contiguous:
        raise Misuse(f"{what}: the array is not contiguous")
    if array.size and array.data.ptr % parameter.alignment:
        raise Misuse(f"{what}: the array does not begin at a multiple of {parameter.alignment}")
    here = machine.current()
    if array.size and not here.owns(array.data.ptr, array.nbytes):
        message = f"{what}: an array of cuda:{array.data.device_id} in a kernel on {here.number}"
        raise Misuse(message)
