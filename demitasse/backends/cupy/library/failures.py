"""Errors of cupy and CUDA as DeviceError, with what to do about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from demitasse.backends.cupy.library.memory_pools import Pools
from demitasse.core.text import bytes_text
from demitasse.errors import DeviceError, ErrorCode, OutOfMemoryError

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
        kind = type(error).__name__
        if kind not in LIBRARY_ERRORS or (kind == "RuntimeError" and HEADERS not in str(error)):
            raise
        code, why = LIBRARY_ERRORS[kind]
        message = f"{why.format(name=name)}: {error}"
        raise DeviceError(message, code=code, device=name) from error
