"""Matrix products by cuBLAS.

Arrays are row-major, as all of ours are; cuBLAS is column-major. A row-major matrix is its own
transpose in column-major order, so C = A B is asked for as C' = B' A'.
"""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_longlong, c_size_t, c_void_p
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from demitasse.backends.cupy.library.handles import Handle
from demitasse.errors import DeviceError, ErrorCode


@dataclass(frozen=True)
class Product:
    """out = a b, or out += a b, for each item of a batch.

    Shapes: a (m, k), or (k, m) with ``transpose_a``; b (k, n), or (n, k) with ``transpose_b``;
    out (m, n); a leading axis of ``batch`` in front of each.

    Attributes:
        shares_a: True if all items have the same a, which has no axis of ``batch``.
        dtype: Of all matrices; "half" and "bfloat16" are added up in float32.
        wide: True if the result of matrices of 16 bits is in float32.
        convolution: Part of a convolution, which may round to TF32 where other products do not.
    """

    dtype: str
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    accumulate: bool = False
    batch: int = 1
    shares_a: bool = False
    convolution: bool = False
    wide: bool = False

    @property
    def empty(self) -> bool:
        """True if there is nothing to compute."""
        return not (self.m and self.n and self.batch)

    @property
    def steps(self) -> tuple[int, int, int]:
        """Elements from one a, b and out to the next."""
        return 0 if self.shares_a else self.m * self.k, self.k * self.n, self.m * self.n


DEFAULT_MATH, TF32_MATH = 0, 3

NO_NARROW_SUMS = 16  # part of the mode: products of 16 bits are added up in float32 throughout

_SCALARS = {"float32": ("S", c_float), "float64": ("D", c_double)}

TYPES = {"float32": 0, "half": 2, "bfloat16": 14}
"""``cudaDataType`` by dtype."""

COMPUTE_FLOAT, ANY_ALGORITHM = 68, -1

CUBLAS_WORKSPACE = 32 << 20
"""Bytes of workspace for matrix products; what NVIDIA recommends for Hopper."""


def load(name: str = "cublas") -> ctypes.CDLL:
    """Return the cuBLAS library that cupy would use, or cuBLASLt; DeviceError if there is none."""
    try:
        pathfinder: Any = import_module("cuda.pathfinder")
        return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        message = (
            f'cuBLAS cannot be loaded ({error}); pip install "cupy-cuda13x[ctk]" (or 12x) brings it'
        )
        raise DeviceError(message, code=ErrorCode.UNAVAILABLE, library="cuBLAS") from error


