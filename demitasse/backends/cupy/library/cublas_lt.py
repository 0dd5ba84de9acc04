"""Matrix products with a bias, by cuBLASLt.

As in ``cublas.py``, out = a b of row-major matrices is asked for as out' = b' a'. The bias of the
columns of ``out`` is then that of the rows of out', which the library adds within the product. Its
ReLU is not used: the library does not say that it keeps NaN, as ours does.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.cublas import (
    COMPUTE_FLOAT,
    CUBLAS_WORKSPACE,
    TYPES,
    CudaLibrary,
    Product,
)
from demitasse.backends.step import decline_if

if TYPE_CHECKING:
    from demitasse.backends.cupy.library.engine import Engine

COMPUTE_TF32 = 77

TRANSPOSE_FIRST, TRANSPOSE_SECOND, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8  # attributes of products
BIAS = 4  # an epilogue
MOST_WORKSPACE, REDUCTIONS = 1, 3  # attributes of preferences

WIDE_REDUCTIONS = 3
"""Mask of the reduction schemes that add up parts of a product in float32: in place, or apart."""

ALIGNMENT = 256  # bytes that arrays begin at multiples of, unless preferences say otherwise


class Heuristic(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: an algorithm and the workspace that it needs."""

    _fields_: ClassVar = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class CublasLt(CudaLibrary):
    """The functions we call, with their argument types, and a handle."""

    name, status_name = "cuBLASLt", "cublasLtGetStatusName"

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        pointer, number = c_void_p, c_int
        kinds: dict[str, list[Any]] = {
            "MatmulDesc": [pointer, number, number],
            "MatrixLayout": [pointer, number, c_uint64, c_uint64, c_int64],
            "MatmulPreference": [pointer],
        }
        for kind, create in kinds.items():
            self.declare(f"cublasLt{kind}Create", create)
            self.declare(f"cublasLt{kind}Destroy", [pointer])
        for kind in ("MatmulDesc", "MatmulPreference"):
            self.declare(f"cublasLt{kind}SetAttribute", [pointer, number, pointer, c_size_t])
        self.declare("cublasLtCreate", [pointer])
        self.declare("cublasLtMatmulAlgoGetHeuristic", [*[pointer] * 7, number, pointer, pointer])
        self.declare("cublasLtMatmul", [*[pointer] * 14, c_size_t, pointer])
        library.cublasLtGetStatusName.argtypes = [c_int]
        library.cublasLtGetStatusName.restype = c_char_p

    @cached_property
    def handle(self) -> c_void_p:
        """The handle of all threads, on the GPU that is current when it is first used."""
        handle = c_void_p()
        self.call("cublasLtCreate", byref(handle))
        return handle


class Descriptor:
    """An object of the library that describes a product, a matrix or a preference."""

    def __init__(self, library: CublasLt, kind: str, *arguments: object) -> None:
        self._library, self._kind, self.value = library, kind, c_void_p()
        library.call(f"cublasLt{kind}Create", byref(self.value), *arguments)

    def set(self, attribute: int, value: ctypes._SimpleCData) -> None:  # type: ignore[type-arg]
        """Set an attribute."""
        name, size = f"cublasLt{self._kind}SetAttribute", ctypes.sizeof(value)
        self._library.call(name, self.value, attribute, byref(value), size)

    def __del__(self) -> None:
        if self.value:
            getattr(self._library.library, f"cublasLt{self._kind}Destroy")(self.value)


class BiasProduct:
    """out = a b + bias, with the algorithm that the library recommends; for one thread at a time.

    Raises:
        Declined: The library recommends no algorithm.
        DeviceError: A call of the library failed.
    """

    def __init__(self, library: CublasLt, device: Engine, product: Product) -> None:
        decline_if(product.dtype not in TYPES, f"{product.dtype}; cuBLASLt adds no bias to it")
        decline_if(product.empty or not product.k, "no elements")
        self._library, self._device, self._of = library, device, product
        self._rounds, self._bias = device.rounds(product), ALIGNMENT
        compute = COMPUTE_TF32 if self._rounds else COMPUTE_FLOAT
        self._product = Descriptor(library, "MatmulDesc", compute, TYPES["float32"])
        self._product.set(TRANSPOSE_FIRST, c_int(product.transpose_b))
        self._product.set(TRANSPOSE_SECOND, c_int(product.transpose_a))
        self._product.set(EPILOGUE, c_uint32(BIAS))
        # the heuristics look at the alignment of the bias
        self._product.set(BIAS_POINTER, c_void_p(self._bias))
        kind, (m, n, k) = TYPES[product.dtype], (product.m, product.n, product.k)
        first = (k, n) if product.transpose_b else (n, k)
        second = (m, k) if product.transpose_a else (k, m)
        self._matrices = [
            Descriptor(library, "MatrixLayout", kind, rows, columns, rows)
            for rows, columns in (first, second, (n, m))
        ]
        self._algorithm = self._recommended()
        device.scratch("uint8", self._algorithm.workspace)  # so that a pass allocates nothing

    def _recommended(self) -> Heuristic:
        library, preference = self._library, Descriptor(self._library, "MatmulPreference")
        preference.set(MOST_WORKSPACE, c_uint64(CUBLAS_WORKSPACE))
        preference.set(REDUCTIONS, c_uint32(WIDE_REDUCTIONS))
        found, count = Heuristic(), c_int()
        first, second, out = (matrix.value for matrix in self._matrices)
        about = (library.handle, self._product.value, first, second, out, out, preference.value)
        library.call("cublasLtMatmulAlgoGetHeuristic", *about, 1, byref(found), byref(count))
        decline_if(not count.value or found.state, "cuBLASLt recommends no product with a bias")
        return found

    def run(self, a: Array, b: Array, bias: Array, out: Array) -> bool:
        """Queue the product on the current stream, without allocating memory or waiting.

        False if the arrays are not aligned, or if the rounding has changed since the preparation.
        """
        device = self._device
        places = [device.address(array) for array in (a, b, bias, out)]
        if self._rounds != device.rounds(self._of) or any(one % ALIGNMENT for one in places):
            return False
        [workspace] = device.scratch("uint8", self._algorithm.workspace)
        left, right, added, target = places
        if added != self._bias:
            self._product.set(BIAS_POINTER, c_void_p(added))
            self._bias = added
        first, second, result = (matrix.value for matrix in self._matrices)
        self._library.call(
            *("cublasLtMatmul", self._library.handle, self._product.value, byref(c_float(1))),
            *(right, first, left, second, byref(c_float(0)), target, result, target, result),
            *(byref(self._algorithm), device.address(workspace), self._algorithm.workspace),
            device.stream(),
        )
        return True
