"""Epilogues of operations: fused normalisations, factors, activations and sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    DerivedArg,
    InputArg,
    OutputArg,
    Source,
    parameters,
    rounded_ends,
    written_layout,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import IMAGE_AXES, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.step import op_title
from demitasse.backends.kernels.channel_affine import channel_factors
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Declined, Layouts, Operand, Operands, decline_if

SIX = (0.0, 6.0)
"""The limits of ReLU6."""

ONES = (1.0, 1.0)
"""Factors of a plain sum of two."""


def rectifier_of(then: ops.Activation | None) -> Rectifier:
    """Return what our kernels do for an activation, or for none."""
    if then is None:
        return NOTHING
    if then.function == "hard_swish":
        return Rectifier(curve="hard_swish")
    if then.function == "swish" and then.parameters == (1.0,):
        return Rectifier(curve="swish")
    if then.function == "clip":
        low, high = then.parameters
        return Rectifier(limits=(low, high))
    if then.function == "relu6" and not any(then.parameters):
        return Rectifier(limits=SIX)
    if then.function == "relu":
        slope = then.parameters[0] if then.parameters else 0.0
        if slope >= 0:  # so it is monotone, and its gradient known from the result
            return Rectifier(slope=slope)
    message = (
        f"{op_title(then)} runs by itself; kernels append ReLU with a slope of at least 0, ReLU6, "
        "Clip, HardSwish and Swish with a beta of 1"
    )
    raise Declined(message)


PARTS = {
    "links": "BatchNorm, Scale, Bias and linear Power",
    "other": "a sum",
    "then": "an activation",
    "slopes": "PReLU",
}
"""Parts of an epilogue in their order, the last two instead of each other: what they are."""


Norm = ops.BatchNorm | ops.Scale | ops.Bias | ops.AffineBatchNorm
"""An operation of channels that is one link, or two."""

Link = tuple[ops.BatchNorm | ops.Scale | ops.Bias | ops.Activation, Operands]
"""An operation that multiplies channels with factors and adds offsets, and its blobs."""

Chain = Sequence[tuple[ops.Op, Operands]]
"""Operations after each other, with their blobs."""


@dataclass(frozen=True)
class Epilogue:
    """Operations that are fused with the preceding operation.

    Attributes:
        target: The blob that is written.
        links: Factors and offsets of its channels.
        other: A blob that is added before the activation ``then``.
        slopes: The slopes of a PReLU in place of the activation.
    """

    target: Operand
    links: Sequence[Link] = ()
    other: Operand | None = None
    then: ops.Activation | None = None
    slopes: Operand | None = None

    @classmethod
    def match(cls, target: Operand, rest: Chain, *takes: str) -> Epilogue:
        """Return operations after one that writes ``target`` as parts that a kernel ``takes``.

        Raises:
            Declined: They are no such parts, or in another order.
        """
        links: list[Link] = []
        parts: dict[str, Any] = {}
        able, names = takes, ", ".join(PARTS[name] for name in takes)
        for op, at in rest:
            part, value = _part(op, at, target)
            decline_if(part not in able, f"{op_title(op)} there; the kernel appends {names}")
            if part == "links":
                links += value
            else:
                parts[part] = value
                able = takes[takes.index(part) + 1 :] if part == "other" else ()
            target = at.top[0]
        return cls(target, links, **parts)

    @property
    def uses_batch_stats(self) -> bool:
        """True if a BatchNorm takes mean and variance of the batch, not those given."""
        return any(
            isinstance(op, ops.BatchNorm) and not op.use_global_stats for op, _ in self.links
        )

    def decline_other_than_relu(self) -> None:
        """Decline an activation that kernels of sums and factors lack."""
        then = self.then
        if then is not None and (then.function != "relu" or any(then.parameters)):
            message = f"{op_title(then)} runs by itself; kernels append ReLU without a slope"
            raise Declined(message)


def _part(op: ops.Op, at: Operands, target: Operand) -> tuple[str, Any]:
    """Return the part of an epilogue that an operation is, or "", and the part's value.

    The operation comes after one that writes ``target``.
    """
    if isinstance(op, ops.Scale | ops.Bias):
        decline_if(len(at.bottom) > 1, "factors from a second bottom; kernels take learned ones")
        n_c, spatial = target.shape[:2], target.shape[2:]
        message = "factors over other axes; kernels take one for each channel"
        decline_if((op.outer, op.dim, op.inner) != (*n_c, math.prod(spatial)), message)
    if isinstance(op, Norm):
        return "links", _links_of(op, at)
    if isinstance(op, ops.Eltwise) and (op.operation, op.coefficients) == ("SUM", ONES):
        return "other", at.bottom[at.bottom[0] is target]
    if isinstance(op, ops.Activation):
        linear = op.function == "power" and op.parameters[0] == 1 and op.parameters[1] != 0
        return ("links", [(op, at)]) if linear else ("then", op)
    if isinstance(op, ops.PReLU) and not op.shared:
        return "slopes", at.params[0]
    return "", None


def _links_of(op: Norm, at: Operands) -> list[Link]:
    """Return an operation as links: a BatchNorm with factors and offsets as two."""
    if not isinstance(op, ops.AffineBatchNorm):
        return [(op, at)]

    def only(places: Sequence[int]) -> Operands:
        wanted = tuple(at.param_propagate_down[i] for i in places)
        params = tuple(at.params[i] for i in places)
        return replace(at, params=params, param_propagate_down=wanted)

    n, c, *spatial = op.bottom
    norm = ops.BatchNorm(op.dtype, op.bottom, op.eps, op.fraction, op.use_global_stats)
    scale = ops.Scale(op.dtype, n, c, math.prod(spatial), True)
    return [(norm, only(op.statistics)), (scale, only(op.affine))]


def stored_statistics(
    mean: np.ndarray, variance: np.ndarray, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's parameters. Shapes: (C,), (C,)."""
    if weight is None:
        return mean, variance
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def fold(links: Sequence[Link], params: Sequence[np.ndarray], offset: np.ndarray) -> np.ndarray:
    """Fold operations with these parameters into offsets, and return their factors.

    Shapes: offset (C,), factors (C,).
    """
    factor, arrays = np.ones_like(offset), iter(params)
    for op, at in links:
        own = [next(arrays)[: blob.count] for blob in at.params]
        if isinstance(op, ops.BatchNorm):
            mean, variance = stored_statistics(*own)
            by = np.reciprocal(np.sqrt(variance + np.float32(op.eps)))
            offset[...] = (offset - mean) * by
        elif isinstance(op, ops.Bias):
            offset += own[0]
            continue
        elif isinstance(op, ops.Activation):
            _, scale, shift = op.parameters
            by = np.full_like(factor, scale)
            offset[...] = offset * by + np.float32(shift)
        else:
            by = own[0]
            offset[...] = offset * by + (own[1] if op.bias else 0.0)
        factor *= by
    return factor


