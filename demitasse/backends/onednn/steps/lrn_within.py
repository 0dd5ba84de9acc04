"""Local response normalisation within channels, in kernels of our own."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import candidates
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.maps import within_kernel
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.step import Declined, Operands, decline_in_place

__all__ = ["LRNWithinStep"]


class LRNWithinStep(OnednnStep[ops.LRN]):
    """Images in a layout with whole vectors of channels, in both directions."""

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        if op.region != "WITHIN_CHANNEL":
            message = f"{op.region}; the kernel is for WITHIN_CHANNEL"
            raise Declined(message)

    def prepare(self) -> None:
        at, engine = self.at, self.engine
        for layout in candidates(engine, engine.expected(at.bottom[0].data_memory, self.op.bottom)):
            kernel = within_kernel(engine, self.op, layout)
            if kernel is not None:
                break
        else:
            message = "channels that fill no vectors, or another exponent than 0.75"
            raise Declined(message)
        from demitasse.backends.onednn.own_kernels.lrn_calls import LRNCall

        self.kernel, self.layout = kernel, layout
        source = Reader(Arg.SRC, at.bottom[0], layout)
        target = Writer(Arg.DST, at.top[0], layout)
        self.forward_calls = [LRNCall(engine, kernel, source, target)]

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return
        from demitasse.backends.onednn.own_kernels.lrn_calls import LRNGradientCall

        source = Reader(Arg.SRC, at.bottom[0], layout)
        dy = Reader(Arg.DIFF_DST, at.top[0], layout, diff=True)
        dx = Writer(Arg.DIFF_SRC, at.bottom[0], layout, diff=True)
        self.backward_calls = [LRNGradientCall(self.engine, self.kernel, source, dy, dx)]
