"""cuBLAS for the stand-in: a library with its symbols, whose products are queued on streams."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int, c_longlong, c_ulonglong, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from demitasse.backends.storage import ARRAYS, array_dtype, narrowed, widen_into
from gpu import machine
from gpu.errors import Misuse
from gpu.host import HERE, library
from gpu.memory import bytes_at

TF32 = 3
MODES = 15
"""What of a mode says how it computes; the rest says what it may not."""
INTERNAL_ERROR = 14

_Multiply = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_int, c_ulonglong, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_double,
    c_void_p, c_int, c_longlong, c_void_p, c_int, c_longlong, c_double, c_void_p, c_int, c_longlong,
    c_int, c_void_p, c_void_p, c_ulonglong,
)  # fmt: skip
_Device = ctypes.CFUNCTYPE(c_int)

NARROW = {2: "half", -2: "bfloat16", 16: "half", -16: "bfloat16"}
"""Width of an element as ``blas.cpp`` tells it -> what it holds; 16: with a result in float32."""

calls: list[tuple[int, ...]] = []
"""Device, stream, math mode, m, n, k and batch of every product, for tests that look at them."""


@cache
def path() -> Path:
    """Return the library, which queues products of the stand-in's memory."""
    return _connected("queued", _multiply)


@cache
def at_once() -> Path:
    """Return the library again, with products of any memory, computed at once."""
    return _connected("at once", _multiply_at_once)


def _connected(name: str, multiply: Any) -> Path:
    file = library(f"// {name}\n" + (HERE / "blas.cpp").read_text())
    ctypes.CDLL(str(file)).stand_in_connect(multiply, _device)
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


@_Multiply
def _multiply_at_once(
    handle: int, device: int, stream: int, mode: int, width: int, *given: Any
) -> int:
    product = Product(width, *given)
    if not product.empty:
        with np.errstate(all="ignore"):
            product.compute(mode)
    return 0


@dataclass(frozen=True)
class Product:
    """out = alpha op(a) op(b) + beta out, of column-major matrices at addresses.

    Where there is a bias, it is added to every column, and the workspace is overwritten.
    """

    width: int
    ta: int
    tb: int
    m: int
    n: int
    k: int
    alpha: float
    a: int
    lda: int
    step_a: int
    b: int
    ldb: int
    step_b: int
    beta: float
    c: int
    ldc: int
    step_c: int
    batch: int
    bias: int | None = None
    workspace: int | None = None
    workspace_bytes: int = 0

    @property
    def kind(self) -> str:
        """What a and b hold: a dtype, or 16 bits."""
        return NARROW.get(self.width, f"float{8 * self.width}")

    @property
    def kind_of_result(self) -> str:
        return "float32" if abs(self.width) == 16 else self.kind

    @property
    def empty(self) -> bool:
        return not (self.m and self.n and self.batch)

    def operands(self) -> tuple[_Matrices, _Matrices, _Matrices]:
        m, n, k = self.m, self.n, self.k
        return (
            _Matrices(
                self, self.a, (k, m) if self.ta else (m, k), self.lda, self.step_a, self.kind
            ),
            _Matrices(
                self, self.b, (n, k) if self.tb else (k, n), self.ldb, self.step_b, self.kind
            ),
            _Matrices(self, self.c, (m, n), self.ldc, self.step_c, self.kind_of_result),
        )

    def compute(self, mode: int) -> None:
        left, right, out = (matrices.array() for matrices in self.operands())
        if self.kind in ARRAYS:
            self._compute_narrow(left, right, out)
            return
        if mode & MODES == TF32:
            left, right = _rounded(left), _rounded(right)
        left = left.swapaxes(1, 2) if self.ta else left
        right = right.swapaxes(1, 2) if self.tb else right
        product = np.matmul(left, right)
        if self.alpha != 1:
            product *= self.alpha
        if self.beta:
            product += out if self.beta == 1 else self.beta * out
        out[...] = product + self.bias_column()

    def _compute_narrow(self, left: np.ndarray, right: np.ndarray, result: np.ndarray) -> None:
        """Compute with matrices of 16 bits: their products are exact in float32, the sums its."""
        left, right = (widened(one, self.kind) for one in (left, right))
        narrow = self.kind_of_result in ARRAYS
        out = widened(result, self.kind) if narrow else result
        left = left.swapaxes(1, 2) if self.ta else left
        right = right.swapaxes(1, 2) if self.tb else right
        product = np.matmul(left, right) * np.float32(self.alpha)
        if self.beta:
            product += np.float32(self.beta) * out
        product = product + self.bias_column()
        result[...] = narrowed(product, self.kind) if narrow else product

    def bias_column(self) -> np.ndarray:
        """Return the bias, wide; 0 where there is none. Shape: (m, 1)."""
        if not self.bias:
            return np.zeros((1, 1), np.float32)
        bytes_at(self.workspace or 0, self.workspace_bytes)[...] = 255
        kept = bytes_at(self.bias, self.bias_bytes).view(array_dtype(self.kind))
        return (widened(kept, self.kind) if self.kind in ARRAYS else kept)[:, None]

    @property
    def bias_bytes(self) -> int:
        return self.m * np.dtype(array_dtype(self.kind)).itemsize


@dataclass(frozen=True)
class _Matrices:
    """One operand of a product."""

    product: Product
    address: int
    shape: tuple[int, int]
    leading: int
    step: int
    kind: str

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return np.dtype(array_dtype(self.kind)).itemsize

    @property
    def count(self) -> int:
        """How many elements lie between its first and its last, both included."""
        rows, columns = self.shape
        if not rows or not columns:
            return 0
        return (self.product.batch - 1) * self.step + (columns - 1) * self.leading + rows

    def array(self) -> np.ndarray:
        """Return it in place. Shape: (batch, rows, columns)."""
        width, count, dtype = self.width, self.count, array_dtype(self.kind)
        if not count:
            return np.empty((self.product.batch, *self.shape), dtype)
        flat = bytes_at(self.address, count * width).view(dtype)
        strides = (self.step * width, width, self.leading * width)
        return as_strided(flat, (self.product.batch, *self.shape), strides)


def _queue(handle: int, device: int, stream: int, mode: int, width: int, *given: Any) -> int:
    product, gpu = Product(width, *given), machine.current()
    if gpu.number != device:
        raise Misuse(f"a cuBLAS handle of cuda:{device} is used on cuda:{gpu.number}")
    if product.empty:
        return 0
    for matrices in product.operands():
        size = matrices.count * matrices.width
        if matrices.count and not gpu.owns(matrices.address or 0, size):
            message = (
                f"a matrix product reaches beyond an array: {matrices.count} elements at "
                f"{matrices.address or 0:#x}"
            )
            raise Misuse(message)
    for what, address, size in (
        ("bias", product.bias, product.bias_bytes),
        ("workspace", product.workspace, product.workspace_bytes),
    ):
        if address and not gpu.owns(address, size):
            raise Misuse(f"the {what} of a matrix product reaches beyond an array")
    calls.append((device, stream, mode, product.m, product.n, product.k, product.batch))
    machine.queue_at(stream).add(lambda: product.compute(mode))
    return 0


def widened(narrow: np.ndarray, kind: str) -> np.ndarray:
    wide = np.empty(narrow.shape, np.float32)
    widen_into(narrow, kind, wide)
    return wide


def _rounded(x: np.ndarray) -> np.ndarray:
    """Round float32 to the 10 bits of fraction that TF32 has."""
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