def folded_offsets(
    engine: Engine, channels: int, links: Sequence[Link], bias: InputArg | None = None
) -> DerivedArg:
    """Return a bias, or zeros, with links folded into it. Shape: (C,)."""
    first = [] if bias is None else [bias]

    def make(target: np.ndarray, *arrays: np.ndarray) -> None:
        target[...] = arrays[0][:channels] if first else 0.0
        fold(links, arrays[len(first) :], target)

    return derived(engine, (channels,), make, links, *first, kept=True)


def folded_factors(engine: Engine, channels: int, links: Sequence[Link]) -> DerivedArg:
    """Return the factors of links. Shape: (C,)."""

    def make(target: np.ndarray, *params: np.ndarray) -> None:
        target[...] = fold(links, params, np.zeros_like(target))

    return derived(engine, (channels,), make, links, kept=True)


def folded_weights(
    engine: Engine, channels: int, links: Sequence[Link], weight: Source
) -> DerivedArg:
    """Return weights with factors of their filters, in scratch memory until they are packed."""

    def make(target: np.ndarray, weights: np.ndarray, *params: np.ndarray) -> None:
        factor = fold(links, params, np.zeros(channels, np.float32))
        by_filter = weights[: target.size].reshape(channels, -1)
        np.multiply(by_filter, factor[:, np.newaxis], out=target.reshape(channels, -1))

    return derived(engine, weight.layout.shape, make, links, weight)


def derived(
    engine: Engine, shape: ops.Shape, make: Callable[..., None], links: Sequence[Link],
    *first: Source, kept: bool = False,
) -> DerivedArg:  # fmt: skip
    """Return an argument made from the ``first`` arrays and the parameters of links."""
    given = [blob for _, at in links for blob in at.params]
    sources = [*first, *parameters(given, InputArg)]
    recorded = partial(call_recorder.call, make)
    return DerivedArg(engine, layouts.plain(shape), recorded, *sources, kept=kept)


def factors_call(
    engine: Engine, source: Operand, at: Layouts, epilogue: Epilogue, *, rounds: bool = False
) -> KernelCall:
    """Return fixed factors and offsets of channels, and ReLU.

    With ``rounds``, blobs are in bfloat16 where others agree.

    Raises:
        Declined: The kernel computes another epilogue.
    """
    decline_if(epilogue.then is None, "no activation last; fixed factors and offsets go before it")
    epilogue.decline_other_than_relu()
    decline_if(len(source.shape) != IMAGE_AXES, f"{len(source.shape)} axes; the kernel takes 4")
    layout, tuning = written_layout(at, source.data_memory, source.shape), kernel_tuning(engine)
    ends = InputArg(source, layout), OutputArg(epilogue.target, layout)
    if rounds:
        ends = rounded_ends(at, *ends)
    takes = Images.has_whole_vectors
    x, y = (suitable_images(end.layout, tuning.width, takes, bf16=True) for end in ends)
    folded = engine, source.shape[1], epilogue.links
    return KernelCall(
        engine, channel_factors(x, tuning, y), ends[0], folded_factors(*folded),
        folded_offsets(*folded), ends[1],
    )  # fmt: skip
