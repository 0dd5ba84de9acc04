"""Errors of cupy and CUDA as DeviceError, with what to do about them."""

from typing import Any

from demitasse.backends.cupy.library.memory_pools import Pools
from demitasse.core.text import bytes_text
from demitasse.errors import DemitasseError, DeviceError, ErrorCode, OutOfMemoryError

BRINGS = 'pip install "cupy-cuda13x[ctk]" (or 12x)'
"""Command that installs CUDA's libraries and headers for cupy."""


HEADERS = "CUDA headers"  # part of the message of cupy's RuntimeError without them

LIBRARY_ERRORS = {
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
    "RuntimeError": (
        ErrorCode.UNAVAILABLE,
        f"no kernel for {{name}} can be compiled without CUDA's headers; {BRINGS} brings them, or "
        "CUDA_PATH names the folder of a CUDA that is installed",
    ),
}  # fmt: skip
"""Code and message of RuntimeErrors by class name: an import of the class would load a library."""


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
        if error is not None and (converted := self._converted(error)) is not None:
            raise converted from error

    def _converted(self, error: BaseException) -> DemitasseError | None:
        cuda, name = self._cupy.cuda, f"cuda:{self._pools.device.id}"
        kind = type(error).__name__
        if isinstance(error, cuda.memory.OutOfMemoryError):
            what = f" for {bytes_text(self._asked)}" if self._asked else ""
            message = (
                f"{name} is out of memory{what}: {self._pools} ({error}). Reduce the batch size, "
                f"stop other programs on the GPU, or use a GPU with more memory"
            )
            return OutOfMemoryError(message, device=name, requested=self._asked)
        if isinstance(error, cuda.compiler.CompileException):
            message = (
                f"a kernel for {name} could not be compiled; where CUDA's headers are missing, "
                f"{BRINGS} brings them: {error}"
            )
            return DeviceError(message, code=ErrorCode.FAILED, device=name, stage="compile")
        if isinstance(error, (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError)):
            message = f"{name} failed: {error}; what was queued before is lost"
            return DeviceError(message, code=ErrorCode.FAILED, device=name)
        if not isinstance(error, RuntimeError) or kind not in LIBRARY_ERRORS:
            return None
        if kind == "RuntimeError" and HEADERS not in str(error):
            return None
        code, why = LIBRARY_ERRORS[kind]
        return DeviceError(f"{why.format(name=name)}: {error}", code=code, device=name)
