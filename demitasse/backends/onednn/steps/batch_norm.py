"""BatchNorm: with the batch's statistics, or the stored ones."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.norm import NormStep
from demitasse.backends.onednn.steps.norm_parts import NormParts
from demitasse.backends.step import Operands

__all__ = ["BatchNormStep"]


class BatchNormStep(NormStep[ops.BatchNorm]):
    """A normalisation without factors."""

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, NormParts(op.bottom, at, norm=(op, at)))
