"""Functions of every element that the library lacks, or gives other results for, in our kernels.

The library's own make numbers of NaN, which would hide that a net has diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import InputArg, OutputArg, written_layout
from demitasse.backends.onednn.jit_adapters.unary import elementwise_call
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.step import OnednnStep, Runnable
from demitasse.backends.onednn.steps.activation import SaveInput
from demitasse.backends.step import Declined, Operand, Operands

__all__ = ["FUNCTIONS", "CombinationStep", "ElementwiseStep"]


@dataclass(frozen=True)
class Function:
    """Kernel functions of the activations.

    Attributes:
        name: The kernel's name of it.
        numbers: Its constants.
        slope: The kernel's name of its gradient.
        known: What the gradient is of: the input, the result, a copy of the input, where who comes
            later may overwrite that, or what the bottom holds then.
        of_both: Whether it is of what the top holds then, too.
        keeps_zero: Whether 0 gives 0, as padding needs it.
    """

    name: str
    numbers: tuple[float, ...]
    slope: str
    known: Literal["input", "result", "copy", "bottom"] = "input"
    of_both: bool = False
    keeps_zero: bool = True


def _function(function: str, *numbers: float) -> Function:
    return Function(function, numbers, f"{function}_slope")


def _clip(least: float, most: float) -> Function:
    inside = min(least, most) <= 0 <= most and least <= 0
    return Function("clip", (least, most), "clip_slope", keeps_zero=inside)


def _relu6(slope: float) -> Function:
    if slope:
        message = f"slope {slope:g}; our kernels have ReLU6 without one"
        raise Declined(message)
    return Function("clip", (0.0, 6.0), "inside_slope")


def _elu(alpha: float) -> Function:
    known: Literal["input", "bottom"] = "bottom"
    if alpha < 0:  # the result does not have the sign of the input
        known = "input"
    return Function("elu", (alpha,), "elu_slope", known, of_both=True)


def _power(power: float, scale: float, shift: float) -> Function:
    name = {1.0: "linear", 2.0: "square"}.get(power)
    if name is None or not scale:
        message = f"power {power:g} of scale {scale:g}; our kernels take 1 and 2 of others than 0"
        raise Declined(message)
    known: Literal["input", "result"] = "result" if power == 1 else "input"  # any will do for 1
    return Function(name, (power, scale, shift), f"{name}_slope", known, keeps_zero=not shift)


FUNCTIONS: dict[str, Callable[..., Function]] = {
    "abs": lambda: _function("abs"),
    "bnll": lambda: Function("bnll", (), "bnll_slope", keeps_zero=False),
    "clip": _clip,
    "elu": _elu,
    "exp": lambda *numbers: Function("exp", numbers, "exp_slope", "result", keeps_zero=False),
    "hard_swish": lambda: _function("hard_swish"),
    "power": _power,
    "relu6": _relu6,
    "swish": lambda beta: Function("swish", (beta,), "swish_slope", "copy", of_both=True),
}
"""Return how a function with these constants is computed, or decline them."""


class ElementwiseStep(OnednnStep[ops.Activation]):
    """y = f(x), in whatever layout the data is.

    Attributes:
        function: How it is computed.
        known: What the gradient is computed from.
        copies: Whether that is a copy of the input.
    """

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.function not in FUNCTIONS:
            message = f"{op.function}; our kernels are for {', '.join(FUNCTIONS)}"
            raise Declined(message)
        self.function = FUNCTIONS[op.function](*op.parameters)
        known, wanted = self.function.known, at.backward and at.propagate_down[0]
        self.known = at.top[0] if known == "result" else at.bottom[0]
        self.copies = wanted and (known == "copy" or (known == "input" and at.in_place))
        if self.copies:
            self.known = at.saved("input", at.bottom[0].shape).blob

    def prepare(self) -> None:
        at, engine, function = self.at, self.engine, self.function
        self.layout = layout = _row(engine, at, padded=function.keeps_zero)
        source, target = (
            InputArg(Arg.SRC, at.bottom[0], layout),
            OutputArg(Arg.DST, at.top[0], layout),
        )
        call = elementwise_call(engine, function.name, function.numbers, [source], target)
        keep = [SaveInput(engine, source, self.known)] if self.copies else []
        self.forward_calls = [*keep, call]

    def prepare_backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        top = self.at.top[0]
        sources = [
            InputArg(Arg.SRC, self.known, self.layout),
            *([InputArg(Arg.DST, top, self.layout)] if self.function.of_both else []),
            InputArg(Arg.DIFF_DST, top, self.layout, diff=True),
        ]
        target = OutputArg(Arg.DIFF_SRC, self.at.bottom[0], self.layout, diff=True)
        slope, numbers = self.function.slope, self.function.numbers
        self.backward_calls = [elementwise_call(self.engine, slope, numbers, sources, target)]


class CombinationStep(OnednnStep[ops.Eltwise]):
    """The product or the larger of two, element by element.

    Where gradients are wanted, a maximum keeps which of the two it took, and a product in place the
    factor that it overwrites.
    """

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.operation == "SUM" or len(at.bottom) > 2:
            message = f"{op.operation} of {len(at.bottom)}; our kernels have PROD and MAX of two"
            raise Declined(message)
        learns = at.backward and any(at.propagate_down)
        if learns and at.top[0] is at.bottom[1]:
            message = "gradients in place of the second bottom; our kernels take the first"
            raise Declined(message)
        if learns and op.operation == "PROD" and not op.stable:
            message = "gradients by quotients; our kernels multiply"
            raise Declined(message)
        self.marks: Operand | None = None
        if learns and op.operation == "MAX":
            self.marks = at.saved("first wins", op.shape).blob
        self.factors = list(at.bottom)
        self.copies = learns and at.in_place and op.operation == "PROD"
        if self.copies:
            self.factors[0] = at.saved("first factor", op.shape).blob

    def prepare(self) -> None:
        at, engine = self.at, self.engine
        self.layout = layout = _row(engine, at, padded=True)
        sources = [InputArg(Arg.SRC + i, blob, layout) for i, blob in enumerate(at.bottom)]
        target = OutputArg(Arg.DST, at.top[0], layout)
        if self.op.operation == "PROD":
            keep = [SaveInput(engine, sources[0], self.factors[0])] if self.copies else []
            product = elementwise_call(engine, "product", (), sources, target)
            self.forward_calls = [*keep, product]
        elif self.marks is None:
            self.forward_calls = [elementwise_call(engine, "larger", (), sources, target)]
        else:
            marks = OutputArg(Arg.DST, self.marks, layout)
            call = elementwise_call(engine, "larger_of_which", (), sources, target, marks)
            self.forward_calls = [call]

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        targets = {
            index: OutputArg(Arg.DIFF_SRC + index, blob, layout, diff=True)
            for index, (blob, wanted) in enumerate(zip(at.bottom, at.propagate_down, strict=True))
            if wanted
        }
        if not targets:
            return
        if self.marks is None:
            # backwards, since in place the first bottom's gradient is the top's
            self.backward_calls = [
                self._gradient("product", self.factors[1 - index], target)
                for index, target in reversed(targets.items())
            ]
            return
        name = "parted" if len(targets) > 1 else ("marked", "unmarked")[min(targets)]
        self.backward_calls = [self._gradient(name, self.marks, *targets.values())]

    def _gradient(self, name: str, known: Operand, *targets: OutputArg) -> Runnable:
        sources = [
            InputArg(Arg.SRC, known, self.layout),
            InputArg(Arg.DIFF_DST, self.at.top[0], self.layout, diff=True),
        ]
        return elementwise_call(self.engine, name, (), sources, *targets)


def _row(engine: Engine, at: Operands, *, padded: bool) -> Layout:
    """Return a layout whose elements fill a row, that of some bottom where there is a good one.

    Args:
        engine: The engine.
        at: The blobs, all of one shape.
        padded: Whether there may be padding in it, which is 0.
    """
    shape = at.bottom[0].shape
    for blob in at.bottom:
        layout = engine.whole(written_layout(engine, at.layouts, blob.data_memory, shape))
        if not layout.plain and (padded or layout.size == math.prod(shape)):
            return layout
    return engine.plain((math.prod(shape),))
