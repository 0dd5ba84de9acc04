"""PReLU, and ReLU as an epilogue of the library's primitives.

The library's own ReLU takes the larger of 0 and x, by an instruction that returns 0 for NaN, which
hides the divergence of a net. Its HardSwish, x * clip(alpha * x + beta, 0, 1), multiplies x with 1
or 0 if alpha is infinite, and keeps NaN; minus infinity becomes NaN, as in Caffe, where the slope
of 0 multiplies it. Adding 0 then makes the negative zeros positive.

Fewer instructions do the same behind a convolution: PReLU multiplies negative values with negative
zero, which gives zero, or NaN of minus infinity. A negative slope multiplies them in the same way.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import Argument, Call, GradArg, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.unary import elementwise_call
from demitasse.backends.onednn.library import primitive
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import (
    Description,
    Function,
    in_some_layout,
    lent_attributes,
)
from demitasse.backends.onednn.step import Fixed, OnednnStep, op_title
from demitasse.backends.step import Declined, LayoutUse, Operand, Operands, decline_if

RECTIFIER: Sequence[Function] = ((Algorithm.HARDSWISH, math.inf, 0.0), (Algorithm.LINEAR, 1.0, 0.0))
"""Post-operation of a primitive."""


def rectifying(
    engine: Engine,
    describe: Callable[[int], Description],
    plain: Description,
    axes: int,
    other: int | None = None,
    slope: float = 0.0,
) -> tuple[Description, list[Fixed]]:
    """Return a primitive with an appended ReLU, and the ReLU's arguments.

    The result has ``axes`` axes; ``other`` is added before; ``slope`` is that of negative values.
    """
    with suppress(Declined):
        found, role = sloping(engine, describe, plain, 0, other)
        number = aligned(1)
        number[0] = slope or -0.0
        return found, [(role, engine.plain((1,) * axes).handle, number)]
    functions = [(Algorithm.RELU, slope, 0.0)] if slope else RECTIFIER
    with lent_attributes(engine.library, other=other, functions=functions) as lent:
        return describe(lent), []


def sloping(
    engine: Engine,
    describe: Callable[[int], Description],
    plain: Description,
    mask: int,
    other: int | None = None,
) -> tuple[Description, int]:
    """Return a primitive that multiplies what is below 0 with slopes, and the slopes' role.

    ``mask`` says by which axes the slopes differ, 0 for one slope; ``other`` is added before.

    Raises:
        Declined: The library has none, or runs other code than without slopes.
    """
    with lent_attributes(engine.library, other=other, slopes=mask) as lent:
        found = describe(lent)
    if found.family is not plain.family:
        message = f"slopes behind {plain.implementation}, in place of which oneDNN would run "
        raise Declined(message + found.implementation)
    return found, Arg.SLOPE if other is None else Arg.SECOND_SLOPE


def post_ops(then: ops.Activation) -> Sequence[primitive.Function]:
    """Return an activation as a primitive applies it to what it has computed.

    Only those are here with which a primitive gives exactly what two give one after the other.
    """
    message = f"{op_title(then)} runs by itself; oneDNN appends ReLU without a slope"
    decline_if(then.function != "relu" or any(then.parameters), message)
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


DATA_AXES = (2, 3, 4, 5)


class PReLUStep(OnednnStep[ops.PReLU]):
    """In whatever layout the data is, in place or not. In place, the gradient takes a copy."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.PReLU, at: Operands) -> None:
        super().__init__(engine, op, at)
        axes = len(op.bottom)
        decline_if(op.shared, "one slope for all channels; oneDNN takes one for each")
        decline_if(axes not in DATA_AXES, f"{axes} axes; oneDNN takes 2 to 5")
        # threads of the library's kernel overlap by part of a vector
        self.overlaps = at.in_place and math.prod(op.bottom) == op.bottom[1]
        message = "one value for each slope, in place; oneDNN would multiply some of them twice"
        decline_if(self.overlaps and at.backward, message)
        self.spread = (1, op.bottom[1], *[1] * (axes - 2))
        self.keeps_input = at.in_place and at.backward
        self.known = at.saved("input", op.bottom).blob if self.keeps_input else at.bottom[0]

    def prepare(self) -> None:
        if self.overlaps:
            row = self.engine.plain((self.op.bottom[1],))
            source, target = self.in_and_out(row, row)
            sources = [source, InputArg(Arg.WEIGHTS, self.at.params[0], row)]
            self.forward_calls = [elementwise_call(self.engine, "prelu", (), sources, target)]
            return
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        in_some_layout(self.engine, expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        found = self._describe(layout)
        if self.at.backward:
            self._gradient(found, layout)
        self._forward(found, layout)

    def _describe(self, layout: Layout) -> Description:
        return self.engine.describe(
            "prelu_forward", self.kind, layout, self.engine.any(self.spread), layout
        )

    def _gradient(self, hint: Description, layout: Layout) -> Description:
        slopes = hint.descriptor(Query.WEIGHTS)
        return self.engine.describe("prelu_backward", layout, slopes, layout, slopes, layout, hint)

    def _forward(self, found: Description, layout: Layout) -> None:
        self.hint, self.layout = found, layout
        source, target = self.in_and_out(layout, layout)
        slopes = InputArg(Arg.WEIGHTS, self.at.params[0], found.layout(Query.WEIGHTS))
        call = Call(self.engine, found, [source, slopes, target])
        keep = [SaveInput(self.engine, source, self.known)] if self.keeps_input else []
        self.forward_calls = [*keep, call]

    def prepare_backward(self) -> None:
        at, layout, engine = self.at, self.layout, self.engine
        found = self._gradient(self.hint, layout)
        slopes = found.layout(Query.DIFF_WEIGHTS)
        self.source = InputArg(Arg.SRC, self.known, layout)
        arguments: list[Argument] = [
            self.source,
            InputArg(Arg.WEIGHTS, at.params[0], found.layout(Query.WEIGHTS)),
            InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True),
        ]
        unwanted: list[Fixed] = []
        if at.param_propagate_down[0]:
            arguments.append(GradArg(Arg.DIFF_WEIGHTS, at.params[0], slopes))
        else:
            lent = engine.scratch_for(Arg.DIFF_WEIGHTS, slopes.size)
            unwanted.append((Arg.DIFF_WEIGHTS, slopes.handle, lent))
        if at.propagate_down[0]:
            arguments.append(OutputArg(Arg.DIFF_SRC, at.bottom[0], layout, diff=True))
        else:
            lent = engine.scratch_for(Arg.DIFF_SRC, layout.size)
            unwanted.append((Arg.DIFF_SRC, layout.handle, lent))
        self.backward_calls = [Call(engine, found, arguments, unwanted)]

    def backward(self) -> None:
        x = self.source.array()[: self.layout.size]
        if math.isfinite(np.dot(x, x)):
            super().backward()
        else:
            self._backward_with_nan()

    def _backward_with_nan(self) -> None:
        at, x, dy = self.at, self.known.read(), self.at.top[0].read_diff()
        if at.param_propagate_down[0]:
            others = tuple(axis for axis in range(x.ndim) if axis != 1)
            at.params[0].add_diff(np.sum(dy * np.minimum(x, 0.0), axis=others))
        if at.propagate_down[0]:
            slopes = at.params[0].read().reshape(self.spread)
            at.bottom[0].write_diff(dy * np.where(x > 0, np.float32(1.0), slopes))
