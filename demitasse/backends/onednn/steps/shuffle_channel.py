"""ShuffleChannel: one copy in each direction, of channels that lie last or in C order."""

from __future__ import annotations

import math

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import BlobPort, Call, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["ShuffleChannelStep"]


class ShuffleChannelStep(OnednnStep[ops.ShuffleChannel]):
    """The channels are seen as a table, whose rows the top has as columns."""

    def __init__(self, engine: Engine, op: ops.ShuffleChannel, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)

    def prepare(self) -> None:
        [bottom], engine = self.at.bottom, self.engine
        found = engine.whole(engine.expected(bottom.data_memory, self.op.bottom))
        self.layout = found if found.plain else engine.innermost_layout(self.op.bottom, 1)
        source = Reader(Arg.SRC, bottom, self.layout)
        self.forward_calls = [self._copy(source, Writer(Arg.DST, self.at.top[0], self.layout))]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            source = Reader(Arg.SRC, self.at.top[0], self.layout, diff=True)
            target = Writer(Arg.DST, self.at.bottom[0], self.layout, diff=True)
            self.backward_calls = [self._copy(source, target, back=True)]

    def _copy(self, source: BlobPort, target: BlobPort, *, back: bool = False) -> Call:
        groups, each = self.op.group, self.op.bottom[1] // self.op.group
        by_rows, by_columns = self._table(each, 1), self._table(1, groups)
        source.descriptor, target.descriptor = (
            (by_columns, by_rows) if back else (by_rows, by_columns)
        )
        found = self.engine.describe_reorder(source.descriptor, target.descriptor)
        return Call(self.engine, found, [source, target])

    def _table(self, row: int, column: int) -> int:
        """Return a descriptor of images whose channels are a table, at these distances."""
        n, c, *places = self.op.bottom
        count, one = math.prod(places), 1 if self.layout.plain else c
        channel = count if self.layout.plain else 1
        shape = (n, self.op.group, c // self.op.group, count)
        return self.engine.strided(shape, (c * count, row * channel, column * channel, one))
