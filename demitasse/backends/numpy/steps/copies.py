"""Concat."""

from itertools import accumulate, pairwise

from demitasse.backends import ops
from demitasse.backends.numpy.step import NEEDS_BOTTOM, Engine, HostStep
from demitasse.backends.step import Operands, decline_if, decline_in_place


class ConcatStep(HostStep[ops.Concat]):
    """Bottoms side by side along one axis."""

    def __init__(self, engine: Engine, op: ops.Concat, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        decline_if(len(op.bottoms) == 1, "one bottom, which the layer shares")
        ends = accumulate((shape[op.axis] for shape in op.bottoms), initial=0)
        before = (slice(None),) * op.axis
        self.places = [(*before, slice(first, last)) for first, last in pairwise(ends)]

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
