"""Permute and ShuffleChannel.

Channels that lie innermost already, as convolutions write them, are copied as they are where they
shall come last: a detector's boxes and scores.
"""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import BlobArg, Call, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["PermuteStep", "ShuffleStep"]


class PermuteStep(OnednnStep[ops.Permute]):
    """The bottom in the layout it is in; the top in C order."""

    def __init__(self, engine: Engine, op: ops.Permute, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)

    def prepare(self) -> None:
        [bottom] = self.at.bottom
        self.layout = self.expected(bottom, self.op.bottom)
        source = InputArg(Arg.SRC, bottom, self.layout)
        target = OutputArg(Arg.DST, self.at.top[0], self.engine.plain(self.op.top))
        target.descriptor = self._transposed()
        self.forward_calls = [self._copy(source, target)]

    def prepare_backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        source = InputArg(Arg.SRC, self.at.top[0], self.engine.plain(self.op.top), diff=True)
        source.descriptor = self._transposed()
        target = OutputArg(Arg.DST, self.at.bottom[0], self.layout, diff=True)
        self.backward_calls = [self._copy(source, target)]

    def _transposed(self) -> int:
        """Return the descriptor of the top's memory as one of the bottom's shape."""
        op = self.op
        strides = [math.prod(op.top[place + 1 :]) for place in range(len(op.top))]
        turned = tuple(strides[op.order.index(axis)] for axis in range(len(op.bottom)))
        return self.engine.strided(op.bottom, turned)

    def _copy(self, source: BlobArg, target: BlobArg) -> Call:
        found = self.engine.describe_reorder(source.descriptor, target.descriptor)
        return Call(self.engine, found, [source, target])


class ShuffleStep(OnednnStep[ops.Shuffle]):
    """The top in the layout of the bottom: in C order, or with the channels last."""

    def __init__(self, engine: Engine, op: ops.Shuffle, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)

    def prepare(self) -> None:
        [bottom], shape = self.at.bottom, self.op.shape
        expected = self.engine.whole(self.expected(bottom, shape))
        self.layout = expected if expected.plain else self.engine.innermost_layout(shape, 1)
        self.forward_calls = [self._copy(self.op.group, diff=False)]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            self.backward_calls = [self._copy(self.op.shape[1] // self.op.group, diff=True)]

    def _copy(self, rows: int, *, diff: bool) -> Call:
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
        source.descriptor = self.engine.strided(table, read)
        target = OutputArg(Arg.DST, to, self.layout, diff=diff)
        target.descriptor = self.engine.strided(table, written)
        found = self.engine.describe_reorder(source.descriptor, target.descriptor)
        return Call(self.engine, found, [source, target])
