"""Interp: planes resized by bilinear interpolation; the gradient is two products of matrices."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.unary import interpolation_kernel, map_call
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined


class InterpolationStep(OnednnStep[ops.Interpolation]):
    """With the channels last, in the bottom as in the top."""

    portable_gradient = True

    def prepare(self) -> None:
        at, engine, op = self.at, self.engine, self.op
        x, y = (engine.innermost_layout(shape, 1) for shape in (op.bottom, op.top))
        kernel = interpolation_kernel(engine, op)
        if kernel is None:
            message = "no kernels are made at run time; this needs one"
            raise Declined(message)
        source, target = InputArg(Arg.SRC, at.bottom[0], x), OutputArg(Arg.DST, at.top[0], y)
        self.forward_calls = [map_call(engine, source, target, kernel)]
