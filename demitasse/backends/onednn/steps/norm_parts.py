"""The operations that one normalisation primitive computes together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Normalization
from demitasse.backends.step import Declined, Operand, Operands


@dataclass(frozen=True)
class NormParts:
    """The operations of one primitive: a BatchNorm, a Scale, or both, and a ReLU.

    Attributes:
        shape: Of the data, (N, C, *spatial).
        at: The blobs of the first operation.
        norm: The BatchNorm and its blobs, or None.
        scale: The Scale and its blobs, or None.
        relu: Whether a ReLU follows.
    """

    shape: ops.Shape
    at: Operands
    norm: tuple[ops.BatchNorm, Operands] | None = None
    scale: tuple[ops.Scale, Operands] | None = None
    relu: bool = False

    @property
    def uses_batch_stats(self) -> bool:
        """True if mean and variance are the batch's, not given."""
        return self.norm is not None and not self.norm[0].use_global_stats

    @property
    def flags(self) -> int:
        """The flags of the primitive."""
        flags = 0 if self.uses_batch_stats else Normalization.GLOBAL_STATISTICS
        if self.scale:
            flags |= Normalization.SCALE
            flags |= Normalization.SHIFT if self.scale[0].bias else 0
        return flags | (Normalization.RELU if self.relu else 0)


def stored_statistics(blobs: Sequence[Operand]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's three blobs. Shapes: (C,), (C,)."""
    mean, variance, weight = (blob.data_memory.cpu_data()[: blob.count] for blob in blobs)
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def decline_other_scales(op: ops.Scale, at: Operands, shape: ops.Shape) -> None:
    """Leave to others a Scale that has not one learned factor for each channel of ``shape``.

    Raises:
        Declined: It has not.
    """
    if len(at.bottom) > 1:
        message = "factors from a second bottom; oneDNN takes learned ones"
        raise Declined(message)
    channels = (*shape[:2], math.prod(shape[2:]))
    if len(shape) < 2 or (op.outer, op.dim, op.inner) != channels:
        message = "factors over other axes; oneDNN takes one for each channel"
        raise Declined(message)
