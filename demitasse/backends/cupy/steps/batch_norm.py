"""BatchNorm: by the statistics of the batch, or by the stored ones."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.steps.norm import NormParts, NormStep
from demitasse.backends.step import Operands

__all__ = ["BatchNormStep"]


class BatchNormStep(NormStep):
    """A normalisation by itself."""

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, NormParts(at))
