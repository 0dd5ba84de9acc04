"""cuBLAS for the stand-in: a library with its symbols, whose products are queued on streams."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int, c_longlong, c_ulonglong, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpu import machine
from gpu.errors import Misuse
from gpu.host import HERE, library
from gpu.memory import bytes_at

TF32 = 3
INTERNAL_ERROR = 14

_Multiply = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_int, c_ulonglong, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_double,
    c_void_p, c_int, c_longlong, c_void_p, c_int, c_longlong, c_double, c_void_p, c_int, c_longlong,
    c_int,
)  # fmt: skip
_Device = ctypes.CFUNCTYPE(c_int)

calls: list[tuple[int, ...]] = []
"""Device, stream, math mode, m, n, k and batch of every product, for tests that look at them."""


@cache
def path() -> Path:
    """Return the library, ready to queue."""
    file = library((HERE / "blas.cpp").read_text())
    ctypes.CDLL(str(file)).stand_in_connect(_multiply, _device)
    return file


@_Device
def _device() -> int:
    return machine.current().number


@_Multiply
def _multiply(*given: Any) -> int:
    try:
        return _queue(*given)
    except BaseException as error:  # it cannot pass through C
        machine.fault(error)
        return INTERNAL_ERROR


def _queue(
    handle: int, device: int, stream: int, mode: int, width: int, ta: int, tb: int, m: int, n: int,
    k: int, alpha: float, a: int, lda: int, step_a: int, b: int, ldb: int, step_b: int,
    beta: float, c: int, ldc: int, step_c: int, batch: int,
) -> int:  # fmt: skip
    gpu = machine.current()
    if gpu.number != device:
        raise Misuse(f"a cuBLAS handle of cuda:{device} is used on cuda:{gpu.number}")
    if not (m and n and batch):
        return 0
    first = _matrices(gpu, a, width, k if ta else m, m if ta else k, lda, step_a, batch)
    second = _matrices(gpu, b, width, n if tb else k, k if tb else n, ldb, step_b, batch)
    out = _matrices(gpu, c, width, m, n, ldc, step_c, batch)
    calls.append((device, stream, mode, m, n, k, batch))

    def work() -> None:
        left, right = (_rounded(x) if mode == TF32 else x for x in (first, second))
        left = left.swapaxes(1, 2) if ta else left
        right = right.swapaxes(1, 2) if tb else right
        product = np.matmul(left, right)
        if alpha != 1:
            product *= alpha
        if beta:
            product += out if beta == 1 else beta * out
        out[...] = product

    machine.queue_at(stream).add(work)
    return 0


def _matrices(
    gpu: machine.Gpu,
    at: int,
    width: int,
    rows: int,
    columns: int,
    leading: int,
    step: int,
    batch: int,
) -> np.ndarray:
    """Return column-major matrices. Shape: (batch, rows, columns)."""
    count = (batch - 1) * step + ((columns - 1) * leading + rows if rows and columns else 0)
    if count and not gpu.owns(at or 0, count * width):
        message = f"a matrix product reaches beyond an array: {count} elements at {at:#x}"
        raise Misuse(message)
    flat = bytes_at(at or 0, count * width).view(f"f{width}") if count else np.empty(0, f"f{width}")
    strides = (step * width, width, leading * width)
    return as_strided(flat, (batch, rows, columns), strides)


def _rounded(x: np.ndarray) -> np.ndarray:
    """Round float32 to the 10 bits of fraction that TF32 has."""
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
