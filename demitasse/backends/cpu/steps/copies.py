"""Slice, Concat, Crop, Upsample, Tile, Embed, Split, Permute and ShuffleChannel."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    BufferArg,
    GradArg,
    InputArg,
    OutputArg,
    PreferredArg,
    parameters,
    rounded_output,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable
from demitasse.backends.cpu.kernel_calls import KernelCall, copy_call, kernel_tuning, row_sum
from demitasse.backends.cpu.layout import Layout, c_order
from demitasse.backends.cpu.step import CpuStep, O
from demitasse.backends.cpu.steps.elementwise import IMAGES, summed
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.row_selection import RowSelection, RowSums
from demitasse.backends.step import Operand, Operands, decline_if, share
from demitasse.core.axes import check_range


def like(whole: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a part: in C order if the whole is, else with its channels last."""
    return layouts.plain(shape) if whole.plain else layouts.innermost(shape, 1)


P = TypeVar("P", ops.Slice, ops.Concat)


class _PartsStep(CpuStep[P]):
    """Copies between a blob, the whole, and its parts along an axis, which have other layouts."""

    needs_bottom = True

    parts: Sequence[tuple[Operand, Layout]]

    def copies(
        self, whole: Operand, layout: Layout, *, joins: bool, diff: bool = False,
        wanted: Sequence[bool] = (), best: Sequence[Layout] = (),
    ) -> list[KernelCall]:  # fmt: skip
        """Return copies from the whole, or with ``joins`` to it, of the ``wanted`` parts or all.

        ``best`` are the layouts in which parts are read best, if any.

        Raises:
            Declined: A copy has too many loops.
        """
        axis, calls, first = self.op.axis, [], 0
        copied = wanted or [True] * len(self.parts)
        preferred: Sequence[Layout | None] = best or [None] * len(self.parts)
        for (blob, own), asked, prefers in zip(self.parts, copied, preferred, strict=True):
            begin = tuple(first if place == axis else 0 for place in range(len(own.shape)))
            first += own.shape[axis]
            if not asked:
                continue
            part, ends = layout.part(own.shape, begin), [(whole, layout), (blob, own)]
            (one, here), (other, there) = reversed(ends) if joins else ends
            source, target = InputArg(one, here, diff=diff), OutputArg(other, there, diff=diff)
            if prefers is not None:
                source = PreferredArg(one, here, prefers)
            places = (None, part) if joins else (part, None)
            calls.append(copy_call(self.engine, source, target, *places))
        return calls


class SliceStep(_PartsStep[ops.Slice]):
    """Channels last where the bottom is not in C order."""

    def prepare(self) -> None:
        op, axis, [bottom] = self.op, self.op.axis, self.at.bottom
        whole = self.expected(bottom, op.bottom)
        if not whole.plain and len(op.bottom) >= IMAGES:
            whole = layouts.innermost(op.bottom, 1)
        lengths = [last - first for first, last in pairwise(op.ends)]
        shapes = [(*op.bottom[:axis], length, *op.bottom[axis + 1 :]) for length in lengths]
        self.parts = [(top, like(whole, one)) for top, one in zip(self.at.top, shapes, strict=True)]
        self.whole = bottom, whole
        self.forward_calls = self.copies(*self.whole, joins=False)

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            self.backward_calls = self.copies(*self.whole, joins=True, diff=True)


