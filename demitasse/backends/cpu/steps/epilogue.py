"""Epilogues of convolutions: fused normalisations, factors, activations and sums."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    Folded,
    kernel_tuning,
    rectifier_of,
)
from demitasse.backends.cpu.kernel_calls import BoundCall, suitable_images
from demitasse.backends.cpu.step import CpuStep, Derived, FusedStep, Runnable, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.elementwise import ONES, decline_other_than_relu
from demitasse.backends.cpu.steps.norm import decline_other_scales, stored_statistics
from demitasse.backends.kernels.channel_affine import channel_factors
from demitasse.backends.kernels.images import Images
from demitasse.backends.step import Declined, Operand, Operands, decline_if

PARTS = {
    "links": "factors and offsets",
    "other": "a sum",
    "then": "an activation",
    "slopes": "PReLU",
}
"""Parts of an epilogue: attributes and their meaning."""


@dataclass(frozen=True)
class Epilogue:
    """Operations that are fused with the convolution before them.

    Attributes:
        links: Factors and offsets of its channels.
        other: A blob that is added.
        slopes: The slopes of a PReLU in place of the activation ``then``.
        target: The blob that is written.
    """

    links: Sequence[Link]
    target: Operand
    other: Operand | None = None
    then: ops.Activation | None = None
    slopes: Operand | None = None

    @classmethod
    def match(cls, conv: ConvStep, rest: Sequence[tuple[ops.Op, Operands]]) -> Epilogue:
        """Return the operations after a convolution as an epilogue."""
        links: list[Link] = []
        parts: dict[str, Any] = {}
        target = conv.at.top[0]
        for op, at in rest:
            sums = isinstance(op, ops.Eltwise) and (op.operation, op.coefficients) == ("SUM", ONES)
            if not parts and conv.op.axis == 1 and (link := _link(op, at, conv.op.top)):
                links.append(link)
            elif not parts and sums:
                parts["other"] = at.bottom[at.bottom[0] is target]
            elif isinstance(op, ops.Activation) and parts.keys() <= {"other"}:
                rectifier_of(op)
                parts["then"] = op
            elif isinstance(op, ops.PReLU) and not op.shared and parts.keys() <= {"other"}:
                parts["slopes"] = at.params[0]
            else:
                message = f"{op_title(op)} does not run inside this convolution"
                raise Declined(message)
            target = at.top[0]
        return cls(links, target, **parts)

    def call(self, conv: ConvStep, folded: Folded | None = None) -> Runnable:
        """Return one call for the convolution and the epilogue."""
        other, slopes = self.other, self.slopes
        return conv.fused(self.target, self.then, other=other, slopes=slopes, folded=folded)

    def decline_all_but(self, *parts: str) -> None:
        """Decline parts that a kernel does not compute."""
        present = [name for name in PARTS if getattr(self, name) not in (None, [])]
        others = [PARTS[name] for name in present if name not in parts]
        decline_if(others, f"{' and '.join(others)} behind the convolution; the kernel has none")


def _link(op: ops.Op, at: Operands, shape: ops.Shape) -> Link | None:
    """Return an operation that factors and offsets of channels express; None for another one."""
    if isinstance(op, ops.BatchNorm) and op.use_global_stats:
        return op, at
    if isinstance(op, ops.Scale):
        with suppress(Declined):
            decline_other_scales(op, at, shape)
            return op, at
    return None


class FoldedWeights(Derived):
    """Weights and offsets of a convolution, and of what multiplies its channels after it.

    Attributes:
        folded: Folded weights; the call that uses them sets ``update``.
    """

    def __init__(self, conv: ConvStep, links: Sequence[Link]) -> None:
        self.folded = Folded(aligned(conv.maps[1]))
        self._conv, self._links = conv, links
        super().__init__([*conv.at.params, *(blob for _, at in links for blob in at.params)])

    def _derive(self) -> None:
        """Multiply factors into the weights, channel by channel, and add up the offsets."""
        conv, bias = self._conv, self.folded.bias
        params, channels = conv.at.params, bias.shape[0]
        factor: np.ndarray = np.ones(channels, np.float32)
        bias[...] = values(params[1]) if conv.op.bias else 0.0
        fold(self._links, factor, bias)
        weight = values(params[0]).reshape(channels, -1)
        [scratch] = conv.engine.workspaces(weight.size)  # until it is packed
        product = scratch[: weight.size]
        np.multiply(weight, factor[:, np.newaxis], out=product.reshape(channels, -1))
        self.folded.update(product)


class FoldedStep(FusedStep[ops.Conv]):
    """A convolution and the factors and offsets of its channels after it, with fixed parameters.

    The folded weights are made again when a parameter has changed.
    """

    def __init__(self, conv: ConvStep, epilogue: Epilogue, followers: Sequence[str]) -> None:
        weights = FoldedWeights(conv, epilogue.links)
        folded = weights.folded
        super().__init__(conv, epilogue.call(conv, folded), followers)
        self.derived, self.kept_bytes = [weights], folded.bias.nbytes


Link = tuple[ops.BatchNorm | ops.Scale, Operands]
"""An operation that multiplies channels with factors and adds offsets, and its blobs."""


class FactorsStep(CpuStep[ops.BatchNorm | ops.Scale]):
    """BatchNorm and Scale, either or both, and ReLU, where no gradient is wanted."""

    def __init__(self, engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands]) -> None:
        source, target = at[0].bottom[0], at[-1].top[0]
        links = links_of(chain, at, source.shape)
        super().__init__(engine, links[0][0], at[0])
        self.followers, tuning = [op_title(op) for op in chain[1:]], kernel_tuning(engine)
        factors = FixedFactors(source.shape[1], links)
        self.derived, self.kept_bytes = [factors], factors.nbytes
        layout = self.expected(source)
        images = suitable_images(layout, Images.has_whole_vectors, tuning.width)
        kernel = channel_factors(images, factors.factor, factors.offset, tuning)
        ends = InputArg("src", source, layout), OutputArg("dst", target, layout)
        self.forward_calls = [BoundCall(engine, kernel, *ends)]


class FixedFactors(Derived):
    """One factor and one offset per channel, computed from the parameters.

    Attributes:
        factor: The factors. Shape: (C,).
        offset: The offsets. Shape: (C,).
    """

    def __init__(self, channels: int, links: Sequence[Link]) -> None:
        self.factor, self.offset = aligned(channels), aligned(channels)
        self._links = links
        super().__init__([blob for _, own in links for blob in own.params])

    def _derive(self) -> None:
        self.factor[...], self.offset[...] = 1.0, 0.0
        fold(self._links, self.factor, self.offset)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""
        return self.factor.nbytes + self.offset.nbytes


def links_of(chain: Sequence[ops.Op], at: Sequence[Operands], shape: ops.Shape) -> list[Link]:
    """Return the operations before a rectifier, the last of a chain.

    Shape of what they multiply: (N, C, *spatial).
    """
    if not isinstance(chain[-1], ops.Activation):
        message = f"{op_title(chain[-1])} last; fixed factors and offsets go before ReLU"
        raise Declined(message)
    decline_other_than_relu(chain[-1])
    links: list[Link] = []
    for op, own in zip(chain[:-1], at[:-1], strict=True):
        if not (link := _link(op, own, shape)):
            message = f"{op_title(op)} there; fixed factors and offsets go before ReLU"
            raise Declined(message)
        links.append(link)
    return links


def fold(links: Sequence[Link], factor: np.ndarray, offset: np.ndarray) -> None:
    """Fold further operations into factors and offsets, channel by channel.

    Shapes: factor (C,), offset (C,).
    """
    for op, at in links:
        if isinstance(op, ops.BatchNorm):
            mean, variance = stored_statistics(at.params)
            by = np.reciprocal(np.sqrt(variance + np.float32(op.eps)))
            offset[...] = (offset - mean) * by
        else:
            by = values(at.params[0])
            offset[...] = offset * by + (values(at.params[1]) if op.bias else 0.0)
        factor *= by


def values(blob: Operand) -> np.ndarray:
    """Return a parameter. Shape: (count,)."""
    return blob.data_memory.cpu_data()[: blob.count]
