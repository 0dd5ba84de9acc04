"""Slice: a copy for each top, in the layout of the bottom."""

from __future__ import annotations

from itertools import pairwise

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.onednn.steps.part import part_copy
from demitasse.backends.step import Declined, Operands, decline_in_place

__all__ = ["SliceStep"]

IMAGES = 3
"""Axes from which on there are channels and places."""


class SliceStep(OnednnStep[ops.Slice]):
    """Channels last where the bottom is not in C order, and no gradient is wanted."""

    def __init__(self, engine: Engine, op: ops.Slice, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)
        if at.backward:
            message = "gradients of Slice; oneDNN's Step copies forward alone"
            raise Declined(message)
        if len(at.top) == 1:
            message = "one top, which shares the bottom's memory"
            raise Declined(message)

    def prepare(self) -> None:
        [bottom], op, engine = self.at.bottom, self.op, self.engine
        whole = engine.whole(engine.expected(bottom.data_memory, op.bottom))
        if not whole.plain and len(op.bottom) >= IMAGES:
            whole = engine.innermost_layout(op.bottom, 1)
        self.forward_calls = [*self._copies(whole)]

    def _copies(self, whole: Layout) -> list[Call]:
        [bottom], op, engine, calls = self.at.bottom, self.op, self.engine, []
        for top, (first, last) in zip(self.at.top, pairwise(op.ends), strict=True):
            shape = (*op.bottom[: op.axis], last - first, *op.bottom[op.axis + 1 :])
            plain = whole.plain
            layout = engine.plain(shape) if plain else engine.innermost_layout(shape, 1)
            source, target = Reader(Arg.SRC, bottom, whole), Writer(Arg.DST, top, layout)
            calls.append(part_copy(engine, source, op.axis, first, target))
        return calls
