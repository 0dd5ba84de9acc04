"""MVN of each channel of each item; its gradient is left to numpy."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import BLOCK, channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.maps import map_call
from demitasse.backends.onednn.own_kernels.norms import plane_norm_kernel
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined, Operands

__all__ = ["MVNStep"]


class MVNStep(OnednnStep[ops.MVN]):
    """In the layout of the bottom, or with the channels last or in blocks; in place or not."""

    def __init__(self, engine: Engine, op: ops.MVN, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.across or not (op.divides and op.eps > 0):
            message = "all channels at once, or no eps; our kernel normalises each channel with one"
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
            kernel = plane_norm_kernel(engine, self.op.eps, layout)
            if kernel is not None:
                source = Reader(Arg.SRC, bottom, layout)
                target = Writer(Arg.DST, self.at.top[0], layout)
                self.forward_calls = [map_call(engine, source, target, kernel)]
                self._deviations = kernel.deviations
                return
        message = "no kernels are made at run time; this needs one"
        raise Declined(message)

    @property
    def backward_code(self) -> str:
        return "numpy"

    def backward(self) -> None:
        at = self.at
        if not at.propagate_down[0]:
            return
        y, dy = at.top[0].read(), at.top[0].read_diff()
        planes, each = (2, 3), (*at.bottom[0].shape[:2], 1, 1)
        deviations = self._deviations[:, : each[1]]  # without those of padding
        level = np.mean(dy, axis=planes, keepdims=True)
        slope = np.mean(dy * y, axis=planes, keepdims=True)
        at.bottom[0].write_diff((dy - level - y * slope) / deviations.reshape(each))
