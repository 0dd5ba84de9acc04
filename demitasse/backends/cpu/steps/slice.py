"""Slice, Crop, Split, Permute and ShuffleChannel."""

import math
from collections.abc import Sequence
from itertools import pairwise

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, copy_call
from demitasse.backends.cpu.layout import Layout, c_order
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.elementwise import summed
from demitasse.backends.step import Operand, Operands, decline_if, share


class SliceStep(CpuStep[ops.Slice]):
    """Channels last where the bottom is not in C order."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Slice, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(len(at.top) == 1, "one top, which shares the bottom's memory")

    def prepare(self) -> None:
        [bottom], op, engine = self.at.bottom, self.op, self.engine
        whole = self.expected(bottom, op.bottom)
        if not whole.plain and len(op.bottom) >= IMAGES:
            whole = layouts.innermost(op.bottom, 1)
        self._whole, self._parts = whole, [self._part(whole, *ends) for ends in pairwise(op.ends)]
        places = zip(self.at.top, op.ends[:-1], self._parts, strict=True)
        for top, first, layout in places:
            source, target = InputArg(Arg.SRC, bottom, whole), OutputArg(Arg.DST, top, layout)
            begin = along(op.axis, first, len(op.bottom))
            self.forward_calls.append(part_copy(engine, source, begin, target))

    def _part(self, whole: Layout, first: int, last: int) -> Layout:
        """Return the layout of the top that begins and ends there."""
        op = self.op
        shape = (*op.bottom[: op.axis], last - first, *op.bottom[op.axis + 1 :])
        return like(whole, shape)

    def prepare_backward(self) -> None:
        at, engine, parts = self.at, self.engine, self._parts
        if not at.propagate_down[0]:
            return
        arguments = [
            InputArg(Arg.SRC, top, one, diff=True) for top, one in zip(at.top, parts, strict=True)
        ]
        ends = at.bottom[0], self._whole, self.op.axis
        self.backward_calls += copies_into(engine, arguments, *ends, diff=True)


class CropStep(CpuStep[ops.Crop]):
    """The top has its channels last, unless the bottom is in C order."""

    needs_bottom = True
    portable_gradient = True

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        if len(self.op.bottom) < IMAGES:
            self._prepare_in(layouts.plain(self.op.bottom))
        else:
            layouts.in_some_layout(expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        engine, op = self.engine, self.op
        source, target = self.in_and_out(layout, like(layout, op.top))
        self.forward_calls = [part_copy(engine, source, op.first, target)]


class SplitStep(CpuStep[ops.Split]):
    """The gradient is a sum in the first of the readers' layouts that is not C order."""

    replayable = True  # no elements are looked at

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(not op.shape, "0 axes; kernels take 1 to 12")

    @property
    def code(self) -> str:
        return "shared memory"

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


IMAGES = 3
"""Axes from which on there are channels and places."""


def like(whole: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a part: in C order if the whole is, else with its channels last."""
    return layouts.plain(shape) if whole.plain else layouts.innermost(shape, 1)


def along(axis: int, first: int, axes: int) -> list[int]:
    """Return where a part begins that begins with others along all axes but one."""
    return [first if place == axis else 0 for place in range(axes)]


def part_copy(
    engine: Engine, source: InputArg, first: Sequence[int], target: OutputArg
) -> KernelCall:
    """Return the copy of a part.

    The target's shape is that of the part; ``first`` is its beginning in the source, along each
    axis.

    Raises:
        Declined: Blocks of channels do not end where it begins.
    """
    here = source.layout.part(target.layout.shape, tuple(first))
    return copy_call(engine, source, target, here)


def copies_into(
    engine: Engine,
    sources: Sequence[InputArg],
    target: Operand,
    whole: Layout,
    axis: int,
    *,
    diff: bool = False,
) -> list[KernelCall]:
    """Return the copies of arrays to their places in one that joins them.

    Raises:
        Declined: Blocks of channels do not end where a part begins.
    """
    calls, first = [], 0
    for source in sources:
        shape = source.layout.shape
        begin = tuple(along(axis, first, len(shape)))
        written = OutputArg(Arg.DST, target, whole, diff=diff)
        there = whole.part(shape, begin)
        calls.append(copy_call(engine, source, written, there=there))
        first += shape[axis]
    return calls


class PermuteStep(CpuStep[ops.Permute]):
    """The bottom in the layout it is in; the top in C order."""

    needs_bottom = True

    def prepare(self) -> None:
        self.layout = self.expected(self.at.bottom[0], self.op.bottom)
        source, target = self.in_and_out(self.layout, layouts.plain(self.op.top))
        self.forward_calls = [copy_call(self.engine, source, target, there=self._transposed())]

    def prepare_backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        source = InputArg(Arg.SRC, self.at.top[0], layouts.plain(self.op.top), diff=True)
        target = OutputArg(Arg.DST, self.at.bottom[0], self.layout, diff=True)
        self.backward_calls = [copy_call(self.engine, source, target, self._transposed())]

    def _transposed(self) -> Layout:
        """Return the layout of the top's memory as one of the bottom's shape."""
        op = self.op
        strides = c_order(op.top)
        turned = tuple(strides[op.order.index(axis)] for axis in range(len(op.bottom)))
        return layouts.strided(op.bottom, turned)


class ShuffleStep(CpuStep[ops.Shuffle]):
    """The top in the layout of the bottom: in C order, or with the channels last."""

    needs_bottom = True

    def prepare(self) -> None:
        [bottom], shape = self.at.bottom, self.op.shape
        expected = self.expected(bottom, shape)
        self.layout = expected if expected.plain else layouts.innermost(shape, 1)
        self.forward_calls = [self._copy(self.op.group, diff=False)]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            self.backward_calls = [self._copy(self.op.shape[1] // self.op.group, diff=True)]

    def _copy(self, rows: int, *, diff: bool) -> KernelCall:
        """Return a copy that reads channels by columns, as if they were written in rows."""
        [bottom], [top], shape = self.at.bottom, self.at.top, self.op.shape
        images, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
        columns = channels // rows
        channel, pixel = (pixels, 1) if self.layout.plain else (1, channels)
        table = (images, columns, rows, pixels)
        image = channels * pixels
        read = (image, channel, columns * channel, pixel)
        written = (image, rows * channel, channel, pixel)
        from_, to = (top, bottom) if diff else (bottom, top)
        source = InputArg(Arg.SRC, from_, self.layout, diff=diff)
        target = OutputArg(Arg.DST, to, self.layout, diff=diff)
        ends = (layouts.strided(table, steps) for steps in (read, written))
        return copy_call(self.engine, source, target, *ends)