class CudaLibrary:
    """A library whose functions return a status: 0, or an error that another function names."""

    name: ClassVar[str]
    status_name: ClassVar[str]

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def declare(self, name: str, arguments: Sequence[Any]) -> None:
        """Set the argument types of a function."""
        function = getattr(self.library, name)
        function.argtypes, function.restype = list(arguments), c_int

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; raise DeviceError if it fails."""
        status = getattr(self.library, name)(*arguments)
        if status:
            said = getattr(self.library, self.status_name)(status).decode()
            message = f"{name} failed: {said}"
            raise DeviceError(
                message, code=ErrorCode.FAILED, library=self.name, function=name, status=said
            )


class Cublas(CudaLibrary):
    """The functions we call, with their argument types."""

    name, status_name = "cuBLAS", "cublasGetStatusName"

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.idle: list[c_void_p] = []  # handles of ended threads
        plain: dict[str, Sequence[Any]] = {
            "cublasCreate_v2": [c_void_p],
            "cublasSetStream_v2": [c_void_p, c_void_p],
            "cublasSetWorkspace_v2": [c_void_p, c_void_p, c_size_t],
            "cublasSetMathMode": [c_void_p, c_int],
        }
        for name, arguments in plain.items():
            self.declare(name, arguments)
        sizes = [c_void_p, c_int, c_int, c_int, c_int, c_int]  # handle, transposes, m, n, k
        matrix, step = [c_void_p, c_int], [c_longlong]
        for letter, _ in _SCALARS.values():
            one = [*sizes, c_void_p, *matrix, *matrix, c_void_p, *matrix]
            self.declare(f"cublas{letter}gemm_v2", one)
            batch = [*sizes, c_void_p, *matrix, *step, *matrix, *step, c_void_p, *matrix, *step]
            self.declare(f"cublas{letter}gemmStridedBatched", [*batch, c_int])
        typed, ways = [c_void_p, c_int, c_int], [c_int, c_int]
        strided = [*typed, c_longlong]
        batch = [*sizes, c_void_p, *strided, *strided, c_void_p, *strided, c_int, *ways]
        self.declare("cublasGemmStridedBatchedEx", batch)
        library.cublasGetStatusName.argtypes = [c_int]
        library.cublasGetStatusName.restype = c_char_p

    def create(self) -> c_void_p:
        """Return a new handle."""
        handle = c_void_p()
        self.call("cublasCreate_v2", byref(handle))
        return handle


class CublasHandle:
    """cuBLAS on one device, for one thread at a time.

    ``workspace`` is the address and the size in bytes of the handle's own device memory.
    """

    def __init__(self, cublas: Cublas, workspace: tuple[int, int]) -> None:
        self._cublas, self._workspace, self._rounds = cublas, workspace, False
        self._stream: int | None = None
        self._own = Handle(cublas.idle, cublas.create)
        self._handle = self._own.value
        cublas.call("cublasSetMathMode", self._handle, DEFAULT_MATH | NO_NARROW_SUMS)

    def use(self, stream: int) -> None:
        """Queue products on a stream from now on."""
        if stream != self._stream:
            self._stream = None  # in case a call fails
            self._cublas.call("cublasSetStream_v2", self._handle, stream)
            # after cublasSetStream, which resets the workspace
            self._cublas.call("cublasSetWorkspace_v2", self._handle, *self._workspace)
            self._stream = stream

    def multiply(self, product: Product, a: int, b: int, out: int, *, rounds: bool = False) -> None:
        """Queue a product of the matrices at these addresses; ``rounds`` allows TF32."""
        if product.empty:
            return
        if rounds != self._rounds:
            mode = (TF32_MATH if rounds else DEFAULT_MATH) | NO_NARROW_SUMS
            self._cublas.call("cublasSetMathMode", self._handle, mode)
            self._rounds = rounds
        letter, scalar = _SCALARS.get(product.dtype, ("", c_float))
        m, n, k = product.m, product.n, product.k
        step_a, step_b, step_out = product.steps
        alpha, beta = byref(scalar(1.0)), byref(scalar(1.0 if product.accumulate else 0.0))
        # column-major: the first operand is b, the second is a
        sizes = (self._handle, int(product.transpose_b), int(product.transpose_a), n, m, k)
        first = max(1, k if product.transpose_b else n)
        second = max(1, m if product.transpose_a else k)
        target = max(1, n)
        if not letter:  # 16 bits
            kind = TYPES[product.dtype]
            result = TYPES["float32"] if product.wide else kind
            self._cublas.call(
                "cublasGemmStridedBatchedEx",
                *sizes,
                *(alpha, b, kind, first, step_b, a, kind, second, step_a),
                *(beta, out, result, target, step_out, product.batch),
                *(COMPUTE_FLOAT, ANY_ALGORITHM),
            )
            return
        if product.batch == 1:
            arguments = (alpha, b, first, a, second, beta, out, target)
            self._cublas.call(f"cublas{letter}gemm_v2", *sizes, *arguments)
            return
        self._cublas.call(
            f"cublas{letter}gemmStridedBatched",
            *sizes,
            *(alpha, b, first, step_b, a, second, step_a),
            *(beta, out, target, step_out, product.batch),
        )
