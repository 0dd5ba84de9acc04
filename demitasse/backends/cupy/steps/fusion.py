"""Fused Steps: convolutions with ReLU, BatchNorm with the layers behind."""

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
from demitasse.backends.step import AnyStep, Declined, Operand, Operands, decline_if
from demitasse.backends.windows import ConvGeometry
from demitasse.core.config import settings


def rectified(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], first: AnyStep | None
) -> "RectifiedConvStep":
    """Return one Step for a convolution, which ``first`` runs by itself, and a ReLU."""
    op = chain[1]
    is_relu = isinstance(op, ops.Activation) and op.function == "relu" and op.parameters[0] == 0
    if not isinstance(first, ConvStep) or len(chain) > 2 or not is_relu:
        message = "cuDNN appends one ReLU to a convolution"
        raise Declined(message)
    why = "cuDNN's ReLU may lose NaN; the setting cudnn_relu allows it"
    decline_if(not settings.get("cudnn_relu"), why)
    why = "not in place; the ReLU's gradient needs what the convolution computes"
    decline_if(at[1].backward and not at[1].in_place, why)
    return RectifiedConvStep(engine, first, at[1].top[0])


class RectifiedConvStep(GpuStep[ops.Conv]):
    """A convolution and a ReLU, forward; each computes its own gradient.

    ``conv`` is the convolution's own Step, and ``target`` the ReLU's top.
    """

    def __init__(self, engine: Engine, conv: ConvStep, target: Operand) -> None:
        op = conv.op
        super().__init__(engine, op, replace(conv.at, top=(conv.form.blob(target),)))
        self.form = conv.form
        convolution = Convolution(
            "maps", ConvGeometry.of(op), conv.dtype, bias=op.bias, relu=True, last=conv.last
        )
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
        self._prepared.run(x, weight, at.top[0].buffer(), bias, workspace)


ORDER = "kernels fuse BatchNorm, Scale, ReLU in this order"
"""Names of the fused layers, for messages."""


def fuse(
    engine: Engine, chain: Sequence[ops.Op], at: Sequence[Operands], steps: Sequence[AnyStep | None]
) -> AnyStep:
    """Return one Step for a chain of operations, ready to run; see ``Backend.fuse``."""
    first, second = chain[0], chain[1]
    if isinstance(first, ops.Conv):
        return rectified(engine, chain, at, steps[0])
    if not isinstance(first, (ops.BatchNorm, ops.Eltwise)):
        message = f"{_op_title(first)} first; {ORDER}"
        raise Declined(message)
    for op, step in zip(chain, steps, strict=True):
        decline_if(step is None, f"{_op_title(op)} runs portable code")
    if isinstance(first, ops.BatchNorm):
        return _norm(engine, first, chain, at)
    if len(chain) > 2 or not isinstance(second, ops.Activation) or second.function != "relu":
        message = f"{', '.join(map(_op_title, chain[1:]))} after a sum; kernels fuse one ReLU"
        raise Declined(message)
    backward = any(one.backward for one in at)
    why = "a ReLU that is not in place; its gradient needs the sum"
    decline_if(backward and not at[1].in_place, why)
    return SumStep(engine, first, replace(at[0], top=at[1].top), second.parameters[0])


def _norm(
    engine: Engine, first: ops.BatchNorm, chain: Sequence[ops.Op], at: Sequence[Operands]
) -> NormStep:
    """Return one Step for a BatchNorm and the operations after it."""
    # the fused Step writes the top of the last operation
    whole = replace(at[0], top=at[-1].top)
    why = "not in place; the gradient of the last top is not that of the first"
    decline_if(any(one.backward for one in at) and not whole.in_place, why)
    parts = NormParts(whole, followers=[_op_title(op) for op in chain[1:]])
    for op, own in zip(chain[1:], at[1:], strict=True):
        parts = _with(parts, op, own, first.bottom)
    return NormStep(engine, first, parts)


def _with(parts: NormParts, op: ops.Op, at: Operands, shape: ops.Shape) -> NormParts:
    """Return ``parts`` and one more operation."""
    if isinstance(op, ops.Scale) and parts.scale is None and parts.slope is None:
        channels = (*shape[:2], math.prod(shape[2:]))
        other = len(at.bottom) > 1 or (op.outer, op.dim, op.inner) != channels
        why = "a Scale of other axes; kernels fuse one that has a factor for each channel"
        decline_if(other, why)
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
