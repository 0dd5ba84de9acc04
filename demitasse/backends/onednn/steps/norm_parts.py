"""What a normalisation is put together from, and which operations that may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Operands
from demitasse.backends.onednn.library.constants import Normalization

__all__ = ["Parts", "channelled", "is_plain_relu", "stored_statistics", "suits"]


@dataclass(frozen=True)
class Parts:
    """What a normalisation is put together from.

    Attributes:
        shape: Of the data, (N, C, *spatial).
        norm: The BatchNorm and its blobs, or None.
        scale: The Scale and its blobs, or None.
        relu: Whether a ReLU follows.
    """

    shape: ops.Shape
    norm: tuple[ops.BatchNorm, Operands] | None
    scale: tuple[ops.Scale, Operands] | None
    relu: bool

    @property
    def first(self) -> Any:
        """The blobs of the first operation."""
        chosen = self.norm or self.scale
        return chosen[1] if chosen else None

    @property
    def measures(self) -> bool:
        """Whether mean and variance are the batch's, not given."""
        return self.norm is not None and not self.norm[0].use_global_stats

    @property
    def flags(self) -> int:
        """The flags of the primitive."""
        flags = 0 if self.measures else Normalization.GLOBAL_STATISTICS
        if self.scale:
            flags |= Normalization.SCALE
            flags |= Normalization.SHIFT if self.scale[0].bias else 0
        return flags | (Normalization.RELU if self.relu else 0)


def stored_statistics(blobs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's three blobs. Shapes: (C,), (C,)."""
    mean, variance, weight = (blob.data_memory.cpu_data()[: blob.count] for blob in blobs)
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def channelled(op: ops.Scale, shape: ops.Shape) -> bool:
    """Whether a Scale has one factor for each channel of ``shape``."""
    return (
        len(shape) > 1
        and op.dim == shape[1]
        and op.outer == shape[0]
        and op.inner == math.prod(shape[2:])
    )


def suits(op: ops.Op, shape: ops.Shape) -> bool:
    """Whether the primitive takes data of this shape."""
    return op.dtype == "float32" and 2 <= len(shape) <= 5 and 0 not in shape


def is_plain_relu(op: ops.Op) -> bool:
    """Whether this is max(x, 0)."""
    return isinstance(op, ops.Activation) and op.function == "relu" and not any(op.parameters)
