"""Concat: by copies, or in place."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import ChannelSlice, address
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, InputArg, OutputArg, layout_uses
from demitasse.backends.cpu.copies import LayoutCopy
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, folded_images
from demitasse.backends.cpu.kernel_calls import first_suitable
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.slice import (
    IMAGES,
    along,
    copies_into,
    part_copy,
)
from demitasse.backends.step import Declined, LayoutUse, Operand, Operands, decline_if


class ConcatStep(CpuStep[ops.Concat]):
    """Every bottom in the layout it is in; the top in one that suits them.

    Where bottoms may lie in the top, they are joined as they are written.
    """

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Concat, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(len(at.bottom) == 1, "one bottom; the Step joins two or more")
        decline_if(() in op.bottoms, "0 axes; copies have 1 to 12")

    def prepare(self) -> None:
        at, op, engine = self.at, self.op, self.engine
        channel_slice = at.top[0].data_memory.concat_slot
        if channel_slice is not None and op.axis == 1 and not at.backward:
            self.y = layouts.part(channel_slice)
            self.forward_calls = [InPlaceConcat(engine, at, channel_slice)]
            return
        pairs = zip(at.bottom, op.bottoms, strict=True)
        self.layouts = [self.expected(blob, shape) for blob, shape in pairs]
        ends = zip(at.bottom, self.layouts, strict=True)
        reads = [InputArg(Arg.SRC, blob, own) for blob, own in ends]

        def copies(y: Layout) -> list[KernelCall]:
            return copies_into(engine, reads, at.top[0], y, op.axis)

        self.y, calls = first_suitable(self._joined_layouts(), copies)
        self.forward_calls = [*calls]

    def _joined_layouts(self) -> Iterator[Layout]:
        """Yield layouts of the top.

        Blocks of channels, where the first bottom has them and no convolution without gradients
        reads the top, because those prefer channels last; channels last; C order.
        """
        found, shape = self.layouts, self.at.top[0].shape
        if len(shape) >= IMAGES and not all(layout.plain for layout in found):
            last = any(one is layouts.innermost(one.shape, 1) for one in found)
            images = folded_images(found[0]) if self.at.backward or not last else None
            if images is not None and shape[1] % images.block == 0 < images.block_stride:
                yield layouts.channel_blocks(shape, images.block)
            yield layouts.innermost(shape, 1)
        yield layouts.plain(shape)

    def prepare_backward(self) -> None:
        shape = self.y.shape
        dy = self.expected(self.at.top[0], shape, diff=True)
        reasons: list[str] = []
        for whole in (dy, self.y, layouts.plain(shape)):
            try:
                self.backward_calls = [*self._copies(whole)]
            except Declined as declined:
                reasons.append(str(declined))
            else:
                return
        raise Declined(reasons[-1])

    def _copies(self, whole: Layout) -> list[KernelCall]:
        """Return the copies of the top's gradient, which is in this layout, to the bottoms'."""
        first, calls = 0, []
        for blob, shape, layout, wanted in zip(
            self.at.bottom, self.op.bottoms, self.layouts, self.at.propagate_down, strict=True
        ):
            if wanted:
                calls.append(self._copy(whole, first, blob, layout))
            first += shape[self.op.axis]
        return calls

    def _copy(self, whole: Layout, first: int, target: Operand, layout: Layout) -> KernelCall:
        """Return the copy of a part of the top's gradient to one bottom's."""
        source = InputArg(Arg.SRC, self.at.top[0], whole, diff=True)
        written = OutputArg(Arg.DST, target, layout, diff=True)
        begin = along(self.op.axis, first, len(layout.shape))
        return part_copy(self.engine, source, begin, written)


FLOAT_BYTES = 4


class InPlaceConcat:
    """Every bottom is where it belongs, or is copied there from whatever layout it is in."""

    implementations = ("joined in place",)
    workspace = 0

    def __init__(self, engine: Engine, at: Operands, channel_slice: ChannelSlice) -> None:
        self._engine = engine
        self._top = OutputArg(Arg.DST, at.top[0], layouts.part(channel_slice))
        self._top.engine = engine
        # bottoms, layouts of their channels in the top, and elements to their beginning there
        self._parts: list[tuple[Operand, Layout, int]] = []
        first = 0
        for blob in at.bottom:
            target = layouts.part(channel_slice.part(blob.shape, first))
            self._parts.append((blob, target, first))
            first += blob.shape[1]
        self._copies: dict[tuple[Layout, Layout], LayoutCopy] = {}

    @property
    def layout_uses(self) -> list[LayoutUse]:
        """The layout of the top."""
        return layout_uses([self._top])

    def __call__(self) -> None:
        top = self._top.array()
        for blob, target, first in self._parts:
            source, layout = self._bottom(blob)
            if layout is not target or address(source) != address(top) + first * FLOAT_BYTES:
                self._copy(source, layout, target, top[first:])

    def _bottom(self, blob: Operand) -> tuple[np.ndarray, Layout]:
        """Return a bottom's array as it is, and its layout."""
        memory = blob.data_memory
        layout: Any = memory.layout
        if layout is not None and layout.shape == blob.shape:
            side = memory.private_data(layout)
            if side is not None:
                return side, layout
        return memory.cpu_data(), layouts.plain(blob.shape)

    def _copy(self, source: np.ndarray, here: Layout, there: Layout, target: np.ndarray) -> None:
        copy = self._copies.get((here, there))
        if copy is None:
            copy = self._copies[here, there] = self._engine.copy(here, there)
        copy(source, target)
