"""Concat and Split."""

import math
from itertools import accumulate

from demitasse.backends import ops
from demitasse.backends.cupy.layout import reads_channels_last
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.step import Operands, decline_if, decline_in_place, share

AT_ONCE = 4  # arrays that a kernel adds up


class ConcatStep(GpuStep[ops.Concat]):
    """Bottoms side by side along one axis."""

    narrow_params = ()

    def takes_last(self, engine: Engine, op: ops.Concat, at: Operands) -> bool:
        return op.axis == 1 and reads_channels_last(at)

    def __init__(self, engine: Engine, op: ops.Concat, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        widths = [math.prod(shape[op.axis :]) for shape in op.bottoms]
        outer = math.prod(op.bottoms[0][: op.axis])
        if self.last:
            plane = math.prod(op.bottoms[0][2:])
            widths, outer = [width // plane for width in widths], outer * plane
        full = sum(widths)
        columns = list(zip(widths, accumulate(widths, initial=0), strict=False))
        self._copies, self._gradients = (
            [
                engine.vectorized(
                    *("elementwise", name, self.dtype, outer * width, width, full, first),
                    reach=outer * full,
                )
                for width, first in columns
            ]
            for name in ("into_columns", "from_columns")
        )

    def forward(self) -> None:
        sources = [blob.read() for blob in self.at.bottom]
        y = self.at.top[0].buffer()
        for x, copy in zip(sources, self._copies, strict=True):
            copy(x, y)

    def backward(self) -> None:
        at = self.at
        dy = at.top[0].read_diff()
        for blob, wanted, copy in zip(at.bottom, at.propagate_down, self._gradients, strict=True):
            if wanted:
                copy(dy, blob.diff_buffer())


class SplitStep(GpuStep[ops.Split]):
    """The tops share the bottom's data; its gradient is the sum of theirs."""

    narrow_params, computes, follows_layout = (), False, True
    code, backward_code = "shared", "kernel"

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.tops < 2, "one reader, for which nothing is summed")
        self._sums = [
            engine.vectorized("elementwise", "sum_of_few", self.dtype, math.prod(op.shape), number)
            for number in range(AT_ONCE + 1)
        ]

    def forward(self) -> None:
        share(self.at)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            rest = [blob.read_diff() for blob in at.top]
            dx = at.bottom[0].diff_buffer()
            while len(rest) > 1:
                some, rest = rest[:AT_ONCE], [dx, *rest[AT_ONCE:]]
                number = len(some)
                self._sums[number](*some, *some[:1] * (AT_ONCE - number), dx)
