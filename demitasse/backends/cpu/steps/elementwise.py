"""Elementwise Steps: sums, products, Dropout, constants."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    BufferArg,
    InputArg,
    OutputArg,
    rounded_ends,
    rounded_input,
    rounded_output,
    written_layout,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.kernel_calls import KernelCall, elementwise_call
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep, op_title
from demitasse.backends.cpu.steps.epilogue import Chain, Epilogue
from demitasse.backends.kernels.elementwise import MOST, SLOPES_OF_BOTH
from demitasse.backends.step import AnyStep, Operand, Operands, decline_if


def saved_copy(engine: Engine, source: InputArg, blob: Operand) -> KernelCall:
    """Return a copy of an input that is overwritten next, in the same layout."""
    layout = source.layout
    copy = engine.copy(layout, layout)
    return KernelCall(engine, copy, source, OutputArg(blob, layout), code="")


def summed(
    engine: Engine, sources: Sequence[Operand], factors: Sequence[float], target: Operand,
    layout: Layout, *, diff: bool = False,
) -> list[KernelCall]:  # fmt: skip
    """Return the calls of target = sum of factor * source, all in one layout.

    A kernel adds up to four; each further kernel adds up to three to the target.
    """
    plain = all(factor == 1 for factor in factors)
    written = OutputArg(target, layout, diff=diff)
    reads = [InputArg(blob, layout, diff=diff) for blob in sources]
    so_far = InputArg(target, layout, diff=diff)
    calls: list[KernelCall] = []
    while reads:
        now, numbers = reads[: MOST - bool(calls)], factors[: MOST - bool(calls)]
        reads, factors = reads[len(now) :], factors[len(now) :]
        if calls:
            now, numbers = [so_far, *now], [1.0, *numbers]
        function = ("sum", ()) if plain else ("weighted_sum", numbers)
        calls.append(elementwise_call(engine, [function], now, written))
    return calls


class Function(NamedTuple):
    """Kernel functions of an activation.

    Attributes:
        name: Name of the function in kernels.
        numbers: Constants of the function.
        known: Array from which the gradient is computed. "input" is copied only if the layer is in
            place, "copy" always, since later layers may overwrite the input. "bottom" is read as
            it is in the backward pass: input or result, whose signs are the same.
        keeps_zero: True if 0 gives 0, as padding needs.
        inside: True if the gradient at the limits is 0.
    """

    name: str
    numbers: tuple[float, ...] = ()
    known: Literal["input", "result", "copy", "bottom"] = "input"
    keeps_zero: bool = True
    inside: bool = False

    @property
    def slope(self) -> str:
        """Name of the gradient in kernels."""
        return "inside_slope" if self.inside else f"{self.name}_slope"


def _clip(least: float, most: float) -> Function:
    inside = min(least, most) <= 0 <= most and least <= 0
    return Function("clip", (least, most), keeps_zero=inside)


def _relu6(slope: float) -> Function:
    decline_if(slope, f"slope {slope:g}; our kernels have ReLU6 without one")
    return Function("clip", (0.0, 6.0), inside=True)


def _power(power: float, scale: float, shift: float) -> Function:
    message = f"power {power:g} of scale {scale:g}; our kernels take 1 and 2 of others than 0"
    decline_if(power not in (1, 2) or not scale, message)
    if power == 1:  # any will do for the gradient
        return Function("linear", (power, scale, shift), "result", not shift)
    return Function("square", (power, scale, shift), keeps_zero=not shift)


FUNCTIONS: dict[str, Callable[..., Function]] = {
    "abs": lambda: Function("abs"),
    "bnll": lambda: Function("bnll", keeps_zero=False),
    "clip": _clip,
    # of a negative alpha, the result does not have the sign of the input
    "elu": lambda alpha: Function("elu", (alpha,), "input" if alpha < 0 else "bottom"),
    "exp": lambda *numbers: Function("exp", numbers, "result", keeps_zero=False),
    "gelu": lambda: Function("gelu"),
    "hard_swish": lambda: Function("hard_swish"),
    "power": _power,
    "relu": lambda n=0.0: Function("relu", (n,), "bottom" if n >= 0 else "input"),
    "relu6": _relu6,
    "sigmoid": lambda: Function("sigmoid", (), "result", keeps_zero=False),
    "swish": lambda beta: Function("swish", (beta,), "copy"),
    "tanh": lambda: Function("tanh", (), "result"),
}
"""Functions by name: each takes its constants, and returns a ``Function`` or raises Declined."""


class ElementwiseStep(CpuStep[ops.Activation]):
    """y = f(x), in whatever layout the data is; ``known`` is the gradient's source."""

    follows_bf16 = True

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        message = f"{op.function}; our kernels are for {', '.join(FUNCTIONS)}"
        decline_if(op.function not in FUNCTIONS, message)
        self.function = FUNCTIONS[op.function](*op.parameters)
        known, wanted = self.function.known, at.backward and at.propagate_down[0]
        self.known = at.top[0] if known == "result" else at.bottom[0]
        self.copies = wanted and (known == "copy" or (known == "input" and at.in_place))
        if self.copies:
            self.known = at.saved("input", at.bottom[0].shape).blob

    def prepare(self) -> None:
        engine, function = self.engine, self.function
        self.layout = layout = _row(self.at, padded=function.keeps_zero)
        source, target = self.in_and_out(layout, layout)
        if self.rounds:
            source, target = rounded_ends(self.at.layouts, source, target)
        call = elementwise_call(engine, [(function.name, function.numbers)], [source], target)
        keep = [saved_copy(engine, source, self.known)] if self.copies else []
        self.forward_calls = [*keep, call]

    def prepare_backward(self) -> None:
        if not self.at.propagate_down[0]:
            return
        slope, layout = self.function.slope, self.layout
        sources = [InputArg(self.known, layout)]
        if slope in SLOPES_OF_BOTH:
            sources.append(InputArg(self.at.top[0], layout))
        dy, dx = self.gradients(layout, layout)
        chain = [(slope, self.function.numbers)]
        self.backward_calls = [elementwise_call(self.engine, chain, [*sources, dy], dx)]


