"""Elementwise functions, in place or not, in whatever layout the data is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.library import primitive
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.step import OnednnStep, op_title
from demitasse.backends.onednn.steps.rectifier import RECTIFIER, rectified
from demitasse.backends.step import Declined, LayoutUse, Operand, Operands

__all__ = ["FUNCTIONS", "ActivationStep", "post_ops"]


@dataclass(frozen=True)
class Algorithms:
    """oneDNN's algorithms for a function and its gradient.

    Attributes:
        forward: The algorithm.
        backward: The algorithm of the gradient.
        role: What the gradient takes: the input, SRC, or the result, DST.
        same_sign: Whether the result can stand for the input, as with a rectifier, whose gradient
            asks for the sign alone. Otherwise a gradient from the input keeps it in place.
    """

    forward: Algorithm
    backward: Algorithm
    role: Arg
    same_sign: bool = False


FUNCTIONS = {
    # takes 1 + erf, so it is right to 1e-6 of 1, not in the last digits of its tail
    "gelu": Algorithms(Algorithm.GELU, Algorithm.GELU, Arg.SRC),
    "relu": Algorithms(Algorithm.RELU, Algorithm.RELU, Arg.SRC, same_sign=True),
    "tanh": Algorithms(Algorithm.TANH, Algorithm.TANH_FROM_DST, Arg.DST),
    "sigmoid": Algorithms(Algorithm.LOGISTIC, Algorithm.LOGISTIC_FROM_DST, Arg.DST),
}


def post_ops(then: ops.Activation) -> Sequence[primitive.Function]:
    """Return an activation as a primitive applies it to what it has computed.

    Only those are here with which a primitive gives exactly what two give one after the other.

    Raises:
        Declined: It is not one of them.
    """
    if then.function != "relu" or any(then.parameters):
        message = f"{op_title(then)} runs by itself; oneDNN appends ReLU without a slope"
        raise Declined(message)
    return RECTIFIER


class SaveInput:
    """Saved copy of an input that is overwritten next, in the same layout."""

    workspace = 0
    implementations: ClassVar[list[str]] = []
    layout_uses: ClassVar[list[LayoutUse]] = []

    def __init__(self, engine: Engine, source: InputArg, target: Operand) -> None:
        self.engine, self.source = engine, source
        self.target = OutputArg(source.role, target, source.layout)

    def __call__(self) -> None:
        layout = self.source.layout
        self.engine.reorder(self.source.array(), layout, self.target.array(), layout)


class ActivationStep(OnednnStep[ops.Activation]):
    """y = f(x). In place, a copy of x is kept where the gradient needs it rather than y."""

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
        takes_input = self.function.role is Arg.SRC
        self.known = at.bottom[0] if takes_input else at.top[0]
        self.keeps_input = takes_input and at.loses_input and not self.function.same_sign
        if self.keeps_input:
            self.known = at.saved("input", at.bottom[0].shape).blob

    def prepare(self) -> None:
        shape = self.at.top[0].shape
        expected = self.expected(self.at.bottom[0], shape)
        if not expected.plain:
            # padded blocks suit those functions alone that leave zero as it is
            with suppress(Declined):
                self._prepare(expected)
                return
        self._prepare(self.engine.plain((math.prod(shape),)))

    def _prepare(self, layout: Layout) -> None:
        at = self.at
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
        source, target = (
            InputArg(Arg.SRC, at.bottom[0], layout),
            OutputArg(Arg.DST, at.top[0], layout),
        )
        if self.op.function == "relu" and not self.slope:
            call = rectified(self.engine, source, target, layout)
        else:
            call = Call(self.engine, found, [source, target])
        keep = [SaveInput(self.engine, source, self.known)] if self.keeps_input else []
        self.forward_calls = [*keep, call]
        self.layout = layout
        if at.backward:  # a description takes 20 KiB
            self.hint = found

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
        arguments = [
            InputArg(self.function.role, self.known, layout),
            InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True),
            OutputArg(Arg.DIFF_SRC, bottom, layout, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, arguments)]
