"""Errors of cupy and CUDA as DeviceError, with what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from demitasse.backends.cupy.library.pools import Pools
from demitasse.errors import DeviceError, OutOfMemoryError
from demitasse.room import bytes_text

__all__ = ["failures"]


@contextmanager
def failures(cupy: Any, pools: Pools, asked: int = 0) -> Iterator[None]:
    """Turn what cupy raises inside the block into DeviceError.

    Args:
        cupy: The library.
        pools: The memory of the GPU the block works on.
        asked: How much memory the block is about to ask for, in bytes; 0 when not known.
    """
    cuda, name = cupy.cuda, f"cuda:{pools.device.id}"
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        what = f" for {bytes_text(asked)}" if asked else ""
        message = (
            f"{name} has no room{what}: {pools}. Make the batch smaller, end what else uses the "
            f"GPU, or take a GPU with more memory ({error})"
        )
        raise OutOfMemoryError(message) from error
    except cuda.compiler.CompileException as error:
        message = (
            f"a kernel for {name} could not be compiled; where CUDA's headers are missing, "
            f'pip install "cupy-cuda13x[ctk]" (or 12x) brings them: {error}'
        )
        raise DeviceError(message) from error
    except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
        message = f"{name} failed: {error}; what was queued before is lost"
        raise DeviceError(message) from error
    except RuntimeError as error:
        if type(error).__name__ != "DynamicLibNotFoundError":  # of cuda.pathfinder
            raise
        message = (
            f"a library of CUDA is missing; "
            f'pip install "cupy-cuda13x[ctk]" (or 12x) brings them all: {error}'
        )
        raise DeviceError(message) from error
