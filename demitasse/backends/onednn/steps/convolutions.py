"""Selection of the Step that runs a convolution."""

from __future__ import annotations

from contextlib import suppress

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.grouped_pointwise import GroupedPointwiseStep
from demitasse.backends.onednn.steps.row_convolution import RowConvStep
from demitasse.backends.onednn.steps.windows import WindowStep
from demitasse.backends.step import Declined, Operands

__all__ = ["convolution"]


def convolution(engine: Engine, op: ops.Conv, at: Operands) -> WindowStep[ops.Conv]:
    """Return the Step of a convolution.

    Raises:
        Declined: There is none.
    """
    for special in (RowConvStep, GroupedPointwiseStep):
        with suppress(Declined):
            return special(engine, op, at)
    return ConvStep(engine, op, at)