def chained(first: ElementwiseStep, rest: Chain, steps: Sequence[AnyStep | None]) -> KernelCall:
    """Return activations after each other, and a product of their result with another blob."""
    at, (last, end) = first.at, rest[-1]
    functions = [step.function for step in steps if isinstance(step, ElementwiseStep)]
    product = isinstance(last, ops.Eltwise) and last.operation == "PROD" and len(end.bottom) == 2
    names = ", ".join(op_title(op) for op, _ in rest)
    message = f"{names} after {op_title(first.op)}; functions are"
    decline_if(len(functions) + product <= len(rest), message)
    calls, blobs = [(each.name, each.numbers) for each in functions], list(at.bottom)
    if product:
        before = [at, *(own for _, own in rest)][-2].top[0]
        calls.append(("product", ()))
        blobs += [blob for blob in end.bottom if blob is not before]
    padded = product or all(each.keeps_zero for each in functions)
    layout = _row(replace(at, bottom=tuple(blobs)), padded=padded)
    sources = [InputArg(blob, layout) for blob in blobs]
    return elementwise_call(first.engine, calls, sources, OutputArg(end.top[0], layout))


class CombinationStep(CpuStep[ops.Eltwise]):
    """The product or the larger of two, element by element.

    Where gradients are wanted, a maximum keeps which of the two it took, and a product in place the
    factor that it overwrites.
    """

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        message = f"{op.operation} of {len(at.bottom)}; our kernels have PROD and MAX of two"
        decline_if(op.operation == "SUM" or len(at.bottom) > 2, message)
        learns = at.backward and any(at.propagate_down)
        message = "gradients in place of the second bottom; our kernels take the first"
        decline_if(learns and at.top[0] is at.bottom[1], message)
        message = "gradients by quotients; our kernels multiply"
        decline_if(learns and op.operation == "PROD" and not op.stable, message)
        self.marks: Operand | None = None
        if learns and op.operation == "MAX":
            self.marks = at.saved("first wins", op.shape).blob
        self.factors = list(at.bottom)
        self.copies = learns and at.in_place and op.operation == "PROD"
        if self.copies:
            self.factors[0] = at.saved("first factor", op.shape).blob

    def prepare(self) -> None:
        at, engine = self.at, self.engine
        self.layout = layout = _row(at, padded=True)
        sources = [InputArg(blob, layout) for blob in at.bottom]
        targets = [OutputArg(at.top[0], layout)]
        name = "product" if self.op.operation == "PROD" else "larger"
        if self.marks is not None:
            name = "larger_of_which"
            targets.append(OutputArg(self.marks, layout))
        keep = [saved_copy(engine, sources[0], self.factors[0])] if self.copies else []
        self.forward_calls = [*keep, elementwise_call(engine, [(name, ())], sources, *targets)]

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        targets = {
            index: OutputArg(blob, layout, diff=True)
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

    def _gradient(self, name: str, known: Operand, *targets: OutputArg) -> KernelCall:
        sources = [InputArg(known, self.layout), InputArg(self.at.top[0], self.layout, diff=True)]
        return elementwise_call(self.engine, [(name, ())], sources, *targets)


def _row(at: Operands, *, padded: bool) -> Layout:
    """Return a layout whose elements fill a row, that of some bottom where there is a good one.

    Padding, if ``padded`` allows any, is 0.
    """
    shape = at.bottom[0].shape
    for blob in at.bottom:
        layout = written_layout(at.layouts, blob.data_memory, shape)
        if not layout.plain and (padded or layout.size == math.prod(shape)):
            return layout
    return layouts.plain((math.prod(shape),))


IMAGES = 3
"""Axes from which on there are channels and places."""


class SumStep(CpuStep[ops.Eltwise]):
    """y = sum of c_i * x_i, in one layout."""

    takes = ("then",)
    """Parts of an epilogue that are fused."""

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.operation != "SUM", f"{op.operation}; the Step is for SUM")
        memories = {id(blob.data_memory) for blob in (*at.bottom, *at.top)}
        decline_if(
            len(memories) <= len(at.bottom), "blobs that share a memory; kernels add different ones"
        )
        decline_if(not op.shape, "0 axes; kernels take 1 to 12")

    @property
    def follows_layouts(self) -> bool:
        return self.rounds and len(self.at.bottom) <= MOST

    def prepare(self) -> None:
        at = self.at
        self.layout = self._layout()
        if self.follows_layouts:
            self.forward_calls = [self.fused(Epilogue(at.top[0]))]
        else:
            self.forward_calls = summed(
                self.engine, at.bottom, self.op.coefficients, at.top[0], self.layout
            )

    def _layout(self) -> Layout:
        """Return the first bottom's layout, or channels last in place of C order.

        Without gradients, one bottom with channels last suffices: Steps that write the other
        bottoms can then write channels last too.
        """
        at, shape = self.at, self.op.shape
        found = [self.expected(blob, shape) for blob in at.bottom]
        if len(shape) < IMAGES or (at.backward and not found[0].plain):
            return found[0]
        last = layouts.innermost(shape, 1)
        return last if last in found else found[0]

    def fused(self, epilogue: Epilogue) -> KernelCall:
        """Return the sum, perhaps with a ReLU after it, in the same layout."""
        epilogue.decline_other_than_relu()
        factors, relu = self.op.coefficients, epilogue.then is not None
        plain = all(factor == 1 for factor in factors)
        decline_if(relu and not plain, f"coefficients {factors}; ReLU is fused with plain sums")
        sources: Sequence[InputArg] = [InputArg(blob, self.layout) for blob in self.at.bottom]
        target = OutputArg(epilogue.target, self.layout)
        if self.follows_layouts:
            known = self.at.layouts
            sources = [rounded_input(known, blob, self.layout) for blob in self.at.bottom]
            target = rounded_output(known, epilogue.target, self.layout)
        name = "rectified_sum" if relu else "sum" if plain else "weighted_sum"
        numbers = () if plain else factors
        return elementwise_call(self.engine, [(name, numbers)], sources, target)

    def prepare_backward(self) -> None:
        at = self.at
        layout = self.expected(at.top[0], self.op.shape, diff=True)
        each = zip(at.bottom, self.op.coefficients, at.propagate_down, strict=True)
        for blob, factor, wanted in each:
            if wanted:
                ends = at.top, [factor], blob
                self.backward_calls += summed(self.engine, *ends, layout, diff=True)


