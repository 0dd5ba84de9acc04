"""Base of the Steps on the host, and their engine."""

import math
import threading
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.ops import Op
from demitasse.backends.step import Operand, Step


class _Arrays(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[tuple[str | int, str], np.ndarray] = {}


class Engine:
    """Engine of the Steps on the host.

    Attributes:
        grown: Number of reallocations of scratch memory, in any thread.
    """

    def __init__(self) -> None:
        self._arrays = _Arrays()
        self.grown = 0

    @property
    def nbytes(self) -> int:
        """Bytes of this thread's working memory."""
        return sum(array.nbytes for array in self._arrays.by_name.values())

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return an array with arbitrary contents, good until this thread asks for ``name`` again.

        Shapes: ``shape``, C order.
        """
        count, arrays = math.prod(shape), self._arrays.by_name
        found = arrays.get((name, dtype))
        if found is None or found.size < count:
            self.grown += found is not None
            found = aligned(count) if dtype == "float32" else np.empty(count, dtype)
            arrays[name, dtype] = found
        return found[:count].reshape(shape)


O = TypeVar("O", bound=Op)  # noqa: E741 - the type of the operation


NEEDS_BOTTOM = "numpy's Step needs the bottom"  # reason for declining in-place layers


class HostStep(Step[Engine, O]):
    """A Step made of array functions that write directly into the blobs' buffers."""

    code = "numpy"

    def scratch(self, name: str, shape: tuple[int, ...], dtype: str = "") -> np.ndarray:
        """Return working memory, of the operation's dtype unless another is named."""
        return self.engine.scratch(name, shape, dtype or self.op.dtype)

    def add_gradient(self, blob: Operand, compute: Callable[[np.ndarray], object]) -> None:
        """Add to a parameter's gradient what ``compute`` writes into an array of the blob's shape.

        A gradient that was cleared is written in place, without a sum.
        """
        if blob.diff_memory.cleared:
            compute(blob.diff_buffer())
            return
        part = self.scratch("gradient", blob.shape)
        compute(part)
        blob.add_diff(part)
