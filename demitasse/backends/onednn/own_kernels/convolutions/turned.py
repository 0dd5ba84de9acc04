"""Gradients of convolutions to few channels, as direct convolutions of the gradient of the output.

That has few channels, as photographs have: the gradient of the input is its convolution to many,
with the filters turned round, and the gradient of the filters is that of those, with the input in
the place of an output's gradient. The library pads the few channels to a vector.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.direct import banding_of
from demitasse.backends.kernels.direct.schedule import Banding
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.images import fitting
from demitasse.backends.onednn.ports import Reader
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.turned_calls import (
        TurnedCall,
        TurnedGradientCall,
    )

__all__ = ["TurnedKernels", "turned_kernels"]


@dataclass(frozen=True)
class TurnedKernels:
    """Name of the code that computes the gradients.

    Its methods return what a Step runs, or None where the library's code is to run.

    Attributes:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
    """

    engine: Engine
    banding: Banding

    def data(self, operands: ConvOperands) -> TurnedCall | None:
        """Return the gradient of the input."""
        images = fitting(operands.target.layout, self.banding.width)
        if images is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.turned_calls import TurnedCall

        operands = replace(operands, source=self._plain(operands.source))
        return TurnedCall(self.engine, self.banding, operands, images)

    def weights(self, operands: GradientOperands) -> TurnedGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        images = fitting(operands.source.layout, self.banding.width)
        if images is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.turned_calls import (
            TurnedGradientCall,
        )

        operands = replace(operands, dy=self._plain(operands.dy))
        return TurnedGradientCall(self.engine, self.banding, operands, images)

    def _plain(self, port: Reader) -> Reader:
        """Return a port of the same gradient in C order, which direct convolution reads."""
        return Reader(Arg.DIFF_DST, port.blob, self.engine.plain(self.banding.x), diff=True)


def turned_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape
) -> TurnedKernels | None:
    """Return what computes the gradients of a convolution to few channels; None for others.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
    """
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, op.kernel, strict=True))
    pad = tuple(r - p for r, p in zip(reach, op.pad, strict=True))
    if op.group > 1 or set(op.stride) != {1} or min(pad) < 0:
        return None
    turned = ops.Conv(
        dtype=op.dtype, bottom=y, top=x, axis=1, kernel=op.kernel, stride=op.stride, pad=pad,
        dilation=op.dilation, group=1, bias=False,
    )  # fmt: skip
    with suppress(Declined):
        return TurnedKernels(engine, banding_of(turned, y, x, engine.tuning.as_set(wanted())))
    return None
