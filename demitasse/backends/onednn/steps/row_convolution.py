"""Convolution of one-channel images by filters of the full width.

Rows are words or the frequencies of a sound; a filter moves down only. The library is slow for wide
filters of one channel. The memory of such an image equals a channels-last image with one pixel per
row and one channel per column, so the primitive runs on that view without a copy.
"""

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.arguments import (
    Argument,
    Call,
    GradArg,
    InputArg,
    OutputArg,
    ParamArg,
)
from demitasse.backends.onednn.library.constants import Arg, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, dims, layout_of
from demitasse.backends.onednn.library.primitive import Description
from demitasse.backends.onednn.step import Fixed
from demitasse.backends.onednn.steps.activation import post_ops, rectifying
from demitasse.backends.onednn.steps.convolution import WindowStep
from demitasse.backends.step import Memory, Operand, Operands, decline_if

FEWEST = 16
"""Columns from which on it pays: as many as a vector has numbers."""


class _TransposedFilters(ParamArg):
    """Filters with columns as channels."""

    __slots__ = ("_here",)

    def __init__(self, blob: Operand, here: Layout, layout: Layout) -> None:
        super().__init__(Arg.WEIGHTS, blob, layout)
        self._here = here

    def array(self) -> np.ndarray:
        return self._converted()

    def _convert(self, memory: Memory, target: np.ndarray) -> None:
        self.engine.reorder(memory.cpu_data(), self._here, target, self.layout)


class _TransposedGradient(GradArg):
    """The gradient of such filters: what the primitive writes is turned back."""

    __slots__ = ("_here",)

    def __init__(self, blob: Operand, here: Layout, layout: Layout) -> None:
        super().__init__(Arg.DIFF_WEIGHTS, blob, layout)
        self._here = here

    def array(self) -> np.ndarray:
        self._part = self.engine.scratch_for(self.role, self.layout.size)
        return self._part

    def done(self) -> None:
        if self._part is None:
            return
        command_queue.mark_incomplete()
        memory, count = self.memory, self._here.size
        if memory.cleared:
            total = memory.mutable_cpu_data(discard=True)
            self.engine.reorder(self._part, self.layout, total, self._here)
            return
        part = aligned(count)
        self.engine.reorder(self._part, self.layout, part, self._here)
        total = memory.mutable_cpu_data()[:count]
        total += part


class FullWidthConvStep(WindowStep[ops.Conv]):
    """One bottom, one top."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        super().__init__(engine, op, at)
        engine.tuning.require("row_convolution")
        wanted = at.param_propagate_down
        message = "a bias that is learned without its weight; both are one primitive's"
        decline_if(op.bias and at.backward and wanted[1] and not wanted[0], message)
        decline_if(op.after, "other pads after the axes than before; rows have the same")
        message = f"images of one channel and {FEWEST} columns or more are taken by their rows"
        decline_if(len(op.kernel) != 2 or self.image[1] != 1 or self.image[3] < FEWEST, message)
        n, _, rows, columns = self.image
        message = "filters that are not as wide as the image; those are taken by its rows"
        decline_if((op.kernel[1], op.pad[1], op.dilation[1]) != (columns, 0, 1), message)
        self.bias = engine.plain((self.maps[1],)) if op.bias else None
        self._x = engine.innermost((n, columns, 1, rows), 1)
        self._y = engine.innermost((n, self.maps[1], 1, self.maps[2]), 1)
        self._shape = (self.maps[1], columns, 1, op.kernel[0])
        turned = engine.innermost(self._shape, 1)
        self._here = layout_of(engine.library, turned)
        pad = dims((0, op.pad[0]))
        self.window = [dims((1, op.stride[0])), dims((0, op.dilation[0] - 1)), pad, pad]
        self.hint = self._describe(engine.attributes)

    def prepare(self) -> None:
        self.forward_calls = [self._call(self.hint, self.at.top[0], [])]

    def with_activation(self, then: ops.Activation, target: Operand) -> Call:
        """Return the convolution with an activation after it."""
        post_ops(then)
        found, fixed = rectifying(self.engine, self._describe, self.hint, len(self.maps))
        return self._call(found, target, fixed)

    def _describe(self, attributes: int) -> Description:
        w = self.engine.any(self._shape)
        return self.describe("forward", self._x, w, self._y, self.bias, attributes=attributes)

    def _call(self, found: Description, target: Operand, fixed: list[Fixed]) -> Call:
        at = self.at
        arguments: list[Argument] = [
            self._images(),
            _TransposedFilters(at.params[0], self._here, found.layout(Query.WEIGHTS)),
        ]
        if self.bias:
            arguments.append(InputArg(Arg.BIAS, at.params[1], self.bias))
        written = OutputArg(Arg.DST, target, self.engine.innermost_layout(self.maps, 1))
        written.descriptor = self._y
        return Call(self.engine, found, [*arguments, written], fixed)

    def _images(self) -> InputArg:
        """Return what reads the images, whose columns are taken for channels."""
        source = InputArg(Arg.SRC, self.at.bottom[0], self.engine.plain(self.image))
        source.descriptor = self._x
        return source

    def _slopes(self) -> InputArg:
        """Return what reads the gradient of the top."""
        layout = self.engine.innermost_layout(self.maps, 1)
        source = InputArg(Arg.DIFF_DST, self.at.top[0], layout, diff=True)
        source.descriptor = self._y
        return source

    def _weights_gradient(self) -> Call:
        engine, at = self.engine, self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        w = engine.any(self._shape)
        found = self.describe("backward_weights", self._x, w, self._y, bias, self.hint)
        filters = _TransposedGradient(at.params[0], self._here, found.layout(Query.DIFF_WEIGHTS))
        arguments: list[Argument] = [self._images(), self._slopes(), filters]
        if bias:
            arguments.append(GradArg(Arg.DIFF_BIAS, at.params[1], bias))
        return Call(engine, found, arguments)

    def _data_gradient(self) -> Call:
        engine, at = self.engine, self.at
        w = engine.any(self._shape)
        found = self.describe("backward_data", self._x, w, self._y, hint=self.hint)
        filters = _TransposedFilters(at.params[0], self._here, found.layout(Query.WEIGHTS))
        target = OutputArg(Arg.DIFF_SRC, at.bottom[0], engine.plain(self.image), diff=True)
        target.descriptor = self._x
        return Call(engine, found, [self._slopes(), filters, target])
