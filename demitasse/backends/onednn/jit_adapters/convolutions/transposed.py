"""Convolutions with transposed images: kernels of a Step, and their calls.

For inputs of few channels, such as photographs. The gradient of the input is a convolution with
rotated filters. The gradient of the filters swaps the input and the output's gradient. The library
would pad the few channels to a vector.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.few_inputs import plan_direct
from demitasse.backends.kernels.few_inputs.schedule import DirectSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.arguments import InputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall
from demitasse.backends.onednn.jit_adapters.convolutions.direct import DirectCall
from demitasse.backends.onednn.jit_adapters.images import images_in_vectors
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    pass

__all__ = ["TransposedCall", "TransposedGradientCall", "TransposedKernels", "transposed_kernels"]


@dataclass(frozen=True)
class TransposedKernels:
    """Name of the code that computes the gradients.

    Its methods return what a Step runs, or None where the library's code is to run.

    Attributes:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
    """

    engine: Engine
    banding: DirectSchedule

    def data(self, operands: ConvOperands) -> TransposedCall | None:
        """Return the gradient of the input."""
        images = images_in_vectors(operands.target.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        return TransposedCall(self.engine, self.banding, operands, images)

    def weights(self, operands: GradientOperands) -> TransposedGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        images = images_in_vectors(operands.source.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, dy=self._plain(operands.dy))
        return TransposedGradientCall(self.engine, self.banding, operands, images)

    def _plain(self, argument: InputArg) -> InputArg:
        """Return an argument for the same gradient in C order, which direct convolution reads."""
        return InputArg(Arg.DIFF_DST, argument.blob, self.engine.plain(self.banding.x), diff=True)


def transposed_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape
) -> TransposedKernels | None:
    """Return what computes the gradients of a convolution to few channels; None for others.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
    """
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, op.kernel, strict=True))
    pad = tuple(r - p for r, p in zip(reach, op.pad, strict=True))
    if op.group > 1 or op.after or set(op.stride) != {1} or min(pad) < 0:
        return None
    turned = ops.Conv(
        dtype=op.dtype, bottom=y, top=x, axis=1, kernel=op.kernel, stride=op.stride, pad=pad,
        dilation=op.dilation, group=1, bias=False,
    )  # fmt: skip
    with suppress(Declined):
        engine.tuning.require("transposed")
        return TransposedKernels(engine, plan_direct(turned, y, x, engine.tuning.as_set(wanted())))
    return None


class TransposedCall(DirectCall):
    """The gradient of the input."""

    def _pass_weights(self, weights: np.ndarray) -> None:
        c, m, *kernel = _shape(self._banding)
        there = weights.reshape(m, c, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        super()._pass_weights(np.ascontiguousarray(there).reshape(-1))


class TransposedGradientCall(KernelCall):
    """The gradients of weights and bias.

    Args:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
        operands: Its operands; the output's gradient is in C order.
        images: Where the input lies.
    """

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: GradientOperands, images: Images
    ) -> None:
        from demitasse.backends.kernels.few_inputs.gradient import DirectGradient

        self.operands, self._banding = operands, banding
        self._kernel = DirectGradient(banding, images, bias=False)
        self._transposed = aligned(banding.y[1] * banding.taps)
        super().__init__(engine, operands.arguments, self._kernel.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.sums.nbytes + self._transposed.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(dy, source, self._transposed, None, scratch)
        command_queue.enqueue(self._write_transposed, (weight,), None)
        operands.weight.done()
        if operands.bias:
            command_queue.enqueue(self._sum, (dy, operands.bias.array()), None)
            operands.bias.done()

    def _write_transposed(self, weight: np.ndarray) -> None:
        """Write the gradient of the filters, which are in each other's place and turned round."""
        c, m, *kernel = _shape(self._banding)
        there = self._transposed.reshape(c, m, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        weight[: there.size].reshape(there.shape)[...] = there

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        """Write the gradient of the bias."""
        n, m, *places = self._banding.x
        each = np.add.reduce(dy[: n * m * places[0] * places[1]].reshape(n, m, -1), axis=2)
        np.add.reduce(each, axis=0, out=bias[:m])


def _shape(banding: DirectSchedule) -> tuple[int, ...]:
    """Return the shape of the turned filters: (C, M, *kernel), of C channels of the input."""
    return banding.y[1], banding.x[1], *banding.op.kernel
