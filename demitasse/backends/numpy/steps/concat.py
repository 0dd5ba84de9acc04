"""Concat: every bottom copied once, straight to its place."""

from __future__ import annotations

from itertools import accumulate, pairwise

from demitasse.backends import ops
from demitasse.backends.base import Backend, Operands, Step
from demitasse.backends.numpy.backend import NumpyBackend

__all__ = ["ConcatStep"]


class ConcatStep(Step):
    """Bottoms side by side along one axis."""

    def __init__(self, op: ops.Concat, at: Operands) -> None:
        self.at = at
        ends = accumulate((shape[op.axis] for shape in op.bottoms), initial=0)
        before = (slice(None),) * op.axis
        self.places = [(*before, slice(first, last)) for first, last in pairwise(ends)]

    def lower_backward(self, operands: Operands) -> bool:
        self.at = operands
        return True

    def forward(self) -> None:
        y = self.at.top[0].buffer()
        for blob, place in zip(self.at.bottom, self.places, strict=True):
            y[place] = blob.read()

    def backward(self) -> None:
        dy = self.at.top[0].read_diff()
        for blob, place, down in zip(
            self.at.bottom, self.places, self.at.propagate_down, strict=True
        ):
            if down:
                blob.diff_buffer()[...] = dy[place]


@NumpyBackend.lowers(ops.Concat)
def concat(backend: Backend, op: ops.Concat, at: Operands) -> Step | None:
    """Two bottoms or more; a single one is shared, which the layer does itself."""
    del backend
    return ConcatStep(op, at) if len(op.bottoms) > 1 and not at.in_place else None
