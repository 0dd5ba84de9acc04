"""Elementwise functions, in place or not, in whatever layout the data is."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

from demitasse.backends import ops
from demitasse.backends.onednn.library import attributes
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Declined, Operands

__all__ = ["FUNCTIONS", "ActivationStep", "post_op"]


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


def post_op(then: ops.Activation) -> attributes.Function:
    """Return an activation as a primitive applies it to what it has computed.

    Only those are here with which a primitive gives exactly what two give one after the other.

    Raises:
        Declined: It is not one of them.
    """
    if then.function != "relu" or any(then.parameters):
        message = f"{then.function} runs by itself; oneDNN appends ReLU without a slope"
        raise Declined(message)
    return (Algorithm.RELU, 0.0, 0.0)


class ActivationStep(OnednnStep[ops.Activation]):
    """y = f(x); the gradient needs y alone, so running in place costs nothing."""

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.function not in FUNCTIONS:
            message = f"{op.function}; oneDNN's Step is for {', '.join(FUNCTIONS)}"
            raise Declined(message)
        self.function = FUNCTIONS[op.function]
        self.slope = op.parameters[0] if op.parameters else 0.0
        if op.function == "relu" and self.slope < 0:
            message = f"slope {self.slope:g}; the gradient is known from the result for 0 and more"
            raise Declined(message)

    def prepare(self) -> None:
        shape = self.at.top[0].shape
        expected = self.engine.expected(self.at.bottom[0].data_memory, shape)
        if not expected.plain:
            # padded blocks suit those functions alone that leave zero as it is
            with suppress(Declined):
                self._prepare(expected)
                return
        self._prepare(self.engine.plain((math.prod(shape),)))

    def _prepare(self, layout: Layout) -> None:
        at = self.at
        # in backward the data is y, which also gives the layout of the gradient
        algorithm = self.function.backward if at.backward else self.function.forward
        found = self.engine.describe(
            "eltwise_forward",
            Pass.TRAINING if at.backward else Pass.INFERENCE,
            algorithm,
            layout.handle,
            layout.handle,
            self.slope,
            0.0,
            self.engine.attributes,
        )
        ports = [Reader(Arg.SRC, at.bottom[0], layout), Writer(Arg.DST, at.top[0], layout)]
        self.forward_calls = [Call(self.engine, found, ports)]
        self.hint, self.layout = found, layout

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return
        found = self.engine.describe(
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
        bottom = at.bottom[0]
        # a later layer may overwrite the result, and what a rectifier looks at is its input
        kept = bottom if self.function.role is Arg.SRC else at.top[0]
        ports = [
            Reader(self.function.role, kept, layout),
            Reader(Arg.DIFF_DST, at.top[0], layout, diff=True),
            Writer(Arg.DIFF_SRC, bottom, layout, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, ports)]