class ConcatStep(_PartsStep[ops.Concat]):
    """Every bottom in the layout it is in; the top in C order if all of them are."""

    def __init__(self, engine: Engine, op: ops.Concat, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(() in op.bottoms, "0 axes; copies have 1 to 12")

    def prepare(self) -> None:
        [top], pairs = self.at.top, zip(self.at.bottom, self.op.bottoms, strict=True)
        if self.follows_layouts and self._join_rounded():
            return
        self.parts = [(blob, self.expected(blob, shape)) for blob, shape in pairs]
        known = [layouts.plain(top.shape)]
        if len(top.shape) >= IMAGES and not all(layout.plain for _, layout in self.parts):
            known.insert(0, layouts.innermost(top.shape, 1))
        self.y, self.forward_calls = first_suitable(known, partial(self.copies, top, joins=True))

    @property
    def follows_layouts(self) -> bool:
        return self.rounds and self.op.axis == 1 and len(self.at.top[0].shape) >= IMAGES

    def _join_rounded(self) -> bool:
        """Prepare copies of bfloat16, if all parts fill vectors; return whether they do."""
        at, [top], shapes = self.at, self.at.top, self.op.bottoms
        wide = [layouts.innermost(shape, 1) for shape in shapes]
        best = [layouts.rounded(layout) for layout in wide]
        if not all(layout.bf16 for layout in best):
            return False
        whole = rounded_output(at.layouts, top, layouts.innermost(top.shape, 1)).layout
        self.parts = list(zip(at.bottom, best if whole.bf16 else wide, strict=True))
        self.forward_calls = self.copies(top, whole, joins=True, best=best)
        return True

    def prepare_backward(self) -> None:
        at, [top] = self.at, self.at.top
        known = self.expected(top, diff=True), self.y, layouts.plain(top.shape)
        make = partial(self.copies, top, joins=False, diff=True, wanted=at.propagate_down)
        _, self.backward_calls = first_suitable(known, make)


class CropStep(CpuStep[ops.Crop]):
    """The top has its channels last, unless the bottom is in C order."""

    needs_bottom = True
    portable_gradient = True

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        known = layouts.candidates(expected)
        if len(self.op.bottom) < IMAGES:
            known = known[-1:]
        self.forward_calls = [first_suitable(known, self._copy)[1]]

    def _copy(self, layout: Layout) -> KernelCall:
        shape = self.op.top
        here = layout.part(shape, tuple(self.op.first))
        return copy_call(self.engine, *self.in_and_out(layout, like(layout, shape)), here)


class RepeatStep(CpuStep[ops.Repeat]):
    """The top in the layout of the bottom: in C order, or with the channels last."""

    needs_bottom = True
    portable_gradient = True

    def prepare(self) -> None:
        op = self.op
        x = like(self.expected(self.at.bottom[0], op.bottom), op.bottom)
        y = like(x, op.top)
        *lead, height, width = op.bottom
        blocks = (*lead, height, op.rows, width, op.columns)
        (*outer, row, pixel), (*outer_y, row_y, pixel_y) = x.strides, y.strides
        read = layouts.strided(blocks, (*outer, row, 0, pixel, 0))
        strides = (*outer_y, row_y * op.rows, row_y, pixel_y * op.columns, pixel_y)
        written = layouts.strided(blocks, strides)
        self.forward_calls = [copy_call(self.engine, *self.in_and_out(x, y), read, written)]


class TileStep(CpuStep[ops.Tile]):
    """From C order to C order."""

    needs_bottom = True
    portable_gradient = True

    def prepare(self) -> None:
        op = self.op
        copies = op.blocks, op.tiles, op.inner
        places = layouts.strided(copies, (op.inner, 0, 1)), layouts.plain(copies)
        x, y = (layouts.plain(blob.shape) for blob in (*self.at.bottom, *self.at.top))
        self.forward_calls = [copy_call(self.engine, *self.in_and_out(x, y), *places)]


class EmbedStep(CpuStep[ops.Embed]):
    """Rows in C order. An index without a row is found after the rows are selected."""

    needs_bottom = True

    def prepare(self) -> None:
        op, at, tuning = self.op, self.at, kernel_tuning(self.engine)
        table, *bias = parameters(at.params, InputArg)
        indices, top = self.in_and_out(*self._ends)
        self._outside = np.zeros(1, np.int64)
        outside = BufferArg(layouts.plain((1,)), self._outside)
        kernel = RowSelection(op.count, op.rows, op.columns, tuning, biased=bool(bias))
        ends = indices, table, bias[0] if bias else table, top, outside
        check = partial(call_recorder.call, self._check, uses_blas=False)
        self.forward_calls = [KernelCall(self.engine, kernel, *ends)]
        self.forward_calls.append(KernelCall(self.engine, check, code=""))

    def prepare_backward(self) -> None:
        op, at, x = self.op, self.at, self._ends[0]
        dy = InputArg(at.top[0], self._ends[1], diff=True)
        table, *bias = parameters(at.params, GradArg)
        if at.param_propagate_down[0]:
            kernel = RowSums(op.count, op.rows, op.columns, kernel_tuning(self.engine))
            call = KernelCall(self.engine, kernel, InputArg(at.bottom[0], x), dy, table)
            self.backward_calls.append(call)
        if bias and at.param_propagate_down[1]:
            add_up = row_sum(op.count * op.columns, 1, op.columns)
            self.backward_calls.append(KernelCall(self.engine, add_up, dy, bias[0], code=""))

    @property
    def _ends(self) -> tuple[Layout, Layout]:
        return layouts.plain(self.at.bottom[0].shape), layouts.plain(self.at.top[0].shape)

    def _check(self) -> None:
        if self._outside[0]:
            self._outside[0] = 0
            [bottom] = self.at.bottom
            found = bottom.data_memory.cpu_data()[: self.op.count]
            check_range(bottom.name, found.min(), found.max(), self.op.rows, "rows in the table")


class SplitStep(CpuStep[ops.Split]):
    """The gradient is a sum in the first of the readers' layouts that is not C order."""

    replayable = True  # no elements are looked at
    code = "shared memory"

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(not op.shape, "0 axes; kernels take 1 to 12")

    def forward(self) -> None:
        share(self.at)

    def prepare_backward(self) -> None:
        at, shape = self.at, self.op.shape
        if not at.propagate_down[0]:
            return
        layouts = [self.expected(blob, shape, diff=True) for blob in at.top]
        layout = next((one for one in layouts if not one.plain), layouts[0])
        ones = [1.0] * len(at.top)
        self.backward_calls = summed(self.engine, at.top, ones, at.bottom[0], layout, diff=True)


class _RearrangementStep(CpuStep[O]):
    """A copy between two arrangements, whose gradient is the copy back."""

    needs_bottom = True

    layouts: tuple[Layout, Layout]
    """Layouts of bottom and top."""

    places: tuple[Layout, Layout]
    """Layouts of the elements that are read, and of those that are written."""

    def prepare(self) -> None:
        ends = self.in_and_out(*self.layouts)
        self.forward_calls = [copy_call(self.engine, *ends, *self.places)]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            ends = self.gradients(*self.layouts)
            self.backward_calls = [copy_call(self.engine, *ends, *reversed(self.places))]


class PermuteStep(_RearrangementStep[ops.Permute]):
    """The bottom in the layout it is in, also that of another shape; the top in C order."""

    def prepare(self) -> None:
        op, strides, [bottom] = self.op, c_order(self.op.top), self.at.bottom
        written = self.at.layouts.written(bottom.data_memory)
        x = self.expected(bottom, op.bottom if written is None else written.shape)
        read = layouts.viewed(x, op.bottom)
        if read is None:
            x = read = layouts.plain(op.bottom)
        turned = tuple(strides[op.order.index(axis)] for axis in range(len(op.bottom)))
        self.layouts = x, layouts.plain(op.top)
        self.places = read, layouts.strided(op.bottom, turned)
        super().prepare()


class ShuffleStep(_RearrangementStep[ops.Shuffle]):
    """The top in the layout of the bottom: in C order, or with the channels last.

    Channels are read by columns, as if they were written in rows.
    """

    def prepare(self) -> None:
        [bottom], (images, channels, *spatial) = self.at.bottom, self.op.shape
        x = self.expected(bottom, self.op.shape)
        x = x if x.plain else layouts.innermost(x.shape, 1)
        rows, pixels = self.op.group, math.prod(spatial)
        columns = channels // rows
        channel, pixel = (pixels, 1) if x.plain else (1, channels)
        table, image = (images, columns, rows, pixels), channels * pixels
        read = layouts.strided(table, (image, channel, columns * channel, pixel))
        written = layouts.strided(table, (image, rows * channel, channel, pixel))
        self.layouts, self.places = (x, x), (read, written)
        super().prepare()
