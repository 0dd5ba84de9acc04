"""Slice: a copy for each top forward, in the layout of the bottom, and one backward."""

from __future__ import annotations

from ctypes import c_void_p
from itertools import pairwise

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.onednn.steps.part import IMAGES, along, like, part_copy
from demitasse.backends.step import Declined, Operands, decline_in_place

__all__ = ["SliceStep"]


class SliceStep(OnednnStep[ops.Slice]):
    """Channels last where the bottom is not in C order."""

    def __init__(self, engine: Engine, op: ops.Slice, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)
        if len(at.top) == 1:
            message = "one top, which shares the bottom's memory"
            raise Declined(message)

    def prepare(self) -> None:
        [bottom], op, engine = self.at.bottom, self.op, self.engine
        whole = engine.whole(engine.expected(bottom.data_memory, op.bottom))
        if not whole.plain and len(op.bottom) >= IMAGES:
            whole = engine.innermost_layout(op.bottom, 1)
        self._whole, self._parts = whole, [self._part(whole, *ends) for ends in pairwise(op.ends)]
        places = zip(self.at.top, op.ends[:-1], self._parts, strict=True)
        for top, first, layout in places:
            source, target = Reader(Arg.SRC, bottom, whole), Writer(Arg.DST, top, layout)
            begin = along(op.axis, first, len(op.bottom))
            self.forward_calls.append(part_copy(engine, source, begin, target))

    def _part(self, whole: Layout, first: int, last: int) -> Layout:
        """Return the layout of the top that begins and ends there."""
        op = self.op
        shape = (*op.bottom[: op.axis], last - first, *op.bottom[op.axis + 1 :])
        return like(self.engine, whole, shape)

    def prepare_backward(self) -> None:
        at, engine, parts = self.at, self.engine, self._parts
        if not at.propagate_down[0]:
            return
        found = engine.describe(
            "concat",
            self._whole.handle,
            len(parts),
            self.op.axis,
            (c_void_p * len(parts))(*[layout.handle for layout in parts]),
            engine.attributes,
            general=True,  # made of reorders, which are good
        )
        pairs = enumerate(zip(at.top, parts, strict=True))
        reads = [Reader(Arg.MULTIPLE_SRC + i, top, one, diff=True) for i, (top, one) in pairs]
        target = Writer(Arg.DST, at.bottom[0], self._whole, diff=True)
        self.backward_calls = [Call(engine, found, [*reads, target])]
