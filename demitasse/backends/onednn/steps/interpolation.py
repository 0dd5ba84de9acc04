"""Interp: planes resized by bilinear interpolation, where no gradient is wanted."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.maps import interpolation_kernel, map_call
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined, Operands

__all__ = ["InterpolationStep"]


class InterpolationStep(OnednnStep[ops.Interpolation]):
    """With the channels last, in the bottom as in the top."""

    def __init__(self, engine: Engine, op: ops.Interpolation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "a gradient is wanted; our kernel of interpolation runs forward"
            raise Declined(message)

    def prepare(self) -> None:
        at, engine, op = self.at, self.engine, self.op
        x, y = (engine.innermost_layout(shape, 1) for shape in (op.bottom, op.top))
        kernel = interpolation_kernel(engine, op)
        if kernel is None:
            message = "no kernels are made at run time; this needs one"
            raise Declined(message)
        source, target = Reader(Arg.SRC, at.bottom[0], x), Writer(Arg.DST, at.top[0], y)
        self.forward_calls = [map_call(engine, source, target, kernel)]
