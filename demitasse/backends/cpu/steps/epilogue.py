"""Epilogues of convolutions: fused normalisations, factors, activations and sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import DerivedArg, InputArg, OutputArg, parameters
from demitasse.backends.cpu.engine import KERNEL, Engine
from demitasse.backends.cpu.images import IMAGE_AXES, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.cpu.steps.elementwise import ONES, decline_other_than_relu
from demitasse.backends.cpu.steps.norm import decline_other_scales, stored_statistics
from demitasse.backends.kernels.channel_affine import channel_factors
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Declined, Operand, Operands, decline_if

SIX = (0.0, 6.0)
"""The limits of ReLU6."""


def rectifier_of(then: ops.Activation | None) -> Rectifier:
    """Return what our kernels do for an activation, or for none."""
    if then is None:
        return NOTHING
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
        f"{op_title(then)} runs by itself; kernels append ReLU with a slope of at least 0, ReLU6 "
        "and Clip"
    )
    raise Declined(message)


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
        target: The blob that is written.
        links: Factors and offsets of its channels, with fixed parameters.
        other: A blob that is added before the activation ``then``.
        slopes: The slopes of a PReLU in place of the activation.
    """

    target: Operand
    links: Sequence[Link] = ()
    other: Operand | None = None
    then: ops.Activation | None = None
    slopes: Operand | None = None

    @classmethod
    def match(
        cls, conv: ops.Conv, target: Operand, rest: Sequence[tuple[ops.Op, Operands]]
    ) -> Epilogue:
        """Return the operations after a convolution, whose top is ``target``, as an epilogue."""
        links: list[Link] = []
        parts: dict[str, Any] = {}
        for op, at in rest:
            sums = isinstance(op, ops.Eltwise) and (op.operation, op.coefficients) == ("SUM", ONES)
            if not parts and conv.axis == 1 and (link := _link(op, at, conv.top)):
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
        return cls(target, links, **parts)

    def decline_all_but(self, *parts: str) -> None:
        """Decline parts that a kernel does not compute."""
        present = [name for name in PARTS if getattr(self, name) not in (None, [], ())]
        others = [PARTS[name] for name in present if name not in parts]
        decline_if(others, f"{' and '.join(others)} behind the convolution; the kernel has none")


Link = tuple[ops.BatchNorm | ops.Scale, Operands]
"""An operation that multiplies channels with factors and adds offsets, and its blobs."""


def _link(op: ops.Op, at: Operands, shape: ops.Shape) -> Link | None:
    """Return an operation that factors and offsets of channels express; None for another one."""
    if isinstance(op, ops.BatchNorm) and op.use_global_stats:
        return op, at
    if isinstance(op, ops.Scale):
        with suppress(Declined):
            decline_other_scales(op, at, shape)
            return op, at
    return None


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
        else:
            by = own[0]
            offset[...] = offset * by + (own[1] if op.bias else 0.0)
        factor *= by
    return factor


def folded_offsets(
    engine: Engine, channels: int, links: Sequence[Link], bias: InputArg | None = None
) -> DerivedArg:
    """Return a bias, or zeros, with links folded into it. Shape: (C,)."""

    def make(target: np.ndarray, *params: np.ndarray) -> None:
        target[...] = 0.0 if bias is None else params[0][:channels]
        fold(links, params if bias is None else params[1:], target)

    first = () if bias is None else (bias,)
    return _derived(engine, "offsets", (channels,), make, *first, *_parameters(links), kept=True)


def folded_factors(engine: Engine, channels: int, links: Sequence[Link]) -> DerivedArg:
    """Return the factors of links. Shape: (C,)."""

    def make(target: np.ndarray, *params: np.ndarray) -> None:
        target[...] = fold(links, params, np.zeros_like(target))

    return _derived(engine, "factors", (channels,), make, *_parameters(links), kept=True)


def folded_weights(
    engine: Engine, channels: int, links: Sequence[Link], weight: InputArg
) -> DerivedArg:
    """Return weights with factors of their filters, in scratch memory until they are packed."""

    def make(target: np.ndarray, weights: np.ndarray, *params: np.ndarray) -> None:
        factor = fold(links, params, np.zeros(channels, np.float32))
        by_filter = weights[: target.size].reshape(channels, -1)
        np.multiply(by_filter, factor[:, np.newaxis], out=target.reshape(channels, -1))

    return _derived(engine, KERNEL, weight.layout.shape, make, weight, *_parameters(links))


def _parameters(links: Sequence[Link]) -> list[InputArg]:
    return parameters(blob for _, at in links for blob in at.params)


def _derived(
    engine: Engine, role: str, shape: ops.Shape, make: Callable[..., None], *sources: InputArg,
    kept: bool = False,
) -> DerivedArg:  # fmt: skip
    """Return an argument that a function of arrays makes."""
    recorded, layout = partial(call_recorder.call, make), layouts.plain(shape)
    return DerivedArg(engine, role, layout, recorded, *sources, kept=kept)


class FactorsStep(CpuStep[ops.BatchNorm | ops.Scale]):
    """BatchNorm and Scale, either or both, and ReLU, where no gradient is wanted."""

    def __init__(self, engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands]) -> None:
        source, target = at[0].bottom[0], at[-1].top[0]
        links, channels = links_of(chain, at, source.shape), source.shape[1]
        super().__init__(engine, links[0][0], at[0])
        self.followers, tuning = [op_title(op) for op in chain[1:]], kernel_tuning(engine)
        layout = self.expected(source)
        decline_if(len(source.shape) != IMAGE_AXES, f"{len(source.shape)} axes; the kernel takes 4")
        images = suitable_images(layout, tuning.width, Images.has_whole_vectors)
        self.forward_calls = [
            KernelCall(
                engine, channel_factors(images, tuning),
                InputArg("src", source, layout), folded_factors(engine, channels, links),
                folded_offsets(engine, channels, links), OutputArg("dst", target, layout),
            )
        ]  # fmt: skip


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
