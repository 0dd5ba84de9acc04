"""Fused Steps: convolutions with ReLU, BatchNorm with the layers behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.steps.convolution import ConvStep
from demitasse.backends.cupy.steps.elementwise import SumStep
from demitasse.backends.cupy.steps.norm import NormParts, NormStep
from demitasse.backends.step import AnyStep, Declined, Operand, Operands
from demitasse.core.config import settings


def rectified(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], first: AnyStep | None
) -> RectifiedConvStep:
    """Return one Step for a convolution and what follows it, ready to run forward.

    Args:
        engine: Runs it.
        chain: The operations.
        at: Their blobs.
        first: What runs the convolution by itself; None for portable code.

    Raises:
        Declined: There is none.
    """
    if not isinstance(first, ConvStep) or len(chain) > 2 or not _is_relu(chain[1]):
        message = "cuDNN appends one ReLU to a convolution"
        raise Declined(message)
    if not settings.get("cudnn_relu"):
        message = "cuDNN's ReLU may lose NaN; the setting cudnn_relu allows it"
        raise Declined(message)
    if at[1].backward and not at[1].in_place:
        message = "not in place; the ReLU's gradient needs what the convolution computes"
        raise Declined(message)
    return RectifiedConvStep(engine, first, at[1].top[0])


def _is_relu(op: ops.Op) -> bool:
    return isinstance(op, ops.Activation) and op.function == "relu" and op.parameters[0] == 0


class RectifiedConvStep(GpuStep[ops.Conv]):
    """A convolution and a ReLU, forward; each computes its own gradient.

    Args:
        engine: The engine.
        conv: The convolution's own Step.
        target: The ReLU's top.

    Raises:
        Declined: The library does not do both at once.
    """

    def __init__(self, engine: Engine, conv: ConvStep, target: Operand) -> None:
        super().__init__(engine, conv.op, conv.at)
        op, self._target = conv.op, conv.taken(target)
        convolution = Convolution("maps", conv.geometry(), conv.dtype, bias=op.bias, relu=True)
        self._prepared = engine.prepare_convolution(convolution)
        engine.scratch("uint8", self._prepared.workspace)  # so that a pass allocates nothing

    @property
    def code(self) -> str:
        return f"{self._prepared.code} + ReLU"

    def forward(self) -> None:
        at = self.at
        weight = at.params[0].read()
        bias = at.params[1].read() if self.op.bias else None
        x = at.bottom[0].read()
        [workspace] = self.engine.scratch("uint8", self._prepared.workspace)
        self._prepared.run(x, weight, self._target.buffer(), bias, workspace)


ORDER = "kernels fuse BatchNorm, Scale, ReLU in this order"
"""Names of the fused layers, for messages."""


def fuse(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
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
        message = f"{_op_title(first)} first; {ORDER}"
        raise Declined(message)
    if None in steps:
        message = f"{_op_title(chain[steps.index(None)])} runs portable code"
        raise Declined(message)
    if isinstance(first, ops.BatchNorm):
        return _norm(engine, first, chain, at)
    if len(chain) > 2 or not isinstance(second, ops.Activation) or second.function != "relu":
        message = f"{', '.join(map(_op_title, chain[1:]))} after a sum; kernels fuse one ReLU"
        raise Declined(message)
    if any(one.backward for one in at) and not at[1].in_place:
        message = "a ReLU that is not in place; its gradient needs the sum"
        raise Declined(message)
    return SumStep(engine, first, replace(at[0], top=at[1].top), second.parameters[0])


def _norm(
    engine: Engine, first: ops.BatchNorm, chain: Sequence[ops.Op], at: Sequence[Operands]
) -> NormStep:
    """Return one Step for a BatchNorm and the operations after it.

    Raises:
        Declined: There is none.
    """
    # what the last one writes is what all of them write
    whole = replace(at[0], top=at[-1].top)
    if any(one.backward for one in at) and not whole.in_place:
        message = "not in place; the gradient of the last top is not that of the first"
        raise Declined(message)
    parts = NormParts(whole, followers=[_op_title(op) for op in chain[1:]])
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
    message = f"{_op_title(op)} there; {ORDER}"
    raise Declined(message)


def _op_title(op: ops.Op) -> str:
    """Return the name of an operation, as messages say it."""
    if isinstance(op, ops.Activation):
        return "ReLU" if op.function == "relu" else op.function
    return type(op).__name__
