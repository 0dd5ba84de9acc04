"""Fusion: several operations in one primitive, where those after the first run in place."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.cpu.arguments import InputArg, OutputArg, rounded_addend, rounded_ends
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.cpu.step import FusedStep, op_title
from demitasse.backends.cpu.steps.convolution import ConvStep
from demitasse.backends.cpu.steps.elementwise import ElementwiseStep, SumStep, chained
from demitasse.backends.cpu.steps.epilogue import (
    Chain,
    Epilogue,
    Norm,
    factors_call,
    folded_offsets,
    rectifier_of,
)
from demitasse.backends.cpu.steps.norm import NormStep
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
    if first is not None and not names:
        again: AnyStep = type(first)(engine, chain[0], at[0])
        again.prepare()
        return again
    if isinstance(chain[0], Norm):
        portable = [op_title(op) for op, step in zip(chain, steps, strict=True) if step is None]
        decline_if(portable, f"{', '.join(portable)} runs portable code")
        rounds = isinstance(first, NormStep) and first.rounds
        return _norm(engine, chain[0], chain, at, names, rounds=rounds)
    rest = list(zip(chain[1:], at[1:], strict=True))
    others = [(i, step) for i, step in enumerate(steps) if i and isinstance(step, ConvStep)]
    if isinstance(first, ElementwiseStep):
        decline_gradients(at)
        call = chained(first, rest, steps)
    elif isinstance(first, ConvStep) and others:
        decline_gradients(at)
        place, pixels = others[0]
        call = separable(first, rest[: place - 1], pixels, rest[place:])
    elif isinstance(first, (ConvStep, InnerProductStep, SumStep)):
        call = first.fused(Epilogue.match(first.at.top[0], rest, *first.takes))
        if names != ["ReLU"]:  # whose gradient is known from what it reads alone
            decline_gradients(at)
    else:
        message = f"nothing is fused with this {op_title(chain[0])}"
        raise Declined(message)
    return FusedStep(engine, chain[0], at[0], call, names)


def _norm(
    engine: Engine, first: Norm, chain: Sequence[ops.Op], at: Sequence[Operands],
    names: Sequence[str], *, rounds: bool,
) -> AnyStep:  # fmt: skip
    """Return one Step for BatchNorm, Scale and ReLU after each other."""
    # one Step from the first bottom to the last top; a norm without gradient may be before a Scale
    # that learns
    learns = any(one.backward for one in at)
    whole = replace(at[0], top=at[-1].top, backward=learns)
    message = "not in place; the gradient of the last top is not that of the first"
    decline_if(learns and whole.top != at[0].top, message)
    source = at[0].bottom[0]
    epilogue = Epilogue.match(source, list(zip(chain, at, strict=True)), "links", "then")
    if not (epilogue.uses_batch_stats or learns):
        with suppress(Declined):
            call = factors_call(engine, source, at[0].layouts, epilogue, rounds=rounds)
            return FusedStep(engine, first, at[0], call, names)
    step = NormStep(engine, first, whole, epilogue)
    step.followers = names
    step.prepare()
    if learns:
        step.prepare_backward()
    return step


def separable(each: ConvStep, between: Chain, pixels: ConvStep, rest: Chain) -> KernelCall:
    """Return two convolutions, ``each`` of a channel by itself and then of ``pixels``.

    Factors, offsets and ReLU follow either, and a sum the second.
    """
    engine, at = each.engine, each.at
    first = Epilogue.match(at.top[0], between, "links", "then")
    second = Epilogue.match(pixels.at.top[0], rest, "links", "other", "then")
    blocks = plan_separable(each.op, pixels.op, kernel_tuning(engine, storage=at.storage))
    source = InputArg(at.bottom[0], each.expected(at.bottom[0]))
    target = OutputArg(second.target, pixels.y)
    if each.rounds:
        source, target = rounded_ends(at.layouts, source.in_layout(each.x), target)
    x = suitable_images(source.layout, blocks.channels, bf16=True)
    y = suitable_images(target.layout, 1, bf16=True)
    decline_if(not y.is_rows, "one pixel each; separable convolution takes rows of pixels")
    then, added = (rectifier_of(first.then), rectifier_of(second.then)), []
    if second.other is not None:
        added = [rounded_addend(target, second.other)]
    (windows, before), (weight, after) = each.folded(first), pixels.folded(second)
    before = before or folded_offsets(engine, each.maps[1], ())
    after = after or folded_offsets(engine, pixels.maps[1], ())
    kernel = SeparableConvolution(blocks, x, y, then, adds=bool(added))
    packed = PackedKernel(lambda: kernel, **{"depthwise.update": windows, "update": weight})
    return KernelCall(engine, packed, source, target, before, after, *added, code=blocks.code)
