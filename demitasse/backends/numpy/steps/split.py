"""Split: the gradients of the readers summed without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.numpy.engine import Engine
from demitasse.backends.numpy.step import HostStep
from demitasse.backends.step import Declined, Operands, share

__all__ = ["SplitStep"]


class SplitStep(HostStep[ops.Split]):
    """The tops share the bottom's data; its gradient is the sum of theirs."""

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.tops == 1:
            message = "one reader, for which nothing is summed"
            raise Declined(message)

    def forward(self) -> None:
        share(self.at)

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            first, second, *rest = (top.read_diff() for top in self.at.top)
            total = self.at.bottom[0].diff_buffer()
            np.add(first, second, out=total)
            for dy in rest:
                total += dy
