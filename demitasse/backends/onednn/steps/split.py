"""Split: the tops hold the bottom's memory; their gradients are added up."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.sums import summed
from demitasse.backends.step import Declined, Operands, share

__all__ = ["SplitStep"]


class SplitStep(OnednnStep[ops.Split]):
    """The gradient is a sum in the first of the readers' layouts that is not C order."""

    may_wait = True  # no elements are looked at

    def __init__(self, engine: Engine, op: ops.Split, at: Operands) -> None:
        super().__init__(engine, op, at)
        if not op.shape:
            message = "0 axes; oneDNN takes 1 to 12"
            raise Declined(message)

    @property
    def code(self) -> str:
        return "shared memory"

    def forward(self) -> None:
        share(self.at)

    def prepare_backward(self) -> None:
        at, shape = self.at, self.op.shape
        if not at.propagate_down[0]:
            return
        layouts = [self.engine.expected(blob.diff_memory, shape) for blob in at.top]
        layout = next((one for one in layouts if not one.plain), layouts[0])
        ones = [1.0] * len(at.top)
        call = summed(self.engine, at.top, ones, at.bottom[0], layout, diff=True)
        self.backward_calls = [call]
