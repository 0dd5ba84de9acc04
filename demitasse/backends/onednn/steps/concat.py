"""Concat: one copy forward, one for each bottom backward."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.onednn.steps.join import JoinCall
from demitasse.backends.onednn.steps.part import along, part_copy
from demitasse.backends.step import Declined, Operand, Operands, decline_in_place

__all__ = ["ConcatStep"]


class ConcatStep(OnednnStep[ops.Concat]):
    """Every bottom in the layout it is in; the top in one that oneDNN finds.

    Where bottoms may lie in the top, they are joined as they are written.
    """

    def __init__(self, engine: Engine, op: ops.Concat, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if len(at.bottom) == 1:
            message = "one bottom; oneDNN's Step joins two or more"
            raise Declined(message)
        if () in op.bottoms:
            message = "0 axes; oneDNN takes 1 to 12"
            raise Declined(message)

    def prepare(self) -> None:
        at, op, engine = self.at, self.op, self.engine
        home = at.top[0].data_memory.concat_slot
        if home is not None and op.axis == 1 and not at.backward:
            self.y = engine.part(home)
            self.forward_calls = [JoinCall(engine, at, home)]
            return
        pairs = zip(at.bottom, op.bottoms, strict=True)
        layouts = [engine.expected(blob.data_memory, shape) for blob, shape in pairs]
        found = engine.describe(
            "concat",
            self._wanted(layouts),
            len(layouts),
            op.axis,
            (c_void_p * len(layouts))(*[layout.handle for layout in layouts]),
            engine.attributes,
            general=True,  # made of reorders, which are good
        )
        y = found.layout(Query.DST)
        ports = zip(at.bottom, layouts, strict=True)
        reads = [Reader(Arg.MULTIPLE_SRC + i, m, layout) for i, (m, layout) in enumerate(ports)]
        self.forward_calls = [Call(engine, found, [*reads, Writer(Arg.DST, at.top[0], y)])]
        self.layouts, self.y = layouts, y

    def _wanted(self, layouts: Sequence[Layout]) -> int | None:
        """Return the descriptor of the top; None leaves it to the library.

        It would follow the first bottom. Where that is in blocks of channels, all that is joined to
        it later would be too, though convolutions without gradients want the channels last; and
        where it is in C order, convolutions behind it would convert it in any case.
        """
        op, shape = self.op, self.at.top[0].shape
        if any(layout is not self.engine.whole(layout) for layout in layouts):
            return self.engine.innermost(shape, 1)  # not as far apart as in another top
        if op.axis != 1 or (self.at.backward and not layouts[0].plain):
            return None
        last = [layout is self.engine.innermost_layout(layout.shape, 1) for layout in layouts]
        return self.engine.innermost(shape, 1) if any(last) and not all(last) else None

    def prepare_backward(self) -> None:
        shape = self.y.shape
        dy = self.engine.expected(self.at.top[0].diff_memory, shape)
        reasons: list[str] = []
        for whole in (dy, self.y, self.engine.plain(shape)):
            try:
                self.backward_calls = [*self._copies(whole)]
            except Declined as declined:
                reasons.append(str(declined))
            else:
                return
        raise Declined(reasons[-1])

    def _copies(self, whole: Layout) -> list[Call]:
        """Return the copies of the top's gradient, which is in this layout, to the bottoms'."""
        first, calls = 0, []
        for blob, shape, layout, wanted in zip(
            self.at.bottom, self.op.bottoms, self.layouts, self.at.propagate_down, strict=True
        ):
            if wanted:
                calls.append(self._copy(whole, first, blob, layout))
            first += shape[self.op.axis]
        return calls

    def _copy(self, whole: Layout, first: int, target: Operand, layout: Layout) -> Call:
        """Return the copy of a part of the top's gradient to one bottom's."""
        source = Reader(Arg.SRC, self.at.top[0], whole, diff=True)
        written = Writer(Arg.DST, target, layout, diff=True)
        begin = along(self.op.axis, first, len(layout.shape))
        return part_copy(self.engine, source, begin, written)
