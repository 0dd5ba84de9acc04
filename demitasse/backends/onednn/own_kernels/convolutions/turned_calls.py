"""Calls of the kernels that compute gradients of convolutions to few channels."""

from __future__ import annotations

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.direct.gradient import DirectGradient
from demitasse.backends.kernels.direct.schedule import Banding
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import later
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.calls import KernelCall
from demitasse.backends.onednn.own_kernels.convolutions.direct_calls import DirectCall
from demitasse.backends.onednn.steps.conv_operands import GradientOperands

__all__ = ["TurnedCall", "TurnedGradientCall"]


class TurnedCall(DirectCall):
    """The gradient of the input."""

    def _pass_weights(self, weights: np.ndarray) -> None:
        c, m, *kernel = _shape(self._banding)
        there = weights.reshape(m, c, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        super()._pass_weights(np.ascontiguousarray(there).reshape(-1))


class TurnedGradientCall(KernelCall):
    """The gradients of weights and bias.

    Args:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
        operands: Its operands; the output's gradient is in C order.
        images: Where the input lies.
    """

    def __init__(
        self, engine: Engine, banding: Banding, operands: GradientOperands, images: Images
    ) -> None:
        self.operands, self._banding = operands, banding
        self._kernel = DirectGradient(banding, images, bias=False)
        self._turned = aligned(banding.y[1] * banding.taps)
        super().__init__(engine, operands.ports, self._kernel.code)

    @property
    def kept(self) -> int:
        return self._kernel.sums.nbytes + self._turned.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(dy, source, self._turned, None, scratch)
        later.put(self._turn, (weight,), None)
        operands.weight.done()
        if operands.bias:
            later.put(self._sum, (dy, operands.bias.array()), None)
            operands.bias.done()

    def _turn(self, weight: np.ndarray) -> None:
        """Write the gradient of the filters, which are in each other's place and turned round."""
        c, m, *kernel = _shape(self._banding)
        there = self._turned.reshape(c, m, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        weight[: there.size].reshape(there.shape)[...] = there

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        """Write the gradient of the bias."""
        n, m, *places = self._banding.x
        each = np.add.reduce(dy[: n * m * places[0] * places[1]].reshape(n, m, -1), axis=2)
        np.add.reduce(each, axis=0, out=bias[:m])


def _shape(banding: Banding) -> tuple[int, ...]:
    """Return the shape of the turned filters: (C, M, *kernel), of C channels of the input."""
    return banding.y[1], banding.x[1], *banding.op.kernel
