"""Eltwise sums, Concat, Scale and the gradient of Split: a kernel for each array that is read."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, Protocol, cast

from demitasse.backends import ops
from demitasse.backends.base import BlobLike, Operands, Step
from demitasse.backends.cupy.backend import CupyBackend
from demitasse.backends.cupy.library.engine import Launch
from demitasse.backends.cupy.step import DTYPES, EngineStep, total_of

__all__ = ["ConcatStep", "ScaleStep", "SplitStep", "SumStep"]


class SumStep(EngineStep):
    """y = sum of coefficient * x; may run in place of the first bottom.

    Shapes: bottoms all the same -> top the same.
    """

    def __init__(self, backend: Any, op: ops.Eltwise, operands: Operands) -> None:
        super().__init__(backend, operands)
        count, factors = math.prod(op.shape), [float(c) for c in op.coefficients]

        def each(name: str, *numbers: float) -> Launch:
            return self.engine.each("elementwise", name, op.dtype, count, *numbers)

        self._first = each("weighted_sum", *factors[:2])
        self._more = [each("weighted_sum", 1.0, factor) for factor in factors[2:]]
        self._gradients = [each("scaled", factor) for factor in factors]

    def forward(self) -> None:
        at = self.operands
        a, b, *more = [blob.read() for blob in at.bottom]
        y = at.top[0].buffer()
        self._first(a, b, y)
        for x, add in zip(more, self._more, strict=True):
            add(y, x, y)

    def backward(self) -> None:
        at = self.operands
        dy = at.top[0].read_diff()
        # backwards, since in place the first bottom's gradient is the top's
        for index in reversed(range(len(at.bottom))):
            if at.propagate_down[index]:
                self._gradients[index](dy, at.bottom[index].diff_buffer())


class ConcatStep(EngineStep):
    """Bottoms beside each other along one axis.

    Shapes: as ``ops.Concat`` says.
    """

    def __init__(self, backend: Any, op: ops.Concat, operands: Operands) -> None:
        super().__init__(backend, operands)
        widths = [math.prod(shape[op.axis :]) for shape in op.bottoms]
        outer, full = math.prod(op.bottoms[0][: op.axis]), sum(widths)
        places = list(zip(widths, accumulate(widths, initial=0), strict=False))
        self._copies, self._gradients = (
            [
                self.engine.each(
                    *("elementwise", name, op.dtype, outer * width, width, full, first),
                    reach=outer * full,
                )
                for width, first in places
            ]
            for name in ("into_columns", "from_columns")
        )

    def forward(self) -> None:
        at = self.operands
        sources = [blob.read() for blob in at.bottom]
        y = at.top[0].buffer()
        for x, copy in zip(sources, self._copies, strict=True):
            copy(x, y)

    def backward(self) -> None:
        at = self.operands
        dy = at.top[0].read_diff()
        for blob, wanted, copy in zip(at.bottom, at.propagate_down, self._gradients, strict=True):
            if wanted:
                copy(dy, blob.diff_buffer())


class _Shared(Protocol):
    """A blob that can hold another's data."""

    def share_data(self, other: BlobLike) -> None: ...


class SplitStep(EngineStep):
    """Tops share the bottom's data; its gradient is the sum of theirs."""

    def __init__(self, backend: Any, op: ops.Split, operands: Operands) -> None:
        super().__init__(backend, operands)
        one = ("elementwise", "weighted_sum", op.dtype, math.prod(op.shape), 1.0, 1.0)
        self._add = self.engine.each(*one)

    def forward(self) -> None:
        for top in self.operands.top:
            cast("_Shared", top).share_data(self.operands.bottom[0])

    def backward(self) -> None:
        at = self.operands
        if at.propagate_down[0]:
            total, *others = [blob.read_diff() for blob in at.top]
            dx = at.bottom[0].diff_buffer()
            for other in others:
                self._add(total, other, dx)
                total = dx


class ScaleStep(EngineStep):
    """y = x * s (+ b) with a learned s; may run in place.

    Shapes: x (outer, dim, inner), s and b (dim,).
    """

    def __init__(self, backend: Any, op: ops.Scale, operands: Operands) -> None:
        super().__init__(backend, operands)
        self.count, self.bias = op.outer * op.dim * op.inner, op.bias
        each = self.engine.each
        size = ("elementwise", "scale", op.dtype, self.count, op.dim, op.inner)
        self._forward, self._spread = each(*size, int(op.bias)), each(*size, 0)
        self._keep = each("elementwise", "scaled", op.dtype, self.count, 1.0)
        wanted = operands.param_propagate_down
        self.want_s, self.want_b = wanted[0], op.bias and wanted[1]
        self._gradients = self.engine.rows(
            *("elementwise", "add_scale_gradients", op.dtype, op.dim, op.outer * op.inner),
            *(op.dim, op.outer, op.inner, int(self.want_s), int(self.want_b)),
        )

    def forward(self) -> None:
        at = self.operands
        x, scale = at.bottom[0].read(), at.params[0].read()
        bias = at.params[1].read() if self.bias else scale
        if at.in_place and at.backward and self.want_s:
            self._keep(x, at.saved("x", at.bottom[0].shape).buffer())
        self._forward(x, scale, bias, at.top[0].buffer())

    def backward(self) -> None:
        at = self.operands
        dy = at.top[0].read_diff()
        if self.want_s or self.want_b:
            kept = at.in_place and self.want_s
            x = (at.saved("x", at.bottom[0].shape) if kept else at.bottom[0]).read()
            # what is not wanted is not written
            ds = total_of(at.params[0]) if self.want_s else dy
            db = total_of(at.params[1]) if self.want_b else dy
            self._gradients(x, dy, ds, db)
        if at.propagate_down[0]:
            scale = at.params[0].read()
            self._spread(dy, scale, scale, at.bottom[0].diff_buffer())


@CupyBackend.lowers(ops.Eltwise)
def lower_sum(backend: Any, op: ops.Eltwise, operands: Operands) -> Step | None:
    """Lower sums; the layer's own code runs for products and maxima."""
    later = operands.bottom[1:]
    if op.operation != "SUM" or op.dtype not in DTYPES or operands.top[0] in later:
        return None
    return SumStep(backend, op, operands)


@CupyBackend.lowers(ops.Concat)
def lower_concat(backend: Any, op: ops.Concat, operands: Operands) -> Step | None:
    """Lower all but a single bottom, which is shared rather than copied."""
    if len(op.bottoms) == 1 or op.dtype not in DTYPES or operands.in_place:
        return None
    return ConcatStep(backend, op, operands)


@CupyBackend.lowers(ops.Split)
def lower_split(backend: Any, op: ops.Split, operands: Operands) -> Step | None:
    """Lower two tops and more."""
    return SplitStep(backend, op, operands) if op.tops > 1 and op.dtype in DTYPES else None


@CupyBackend.lowers(ops.Scale)
def lower_scale(backend: Any, op: ops.Scale, operands: Operands) -> Step | None:
    """Lower a learned scale; a second bottom is left to the layer's own code."""
    if len(operands.bottom) > 1 or op.dtype not in DTYPES:
        return None
    return ScaleStep(backend, op, operands)
