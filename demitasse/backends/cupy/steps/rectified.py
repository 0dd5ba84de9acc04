"""A convolution and the ReLU after it as one, where the library that the engine has does that."""

from __future__ import annotations

from collections.abc import Sequence

from demitasse.backends import ops
from demitasse.backends.cupy.library.convolutions import Convolution
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.steps.convolution import ConvStep
from demitasse.backends.step import AnyStep, Declined, Operand, Operands
from demitasse.core.config import settings

__all__ = ["rectified"]


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
