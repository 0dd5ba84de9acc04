"""A convolution whose weights do what factors and offsets after it do, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import later
from demitasse.backends.onednn.step import FusedStep
from demitasse.backends.onednn.steps.conv_operands import Folded
from demitasse.backends.onednn.steps.convolution import ConvStep
from demitasse.backends.onednn.steps.factors import Link, fold, values, versions_of
from demitasse.backends.onednn.steps.tail import Tail

__all__ = ["FoldedStep", "FoldedWeights"]


class FoldedWeights:
    """Weights and offsets of a convolution, and of what multiplies its channels after it.

    Args:
        conv: The convolution.
        links: The operations after it.

    Attributes:
        folded: Who computes with them gives it ``update``.
    """

    def __init__(self, conv: ConvStep, links: Sequence[Link]) -> None:
        self.folded = Folded(aligned(conv.maps[1]))
        self._conv, self._links = conv, links
        self._blobs = [*conv.at.params, *(blob for _, at in links for blob in at.params)]
        self._versions: list[tuple[int, int]] = []

    def follow(self) -> None:
        """Make them again if a parameter has changed."""
        present = versions_of(self._blobs)
        if present != self._versions:
            later.spoil()
            with later.at_once():  # in memory that all Steps share
                self._fold()
            self._versions = present

    def _fold(self) -> None:
        """Multiply factors into the weights, channel by channel, and add up the offsets."""
        conv, bias = self._conv, self.folded.bias
        params, channels = conv.at.params, bias.shape[0]
        factor: np.ndarray = np.ones(channels, np.float32)
        bias[...] = values(params[1]) if conv.op.bias else 0.0
        fold(self._links, factor, bias)
        if self.folded.scale is not None:
            self.folded.scale(factor)
            return
        weight = values(params[0]).reshape(channels, -1)
        [scratch] = conv.engine.workspaces(weight.size)  # until it is packed
        product = scratch[: weight.size]
        np.multiply(weight, factor[:, np.newaxis], out=product.reshape(channels, -1))
        self.folded.update(product)


class FoldedStep(FusedStep[ops.Conv]):
    """A convolution and the factors and offsets of its channels after it, with fixed parameters.

    The folded weights are made again when a parameter has changed.
    """

    may_wait = True  # those are its own

    def __init__(self, conv: ConvStep, tail: Tail, followers: Sequence[str]) -> None:
        self.weights = FoldedWeights(conv, tail.links)
        folded = self.weights.folded
        call = conv.fused(
            tail.target, tail.then, other=tail.other, slopes=tail.slopes, folded=folded,
            pool=tail.pool,
        )  # fmt: skip
        super().__init__(conv, call, followers)
        self.kept = folded.bias.nbytes

    def forward(self) -> None:
        self.weights.follow()
        super().forward()
