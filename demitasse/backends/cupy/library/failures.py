"""Errors of cupy and CUDA as DeviceError, with what to do about them."""

from typing import Any

from demitasse.backends.cupy.library.memory_pools import Pools
from demitasse.core.text import bytes_text
from demitasse.errors import DeviceError, ErrorCode, OutOfMemoryError

BRINGS = 'pip install "cupy-cuda13x[ctk]" (or 12x)'
"""Command that installs CUDA's libraries and headers for cupy."""

ERRORS = {
    "CompileException": (
        ErrorCode.FAILED,
        "a kernel for {name} could not be compiled; where CUDA's headers are missing, "
        f"{BRINGS} brings them",
    ),
    "CUDARuntimeError": (ErrorCode.FAILED, "{name} failed, what was queued before is lost"),
    "CUDADriverError": (ErrorCode.FAILED, "{name} failed, what was queued before is lost"),
    "DynamicLibNotFoundError": (  # of cuda.pathfinder
        ErrorCode.UNAVAILABLE, f"a library of CUDA is missing; {BRINGS} brings them all"
    ),
    "NVRTCError": (
        ErrorCode.FAILED,
        "CUDA's compiler failed on a kernel for {name}; where it is of another version than cupy, "
        f"{BRINGS} brings the one that fits",
    ),
    "CUBLASError": (
        ErrorCode.FAILED,
        "a matrix product on {name} failed; where cuBLAS is of another version than cupy, "
        f"{BRINGS} brings the one that fits",
    ),
    "RuntimeError": (  # of cupy, about CUDA's headers
        ErrorCode.UNAVAILABLE,
        f"no kernel for {{name}} can be compiled without CUDA's headers; {BRINGS} brings them, or "
        "CUDA_PATH names the folder of a CUDA that is installed",
    ),
}  # fmt: skip
"""Code and message of errors by class name: an import of some classes would load a library."""


class Scope:
    """Makes a GPU current; errors of cupy and CUDA leave the block as DeviceError.

    ``asked`` is the number of bytes that the block allocates, for messages.
    """

    __slots__ = ("_asked", "_cupy", "_pools")

    def __init__(self, cupy: Any, pools: Pools, asked: int = 0) -> None:
        self._cupy, self._pools, self._asked = cupy, pools, asked

    def __enter__(self) -> None:
        self._pools.device.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._pools.device.__exit__(kind, error, traceback)
        if error is None:
            return
        name, title = f"cuda:{self._pools.device.id}", type(error).__name__
        if isinstance(error, self._cupy.cuda.memory.OutOfMemoryError):
            what = f" for {bytes_text(self._asked)}" if self._asked else ""
            message = (
                f"{name} is out of memory{what}: {self._pools} ({error}). Reduce the batch size, "
                f"stop other programs on the GPU, or use a GPU with more memory"
            )
            raise OutOfMemoryError(message, device=name, requested=self._asked) from error
        if title in ERRORS and (title != "RuntimeError" or "CUDA headers" in str(error)):
            code, why = ERRORS[title]
            stage = {"stage": "compile"} if title == "CompileException" else {}
            message = f"{why.format(name=name)}: {error}"
            raise DeviceError(message, code=code, device=name, **stage) from error
