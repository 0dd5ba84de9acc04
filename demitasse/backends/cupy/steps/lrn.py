"""Local response normalisation across channels, or within them."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["LRNStep"]


class LRNStep(GpuStep[ops.LRN]):
    """y = x * scale^-beta; scale = k + alpha / size * sum of x^2 over ``size`` channels around.

    Within channels the sum is over a window of ``size`` by ``size`` pixels, and k is 1.

    Shapes: bottom (N, C, H, W) -> top the same.
    """

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        across = op.region == "ACROSS_CHANNELS"
        channels, *plane = op.bottom[1:]
        sizes = (channels, math.prod(plane)) if across else tuple(plane)
        # kernels count in 32 bits; beyond the edges there is nothing to add
        counts = (math.prod(op.bottom), *sizes, min(op.size, 2 * max(op.bottom[1:]) + 1))
        rate, beta = op.alpha / op.size ** (1 if across else 2), float(op.beta)
        k = (float(op.k),) if across else ()
        name = "lrn_across" if across else "lrn_within"
        self._forward = engine.each(
            "lrn", name, self.dtype, *counts, rate, beta, *k, int(at.backward)
        )
        self._backward = engine.each(
            "lrn", f"{name}_gradient", op.dtype, *counts, beta, 2 * rate * beta
        )

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # only backward needs the scale; without it the kernel does not write there
        scale = at.saved("scale", self.op.bottom).buffer() if at.backward else y
        self._forward(x, scale, y)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            x, y, dy = at.bottom[0].read(), at.top[0].read(), at.top[0].read_diff()
            scale = at.saved("scale", self.op.bottom).read()
            self._backward(x, y, scale, dy, at.bottom[0].diff_buffer())
