"""Convolution, and Deconvolution as the gradient of one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.attributes import RELU, lent_attributes
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.ports import Call, Gradient, Port, Reader, Writer
from demitasse.backends.onednn.step import Part, PreparedStep
from demitasse.backends.onednn.steps.conv_operands import ForwardOperands, GradientOperands
from demitasse.backends.onednn.steps.own_kernels import conv_kernels

if TYPE_CHECKING:
    from demitasse.backends.onednn.steps.pooling import PoolStep

__all__ = ["ConvStep", "Folded"]

MOST_AXES = 3
BLOCK = 16
WASTE = 1.25
"""Padded arithmetic, as a multiple of the real one, from which on another layout is looked for."""


Image = Callable[[ops.Shape], int]
"""Returns the descriptor of a stack of images."""


class Folded:
    """Weights and offsets that somebody makes of several layers' parameters.

    Attributes:
        bias: One offset for each channel of the top.
        update: Takes new weights, in C order; given by what computes with them.
    """

    update: Callable[[np.ndarray], None]

    def __init__(self, bias: np.ndarray) -> None:
        self.bias = bias


class ConvStep(PreparedStep):
    """One bottom, one top; each primitive in the layouts that it likes best."""

    def __init__(self, backend: OnednnBackend, op: ops.Conv, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op
        self.x, self.y = image_shape(op.bottom, op.axis), image_shape(op.top, op.axis)
        pad = dims(op.pad)
        self.window = [dims(op.stride), dims(tuple(d - 1 for d in op.dilation)), pad, pad]
        m, c, g = self.y[1], self.x[1], op.group
        shape = (m // g, c // g, *op.kernel)
        self.w = shape if g == 1 else (g, *shape)
        self.bias = self.engine.plain((m,)) if op.bias else None
        self.images: tuple[Image, Image] = (self.any, self.any)
        self.kernels = conv_kernels(self.engine, op, self.x, self.y, training=at.backward)

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        found = self._choose()
        layouts = found and found.layouts(Query.SRC, Query.WEIGHTS, Query.DST)
        if not found or not layouts:
            return False
        self.hint, self.layouts, top = found, layouts, self.at.top[0]
        self.kernels = self.kernels.within(layouts[0], layouts[2])
        self.forward_calls = [self._ours(top) or self._call(found, top)]
        self.backend.promise(self.at.top[0], layouts[2])
        return True

    def _choose(self) -> Description | None:
        """Return the forward primitive, with the channels last where blocks of them waste time.

        The library's choice for training is blocks. 20 channels take two of 16, and 40% of the
        arithmetic is on padding; an image's only channel becomes a block of 8. With the channels
        last there is no padding.
        """
        last = partial(self.engine.innermost, axis=1)
        if self.at.backward and self._pads_blocks():
            found = self._in(last, last)
            if found and found.implementation.startswith("brgconv"):
                return found
        if self.kernels.pads_filters and not self.at.backward:
            found = self._in(self.any, last)
            if found:
                return found
        found = self._in(self.any, self.any)
        few = self.x[1] // self.op.group < BLOCK
        if found and few and self.at.backward and self._pads_bottom(found):
            better = self._in(self.any, last)
            if better and not self._pads_bottom(better):
                return better
            return self._in(self.any, self.any)
        return found

    def _pads_blocks(self) -> bool:
        """Whether many channels would be padded to so many more that it costs time."""
        c, m = self.x[1] // self.op.group, self.y[1] // self.op.group
        padded = -(-c // BLOCK) * -(-m // BLOCK) * BLOCK * BLOCK
        return min(c, m) >= BLOCK and max(self.op.kernel) > 1 and padded > WASTE * c * m

    def _in(self, bottom: Image, top: Image) -> Description | None:
        """Ask for the forward primitive with these layouts of bottom and top."""
        self.images = bottom, top
        x, y = self._sides()
        return self.describe_forward(x, self.any(self.w), y, self.engine.attributes, self.bias)

    def _sides(self) -> tuple[int, int]:
        """Return descriptors of bottom and top, as they were chosen."""
        bottom, top = self.images
        return bottom(self.x), top(self.y)

    def _pads_bottom(self, found: Description) -> bool:
        """Whether the weights' gradient takes a bottom that is largely padding, or has no code."""
        gradient = self._describe_weights(found, self.bias)
        layout = gradient and gradient.layout(Query.SRC)
        return not layout or layout.size > WASTE * math.prod(self.x)

    def with_relu(self, target: Any) -> PreparedStep | None:
        """Return a Step that runs the ReLU behind it too, in the same layouts."""
        return self.fused(target, relu=True)

    def fused(
        self,
        target: Any,
        *,
        relu: bool,
        other: Any = None,
        folded: Folded | None = None,
        pool: PoolStep | None = None,
    ) -> PreparedStep | None:
        """Return a Step for the forward pass and what follows, in the same layouts, or None.

        Args:
            target: The blob to write.
            relu: Whether a rectifier comes last.
            other: A blob of the top's shape that is added before it.
            folded: Weights and offsets in place of the parameters'.
            pool: The pooling whose top is written in place of the convolution's.
        """
        if self.kernels.tiling is not None and other is not None:
            return None  # tiles save more time than adding in the same primitive does
        step = PreparedStep(self.backend, self.at)
        ours = None if other else self._ours(target, relu=relu, folded=folded, pool=pool)
        if ours is not None:
            step.forward_calls = [ours]
            self.backend.promise(target, pool.y if pool else self.layouts[2])
            return step
        if pool is not None:
            return None
        bias = self.engine.plain((self.y[1],)) if folded else self.bias
        # not those of the layouts: one block of channels lies like channels last, with other code
        x, w, y = map(self.hint.descriptor, (Query.SRC, Query.WEIGHTS, Query.DST))
        functions = [RELU] if relu else []
        with lent_attributes(
            self.engine, other=y if other else None, functions=functions
        ) as attributes:
            found = self.describe_forward(x, w, y, attributes, bias)
        if not found:
            return None
        step.forward_calls = [self._call(found, target, other, folded)]
        self.backend.promise(target, self.layouts[2])
        return step

    def _ours(
        self,
        target: Any,
        *,
        relu: bool = False,
        folded: Folded | None = None,
        pool: PoolStep | None = None,
    ) -> Part | None:
        """Return the forward pass in kernels of our own; None where none pays or can be made."""
        at, (x, _, y) = self.at, self.layouts
        bias: Reader | np.ndarray | None = folded.bias if folded else None
        if self.bias and not folded:
            bias = Reader(Arg.BIAS, at.params[1], self.bias)
        operands = ForwardOperands(
            source=Reader(Arg.SRC, at.bottom[0], x),
            target=Writer(Arg.DST, target, pool.y if pool else y),
            weight=None if folded else at.params[0],
            bias=bias,
            relu=relu,
        )
        made = self.kernels.forward(operands, pool.op if pool else None)
        if made is not None and folded is not None:
            folded.update = made.update
        return made

    def describe_forward(
        self, x: int, w: int, y: int, attributes: int, bias: Layout | None
    ) -> Description | None:
        """Ask for the forward primitive with these descriptors."""
        return self.describe(
            "convolution_forward",
            Pass.TRAINING if self.at.backward else Pass.INFERENCE,
            Algorithm.CONVOLUTION,
            x,
            w,
            bias.handle if bias else None,
            y,
            *self.window,
            attributes,
        )

    def _call(
        self, found: Description, target: Any, other: Any = None, folded: Folded | None = None
    ) -> Call:
        at, (x, w, y) = self.at, self.layouts
        ports: list[Port] = [Reader(Arg.SRC, at.bottom[0], x)]
        fixed: list[tuple[int, int, np.ndarray]] = []
        if folded is not None:
            packed = aligned(w.size)
            folded.update = partial(self._pack, packed=packed)
            offsets = self.engine.plain((self.y[1],)).handle
            fixed = [(Arg.WEIGHTS, w.handle, packed), (Arg.BIAS, offsets, folded.bias)]
        else:
            ports.append(Reader(Arg.WEIGHTS, at.params[0], w))
            if self.bias:
                ports.append(Reader(Arg.BIAS, at.params[1], self.bias))
        if other is not None:
            ports.append(Reader(Arg.ADDED, other, y))
        return Call(self.engine, found, [*ports, Writer(Arg.DST, target, y)], fixed)

    def _pack(self, weights: np.ndarray, packed: np.ndarray) -> None:
        layout = self.layouts[1]
        self.engine.reorder(weights, self.engine.plain(layout.shape), packed, layout)

    def prepare_backward(self) -> bool:
        if any(self.at.param_propagate_down) and not self._prepare_weights():
            return False
        return not self.at.propagate_down[0] or self._prepare_data()

    def _prepare_weights(self) -> bool:
        at = self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        found = self._describe_weights(self.hint, bias)
        layouts = found and found.layouts(Query.SRC, Query.DIFF_WEIGHTS, Query.DIFF_DST)
        if not found or not layouts:
            return False
        x, w, dy = layouts
        source = Reader(Arg.SRC, at.bottom[0], x)
        gradient = Reader(Arg.DIFF_DST, at.top[0], dy, diff=True)
        offset = Gradient(Arg.DIFF_BIAS, at.params[1], bias, diff=True) if bias else None
        plain = Gradient(Arg.DIFF_WEIGHTS, at.params[0], self.engine.plain(self.w), diff=True)
        ours = self.kernels.weights(GradientOperands(source, gradient, plain, offset))
        if ours is not None:
            self.backward_calls.append(ours)
            return True
        target = Gradient(Arg.DIFF_WEIGHTS, at.params[0], w, diff=True)
        ports: list[Port] = [source, gradient, target, *([offset] if offset else [])]
        self.backward_calls.append(Call(self.engine, found, ports))
        return True

    def _describe_weights(self, hint: Description, bias: Layout | None) -> Description | None:
        """Ask for the gradient of the weights that goes with the forward primitive ``hint``."""
        x, y = self._sides()
        return self.describe(
            "convolution_backward_weights",
            Algorithm.CONVOLUTION,
            x,
            self.any(self.w),
            bias.handle if bias else None,
            y,
            *self.window,
            hint.handle,
            self.engine.attributes,
        )

    def _prepare_data(self) -> bool:
        at = self.at
        x, y = self._sides()
        found = self.describe(
            "convolution_backward_data",
            Algorithm.CONVOLUTION,
            x,
            self.any(self.w),
            y,
            *self.window,
            self.hint.handle,
            self.engine.attributes,
        )
        layouts = found and found.layouts(Query.DIFF_SRC, Query.WEIGHTS, Query.DIFF_DST)
        if not found or not layouts:
            return False
        dx, w, dy = layouts
        bottom = at.bottom[0]
        source = Reader(Arg.DIFF_DST, at.top[0], dy, diff=True)
        target = Writer(Arg.DIFF_SRC, bottom, dx, diff=True)
        self.backend.promise(bottom, dx, diff=True)
        ours = self.kernels.data(ForwardOperands(source, target, at.params[0]))
        if ours is not None:
            self.backward_calls.append(ours)
            return True
        ports = [source, Reader(Arg.WEIGHTS, at.params[0], w), target]
        self.backward_calls.append(Call(self.engine, found, ports))
        return True


def image_shape(shape: ops.Shape, axis: int) -> ops.Shape:
    """Return (N, C, *spatial) of a blob whose channels are on ``axis``."""
    return (math.prod(shape[:axis]), *shape[axis:])


@OnednnBackend.lowers(ops.Conv)
def conv(backend: Any, op: ops.Conv, at: Operands) -> Step | None:
    """Convolution over one to three axes."""
    if not suits(op, at):
        return None
    step = ConvStep(backend, op, at)
    return step if step.prepare() else None


def suits(op: ops.Conv, at: Operands) -> bool:
    """Whether oneDNN has a primitive for this at all."""
    return (
        op.dtype == "float32"
        and 1 <= len(op.kernel) <= MOST_AXES
        and len(at.bottom) == 1
        and not at.in_place
        and 0 not in op.bottom
        and 0 not in op.top
    )
