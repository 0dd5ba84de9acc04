"""Epilogues of convolutions: fused normalisations, factors, activations and sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import Folded, rectifier_of
from demitasse.backends.cpu.jit_adapters.norms import decline_other_scales, stored_statistics
from demitasse.backends.cpu.jit_adapters.unary import factors_call
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep, Derived, FusedStep, Runnable, op_title
from demitasse.backends.cpu.steps.activation import decline_other_than_relu
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.elementwise import ONES
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
    other: Operand | None
    then: ops.Activation | None
    slopes: Operand | None
    target: Operand

    @classmethod
    def match(cls, conv: ConvStep, rest: Sequence[tuple[ops.Op, Operands]]) -> Epilogue:
        """Return the operations after a convolution as an epilogue."""
        left, result, other = list(rest), conv.at.top[0], None
        links: list[Link] = []
        while left and (link := _link(conv.op, *left[0])):
            left.pop(0)
            links.append(link)
            result = link[1].top[0]
        op = left[0][0] if left else None
        if isinstance(op, ops.Eltwise) and op.operation == "SUM" and op.coefficients == ONES:
            at = left.pop(0)[1]
            other, result = at.bottom[at.bottom[0] is result], at.top[0]
        then: ops.Activation | None = None
        slopes: Operand | None = None
        for op, at in left:
            alone = then is None and slopes is None
            if isinstance(op, ops.Activation) and alone:
                rectifier_of(op)
                then = op
            elif isinstance(op, ops.PReLU) and not op.shared and alone:
                slopes = at.params[0]
            else:
                message = f"{op_title(op)} does not run inside this convolution"
                raise Declined(message)
            result = at.top[0]
        return cls(links, other, then, slopes, result)

    def call(self, conv: ConvStep, folded: Folded | None = None) -> Runnable:
        """Return one call for the convolution and the epilogue."""
        other, slopes = self.other, self.slopes
        return conv.fused(self.target, self.then, other=other, slopes=slopes, folded=folded)

    def decline_all_but(self, *parts: str) -> None:
        """Decline parts that a kernel does not compute."""
        present = [name for name in PARTS if getattr(self, name) not in (None, [])]
        others = [PARTS[name] for name in present if name not in parts]
        decline_if(others, f"{' and '.join(others)} behind the convolution; the kernel has none")


def _link(conv: ops.Conv, op: ops.Op, at: Operands) -> Link | None:
    """Return an operation that factors and offsets of the convolution's channels express."""
    if conv.axis != 1:
        return None
    if isinstance(op, ops.BatchNorm) and op.use_global_stats:
        return op, at
    if isinstance(op, ops.Scale):
        try:
            decline_other_scales(op, at, conv.top)
        except Declined:
            return None
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
        shape = at[0].bottom[0].shape
        links = links_of(chain, at, shape)
        super().__init__(engine, links[0][0], at[0])
        self.shape, self.followers = shape, [op_title(op) for op in chain[1:]]
        self.factors = FixedFactors(shape[1], links)
        self.derived, self.kept_bytes = [self.factors], self.factors.nbytes
        self.forward_calls = [self._call(at[-1].top[0])]

    def _call(self, target: Operand) -> Runnable:
        source = self.at.bottom[0]
        expected = self.expected(source, self.shape)
        return factors_call(
            self.engine,
            InputArg(Arg.SRC, source, expected),
            OutputArg(Arg.DST, target, self._target_layout(source, expected, target)),
            (self.factors.factor, self.factors.offset),
        )

    def _target_layout(self, source: Operand, expected: Layout, target: Operand) -> Layout:
        """Return the layout to write: that of what is read, but in the target's own place."""
        if target.data_memory is source.data_memory:
            return expected
        return self.aliased(target, layouts.whole(expected))


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
        if isinstance(op, ops.Scale):
            decline_other_scales(op, own, shape)
        elif not isinstance(op, ops.BatchNorm) or not op.use_global_stats:
            message = f"{op_title(op)} there; fixed factors and offsets go before ReLU"
            raise Declined(message)
        links.append((op, own))
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
