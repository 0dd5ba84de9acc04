"""Errors of cupy and CUDA as DeviceError, with what to do about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from demitasse.backends.cupy.library.memory_pools import Pools
from demitasse.core.text import bytes_text
from demitasse.errors import DeviceError, ErrorCode, OutOfMemoryError

BRINGS = 'pip install "cupy-cuda13x[ctk]" (or 12x)'
"""Command that installs CUDA's libraries and headers for cupy."""


@contextmanager
def failures(cupy: Any, pools: Pools, asked: int = 0) -> Iterator[None]:
    """Convert errors of cupy and CUDA in a block that allocates ``asked`` bytes to DeviceError."""
    cuda, name = cupy.cuda, f"cuda:{pools.device.id}"
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        what = f" for {bytes_text(asked)}" if asked else ""
        message = (
            f"{name} is out of memory{what}: {pools} ({error}). Reduce the batch size, stop "
            f"other programs on the GPU, or use a GPU with more memory"
        )
        raise OutOfMemoryError(message, device=name, requested=asked) from error
    except cuda.compiler.CompileException as error:
        message = (
            f"a kernel for {name} could not be compiled; where CUDA's headers are missing, "
            f"{BRINGS} brings them: {error}"
        )
        raise DeviceError(message, code=ErrorCode.FAILED, device=name, stage="compile") from error
    except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
        message = f"{name} failed: {error}; what was queued before is lost"
        raise DeviceError(message, code=ErrorCode.FAILED, device=name) from error
    except RuntimeError as error:
        message = _of_a_library(error, name)
        if not message:
            raise
        missing = type(error).__name__ in ("DynamicLibNotFoundError", "RuntimeError")
        code = ErrorCode.UNAVAILABLE if missing else ErrorCode.FAILED
        raise DeviceError(message, code=code, device=name) from error


def _of_a_library(error: RuntimeError, name: str) -> str:
    """Return a message for a RuntimeError of a CUDA library; "" for other errors.

    The class is compared by name, because an import of the class would load the library.
    """
    match type(error).__name__:
        case "DynamicLibNotFoundError":  # of cuda.pathfinder
            return f"a library of CUDA is missing; {BRINGS} brings them all: {error}"
        case "NVRTCError":
            return (
                f"CUDA's compiler failed on a kernel for {name}; where it is of another version "
                f"than cupy, {BRINGS} brings the one that fits: {error}"
            )
        case "CUBLASError":
            return (
                f"a matrix product on {name} failed; where cuBLAS is of another version than cupy, "
                f"{BRINGS} brings the one that fits: {error}"
            )
        case "RuntimeError" if "CUDA headers" in str(error):
            return (
                f"no kernel for {name} can be compiled without CUDA's headers; {BRINGS} brings "
                f"them, or CUDA_PATH names the folder of a CUDA that is installed: {error}"
            )
        case _:
            return ""
