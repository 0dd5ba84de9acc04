"""Split: the gradients of the readers summed without temporaries."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend

__all__ = ["SplitStep"]


class SplitStep(Step):
    """The tops share the bottom's data, which the layer sees to when it is reshaped."""

    def __init__(self, at: Operands) -> None:
        self.at = at

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def forward(self) -> None:
        pass

    def backward(self) -> None:
        if self.at.propagate_down[0]:
            first, second, *rest = (top.read_diff() for top in self.at.top)
            total = self.at.bottom[0].diff_buffer()
            np.add(first, second, out=total)
            for dy in rest:
                total += dy


@NumpyBackend.lowers(ops.Split)
def split(backend: Backend, op: ops.Split, at: Operands) -> Step | None:
    """Two readers or more."""
    del backend
    return SplitStep(at) if op.tops > 1 else None
