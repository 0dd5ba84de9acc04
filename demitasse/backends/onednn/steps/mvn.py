"""MVN of each channel of each item, where no gradient is wanted."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK, channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.own_kernels import plane_norm_call
from demitasse.backends.step import Declined, Operands

__all__ = ["MVNStep"]


class MVNStep(OnednnStep[ops.MVN]):
    """In the layout of the bottom, or with the channels last or in blocks; in place or not."""

    def __init__(self, engine: Engine, op: ops.MVN, at: Operands) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "gradients of MVN; our kernel computes it without"
            raise Declined(message)
        if op.across or not op.divides:
            message = "means alone, or those of all channels; our kernel normalises each channel"
            raise Declined(message)

    def prepare(self) -> None:
        [bottom], engine = self.at.bottom, self.engine
        if bottom.shape != self.op.shape:
            message = f"{len(bottom.shape)} axes; our kernel takes 4"
            raise Declined(message)
        found = engine.whole(engine.expected(bottom.data_memory, bottom.shape))
        last, blocks = (
            engine.innermost_layout(bottom.shape, 1),
            channel_blocks(engine, bottom.shape, BLOCK),
        )
        for layout in dict.fromkeys((found, last, blocks)):
            source = Reader(Arg.SRC, bottom, layout)
            target = Writer(Arg.DST, self.at.top[0], layout)
            call = plane_norm_call(engine, self.op.eps, source, target)
            if call is not None:
                self.forward_calls = [call]
                return
        message = f"{bottom.shape[1]} channels; our kernel takes whole vectors of them"
        raise Declined(message)
