"""Fusion: BatchNorm, Scale and ReLU both ways; a sum, or a convolution, and ReLU forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.steps.eltwise import SumStep
from demitasse.backends.cupy.steps.norm import NormParts, NormStep
from demitasse.backends.cupy.steps.rectified import rectified
from demitasse.backends.step import AnyStep, Declined, Operands

__all__ = ["fuse"]

ORDER = "kernels fuse BatchNorm, Scale, ReLU in this order"
"""Names of the fused layers, for messages."""


def fuse(
    engine: Engine,
    chain: Sequence[ops.Op],
    at: Sequence[Operands],
    steps: Sequence[AnyStep | None],
) -> AnyStep:
    """Return one Step for a chain of operations, ready to run.

    Args:
        engine: Runs it.
        chain: The operations.
        at: Their blobs.
        steps: What each would run by itself; None for portable code.

    Raises:
        Declined: There is none.
    """
    first, second = chain[0], chain[1]
    if isinstance(first, ops.Conv):
        return rectified(engine, chain, at, steps[0])
    if not isinstance(first, (ops.BatchNorm, ops.Eltwise)):
        message = f"{_called(first)} first; {ORDER}"
        raise Declined(message)
    if None in steps:
        message = f"{_called(chain[steps.index(None)])} runs portable code"
        raise Declined(message)
    if isinstance(first, ops.BatchNorm):
        return _norm(engine, first, chain, at)
    if len(chain) > 2 or not isinstance(second, ops.Activation) or second.function != "relu":
        message = f"{', '.join(map(_called, chain[1:]))} after a sum; kernels fuse one ReLU"
        raise Declined(message)
    if any(one.backward for one in at) and not at[1].in_place:
        message = "a ReLU that is not in place; its gradient needs the sum"
        raise Declined(message)
    return SumStep(engine, first, replace(at[0], top=at[1].top), second.parameters[0])


def _norm(
    engine: Engine, first: ops.BatchNorm, chain: Sequence[ops.Op], at: Sequence[Operands]
) -> NormStep:
    """Return one Step for a BatchNorm and those that follow it.

    Raises:
        Declined: There is none.
    """
    # what the last one writes is what all of them write
    whole = replace(at[0], top=at[-1].top)
    if any(one.backward for one in at) and not whole.in_place:
        message = "not in place; the gradient of the last top is not that of the first"
        raise Declined(message)
    parts = NormParts(whole, followers=[_called(op) for op in chain[1:]])
    for op, own in zip(chain[1:], at[1:], strict=True):
        parts = _with(parts, op, own, first.bottom)
    return NormStep(engine, first, parts)


def _with(parts: NormParts, op: ops.Op, at: Operands, shape: ops.Shape) -> NormParts:
    """Return ``parts`` and one more operation.

    Raises:
        Declined: It cannot be one of them.
    """
    if isinstance(op, ops.Scale) and parts.scale is None and parts.slope is None:
        channels = (*shape[:2], math.prod(shape[2:]))
        if len(at.bottom) > 1 or (op.outer, op.dim, op.inner) != channels:
            message = "a Scale of other axes; kernels fuse one that has a factor for each channel"
            raise Declined(message)
        return replace(parts, scale=(op, at))
    if isinstance(op, ops.Activation) and op.function == "relu" and parts.slope is None:
        return replace(parts, slope=op.parameters[0])
    message = f"{_called(op)} there; {ORDER}"
    raise Declined(message)


def _called(op: ops.Op) -> str:
    """Return the name of an operation, as messages say it."""
    if isinstance(op, ops.Activation):
        return "ReLU" if op.function == "relu" else op.function
    return type(op).__name__
