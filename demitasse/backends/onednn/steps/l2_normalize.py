"""Normalize: pixels divided by the lengths of their channels, where no gradient is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.unary import lengths_kernel, map_call
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.step import Derived, OnednnStep
from demitasse.backends.onednn.steps.epilogue import values
from demitasse.backends.step import Declined, Operand, Operands

if TYPE_CHECKING:
    from demitasse.backends.kernels.l2_normalize import L2Normalize

__all__ = ["L2NormalizeStep"]

IMAGE_AXES = 4


class L2NormalizeStep(OnednnStep[ops.L2Normalize]):
    """In the layout of the channels that is found, or with the channels last; in place or not."""

    def __init__(self, engine: Engine, op: ops.L2Normalize, at: Operands) -> None:
        super().__init__(engine, op, at)
        if at.backward:
            message = "a gradient is wanted; our kernel of lengths runs forward"
            raise Declined(message)
        if op.across or len(op.bottom) != IMAGE_AXES:
            what = "a whole item's length" if op.across else f"{len(op.bottom)} axes"
            message = f"{what}; our kernel takes that of each pixel of (N, C, H, W)"
            raise Declined(message)

    def prepare(self) -> None:
        at, engine = self.at, self.engine
        expected = engine.whole(self.expected(at.bottom[0], self.op.bottom))
        layout, kernel = self._in(expected)
        source, target = (
            InputArg(Arg.SRC, at.bottom[0], layout),
            OutputArg(Arg.DST, at.top[0], layout),
        )
        self.derived, self.kept_bytes = [_Scales(at.params, kernel)], kernel.scales.nbytes
        self.forward_calls = [map_call(engine, source, target, kernel)]

    def _in(self, expected: Layout) -> tuple[Layout, L2Normalize]:
        last = self.engine.innermost_layout(self.op.bottom, 1)
        for layout in (expected, last):
            found = lengths_kernel(self.engine, layout, self.op.eps)
            if found is not None:
                return layout, found
        message = "no kernels of ours can be made"
        raise Declined(message)


class _Scales(Derived):
    """The scales of a kernel, copied from the parameter."""

    def __init__(self, params: Sequence[Operand], kernel: L2Normalize) -> None:
        super().__init__(params)
        self._kernel = kernel

    def _derive(self) -> None:
        self._kernel.scales[...] = values(self._params[0])