class DropoutStep(CpuStep[ops.Dropout]):
    """y = x * mask and dx = dy * mask; a factor, a copy or nothing where nothing is dropped.

    The mask is the factor, and 0 where an element is dropped. It is made in C order, since the
    layer's random words are, and brought into the layout of the data once a pass.
    """

    def __init__(self, engine: Engine, op: ops.Dropout, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.shape = at.bottom[0].shape
        self.mask: np.ndarray | None = None
        self.works = op.drops or op.factor != 1 or not at.in_place

    def prepare(self) -> None:
        self.layout = self.expected(self.at.bottom[0], self.shape)
        if self.op.drops:
            self.mask = aligned(self.layout.size)
            self.kept_bytes = self.mask.nbytes
        if self.works:
            self.forward_calls = self._calls(self.at.bottom[0], self.at.top[0], diff=False)

    @property
    def replayable(self) -> bool:
        return not self.op.drops

    def forward(self) -> None:
        if self.mask is not None:
            kept: Any = self.at.random_words(self.shape) > self.op.threshold
            mask = np.multiply(kept, self.op.factor, dtype=np.float32)
            self.engine.reorder(mask, layouts.plain(self.shape), self.mask, self.layout)
        super().forward()

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0] and self.works:
            self.backward_calls = self._calls(self.at.top[0], self.at.bottom[0], diff=True)

    def _calls(self, source: Operand, target: Operand, *, diff: bool) -> list[KernelCall]:
        """Return target = source * mask, source * factor, or a copy."""
        layout = self.layout
        if self.mask is None:
            return summed(self.engine, [source], [self.op.factor], target, layout, diff=diff)
        sources = InputArg(source, layout, diff=diff), BufferArg(layout, self.mask)
        written = OutputArg(target, layout, diff=diff)
        return [elementwise_call(self.engine, [("product", ())], sources, written)]


class ConstantStep(CpuStep[ops.Constant]):
    """A copy in C order; bottoms that only lend their shapes have no gradient."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.Constant, at: Operands) -> None:
        super().__init__(engine, op, at)
        values = np.frombuffer(op.values, np.float32)
        self.values = aligned(values.size)
        self.values[:] = values
        self.kept_bytes = self.values.nbytes

    def prepare(self) -> None:
        row = layouts.plain((self.values.size,))
        source, target = (BufferArg(row, self.values), OutputArg(self.at.top[0], row))
        self.forward_calls = [elementwise_call(self.engine, [("sum", ())], [source], target)]

    def backward(self) -> None:
        for blob, wanted in zip(self.at.bottom, self.at.propagate_down, strict=True):
            if wanted:
                blob.set_diff(0)
