"""Scale: one learned factor for each channel, and perhaps an offset."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.norm import NormStep
from demitasse.backends.onednn.steps.norm_parts import NormParts, decline_other_scales
from demitasse.backends.step import Operands

__all__ = ["ScaleStep"]


class ScaleStep(NormStep[ops.Scale]):
    """A normalisation with mean 0 and variance 1."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        shape = at.bottom[0].shape
        decline_other_scales(op, at, shape)
        super().__init__(engine, op, NormParts(shape, at, scale=(op, at)))
