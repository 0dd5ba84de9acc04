"""Fusion: several operations in one primitive, where those after the first run in place."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.cpu.step import CpuStep, FusedStep, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.elementwise import (
    ChainStep,
    ElementwiseStep,
    SumStep,
    decline_other_than_relu,
)
from demitasse.backends.cpu.steps.epilogue import (
    Epilogue,
    FactorsStep,
    folded_offsets,
    rectifier_of,
)
from demitasse.backends.cpu.steps.norm import NormParts, NormStep, decline_other_scales
from demitasse.backends.cpu.steps.products import InnerProductStep
from demitasse.backends.kernels.separable import SeparableConvolution, plan_separable
from demitasse.backends.step import AnyStep, Declined, Operands, decline_gradients, decline_if


def fuse(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
) -> AnyStep:
    """Return one Step for a chain of operations, ready to run forward.

    ``steps`` has None for portable code.
    """
    first, names = steps[0], [op_title(op) for op in chain[1:]]
    if isinstance(chain[0], (ops.BatchNorm, ops.Scale)):
        if None in steps:
            message = f"{op_title(chain[steps.index(None)])} runs portable code"
            raise Declined(message)
        return _norm(engine, chain, at, names)
    if isinstance(first, ElementwiseStep):
        return ChainStep(first, chain, at, steps)
    if not isinstance(first, (ConvStep, InnerProductStep, SumStep)):
        message = f"nothing is fused with this {op_title(chain[0])}"
        raise Declined(message)
    second = next((i for i, step in enumerate(steps) if i and isinstance(step, ConvStep)), 0)
    if isinstance(first, ConvStep) and second:
        return SeparableStep(engine, chain, at, steps, second)
    then = chain[1] if len(chain) == 2 and isinstance(chain[1], ops.Activation) else None
    if isinstance(first, ConvStep):
        if then is None:
            decline_gradients(at)
        rest = list(zip(chain[1:], at[1:], strict=True))
        call = first.fused(Epilogue.match(first.op, first.at.top[0], rest))
    elif then is not None:
        call = first.with_activation(then, at[-1].top[0])
    else:
        message = f"{', '.join(names)} after {op_title(chain[0])}; one ReLU is"
        raise Declined(message)
    if then is not None and then.function != "relu":
        decline_gradients(at)  # the gradient of ReLU is known from what it reads alone
    return FusedStep(first, call, names)


def _norm(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], names: Sequence[str]
) -> AnyStep:
    """Return one Step for BatchNorm, Scale and ReLU after each other."""
    # what the last one writes is what all of them write
    whole = replace(at[0], top=at[-1].top)
    message = "not in place; the gradient of the last top is not that of the first"
    decline_if(whole.backward and whole.top != at[0].top, message)
    uses_batch_stats = any(
        isinstance(op, ops.BatchNorm) and not op.use_global_stats for op in chain
    )
    if isinstance(chain[-1], ops.Activation) and not (
        uses_batch_stats or any(one.backward for one in at)
    ):
        with suppress(Declined):
            return FactorsStep(engine, chain, at)
    parts = NormParts(whole.top[0].shape, whole)
    for op, own in zip(chain, (whole, *at[1:]), strict=True):
        if isinstance(op, ops.BatchNorm) and op is chain[0]:
            parts = replace(parts, norm=(op, own))
        elif isinstance(op, ops.Scale) and parts.scale is None and not parts.relu:
            decline_other_scales(op, own, parts.shape)
            parts = replace(parts, scale=(op, own))
        elif isinstance(op, ops.Activation) and not parts.relu:
            decline_other_than_relu(op)
            parts = replace(parts, relu=True)
        else:
            message = f"{op_title(op)} there; our kernels take BatchNorm, Scale, ReLU in this order"
            raise Declined(message)
    step = NormStep(engine, chain[0], parts, names)
    step.prepare()
    if whole.backward:
        step.prepare_backward()
    return step


class SeparableStep(CpuStep[ops.Conv]):
    """Two convolutions, factors, offsets and ReLU behind each, and a sum behind the second."""

    def __init__(
        self,
        engine: Engine,
        chain: Sequence[ops.Op],
        at: Sequence[Operands],
        steps: Sequence[AnyStep | None],
        place: int,
    ) -> None:
        each, pixels = steps[0], steps[place]
        if not (isinstance(each, ConvStep) and isinstance(pixels, ConvStep)):
            pair = f"{op_title(chain[place])} behind {op_title(chain[0])}"
            message = f"{pair}; both are to run in kernels"
            raise Declined(message)
        decline_gradients(at)
        super().__init__(engine, each.op, at[0])
        rest = list(zip(chain, at, strict=True))
        first = Epilogue.match(each.op, each.at.top[0], rest[1:place])
        second = Epilogue.match(pixels.op, pixels.at.top[0], rest[place + 1 :])
        first.decline_all_but("links", "then")
        second.decline_all_but("links", "other", "then")
        self.followers = [op_title(op) for op in chain[1:]]
        tuning = kernel_tuning(engine, storage=at[0].storage)
        blocks = plan_separable(each.op, pixels.op, tuning)
        source = InputArg("src", at[0].bottom[0], self.expected(at[0].bottom[0]))
        target = OutputArg("dst", second.target, pixels.map_layout)
        x = suitable_images(source.layout, blocks.channels)
        y = suitable_images(target.layout, 1)
        decline_if(not y.is_rows, "one pixel each; separable convolution takes rows of pixels")
        then, added = (rectifier_of(first.then), rectifier_of(second.then)), []
        if second.other is not None:
            added = [InputArg("added", second.other, pixels.map_layout)]
        (windows, before), (weight, after) = each.folded(first.links), pixels.folded(second.links)
        before = before or folded_offsets(engine, each.maps[1], ())
        after = after or folded_offsets(engine, pixels.maps[1], ())
        kernel = SeparableConvolution(blocks, x, y, then, adds=bool(added))
        packed = PackedKernel(lambda: kernel, **{"depthwise.update": windows, "update": weight})
        arguments = source, target, before, after, *added
        self.forward_calls = [KernelCall(engine, packed, *arguments, code=blocks.code)]
