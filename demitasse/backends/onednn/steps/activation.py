"""Elementwise functions, in place or not, in whatever layout the data is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["ActivationStep"]


@dataclass(frozen=True)
class Function:
    """How oneDNN computes a function and its gradient from the result.

    Attributes:
        forward: The algorithm.
        backward: The algorithm of the gradient.
        role: As what the gradient takes the result. A rectifier takes it for its input, which has
            the same sign.
    """

    forward: Algorithm
    backward: Algorithm
    role: Arg


FUNCTIONS = {
    "relu": Function(Algorithm.RELU, Algorithm.RELU, Arg.SRC),
    "tanh": Function(Algorithm.TANH, Algorithm.TANH_FROM_DST, Arg.DST),
    "sigmoid": Function(Algorithm.LOGISTIC, Algorithm.LOGISTIC_FROM_DST, Arg.DST),
}


class ActivationStep(PreparedStep):
    """y = f(x); the gradient needs y alone, so running in place costs nothing."""

    def __init__(self, backend: OnednnBackend, op: ops.Activation, at: Operands) -> None:
        super().__init__(backend, at)
        self.function = FUNCTIONS[op.function]
        self.slope = op.parameters[0] if op.parameters else 0.0

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        shape = self.at.top[0].shape
        expected = self.backend.expected(self.at.bottom[0], shape)
        # padded blocks suit those functions alone that leave zero as it is
        return self._prepare(expected) or (
            not expected.plain and self._prepare(self.engine.plain(shape))
        )

    def _prepare(self, layout: Layout) -> bool:
        at, self.layout = self.at, self._flat(layout)
        layout = self.layout
        bottom, top = at.bottom[0], at.top[0]
        # in backward the data is y, which also gives the layout of the gradient
        algorithm = self.function.backward if at.backward else self.function.forward
        found = self.describe(
            "eltwise_forward",
            Pass.TRAINING if at.backward else Pass.INFERENCE,
            algorithm,
            layout.handle,
            layout.handle,
            self.slope,
            0.0,
            self.engine.attributes,
        )
        if not found:
            return False
        ports = [Reader(Arg.SRC, bottom, layout), Writer(Arg.DST, top, layout)]
        self.forward_calls = [Call(self.engine, found, ports)]
        self.hint = found
        if not layout.plain:
            self.backend.promise(top, layout)
        return True

    def prepare_backward(self) -> bool:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return True
        found = self.describe(
            "eltwise_backward",
            self.function.backward,
            layout.handle,
            layout.handle,
            layout.handle,
            self.slope,
            0.0,
            self.hint.handle,
            self.engine.attributes,
        )
        if not found:
            return False
        bottom = at.bottom[0]
        # a later layer may overwrite the result, and what a rectifier looks at is its input
        kept = bottom if self.function.role is Arg.SRC else at.top[0]
        ports = [
            Reader(self.function.role, kept, layout),
            Reader(Arg.DIFF_DST, at.top[0], layout, diff=True),
            Writer(Arg.DIFF_SRC, bottom, layout, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, ports)]
        if not layout.plain:
            self.backend.promise(bottom, layout, diff=True)
        return True

    def _flat(self, layout: Layout) -> Layout:
        """Return one long row instead of any shape in C order."""
        if not layout.plain:
            return layout
        count = 1
        for size in layout.shape:
            count *= size
        return self.engine.plain((count,))


@OnednnBackend.lowers(ops.Activation)
def activation(backend: Any, op: ops.Activation, at: Operands) -> Step | None:
    """Those of which the gradient follows from the result."""
    if op.dtype != "float32" or op.function not in FUNCTIONS or not op.count:
        return None
    if op.function == "relu" and op.parameters and op.parameters[0] < 0:
        return None
    step = ActivationStep(backend, op, at)
    return step if step.prepare() else None
