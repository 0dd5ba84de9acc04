"""PReLU: negative values are multiplied with a learned slope per channel.

The library's gradient treats NaN as positive, and a diverged net would continue to learn slopes.
If the input has a NaN, numpy computes the gradient.
"""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Argument, Call, GradArg, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description, in_some_layout
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.activation import SaveInput
from demitasse.backends.onednn.steps.rectifier import Fixed
from demitasse.backends.step import Declined, Operands

__all__ = ["PReLUStep"]

DATA_AXES = (2, 3, 4, 5)


class PReLUStep(OnednnStep[ops.PReLU]):
    """In whatever layout the data is, in place or not. In place, the gradient takes a copy."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.PReLU, at: Operands) -> None:
        super().__init__(engine, op, at)
        axes = len(op.bottom)
        if op.shared:
            message = "one slope for all channels; oneDNN takes one for each"
            raise Declined(message)
        if axes not in DATA_AXES:
            message = f"{axes} axes; oneDNN takes 2 to 5"
            raise Declined(message)
        if at.in_place and math.prod(op.bottom) == op.bottom[1]:
            # as many slopes as values: threads of the library's kernel overlap by part of a vector
            message = "one value for each slope, in place; oneDNN would multiply some of them twice"
            raise Declined(message)
        self.spread = (1, op.bottom[1], *[1] * (axes - 2))
        self.keeps_input = at.in_place and at.backward
        self.known = at.saved("input", op.bottom).blob if self.keeps_input else at.bottom[0]

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        in_some_layout(self.engine, expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        found = self._describe(layout)
        if self.at.backward:
            self._gradient(found, layout)
        self._forward(found, layout)

    def _describe(self, layout: Layout) -> Description:
        return self.engine.describe(
            "prelu_forward",
            Pass.TRAINING if self.at.backward else Pass.INFERENCE,
            layout.handle,
            self.engine.any(self.spread),
            layout.handle,
            self.engine.attributes,
        )

    def _gradient(self, hint: Description, layout: Layout) -> Description:
        slopes = hint.descriptor(Query.WEIGHTS)
        return self.engine.describe(
            "prelu_backward",
            layout.handle,
            slopes,
            layout.handle,
            slopes,
            layout.handle,
            hint.handle,
            self.engine.attributes,
        )

    def _forward(self, found: Description, layout: Layout) -> None:
        at = self.at
        self.hint, self.layout = found, layout
        source = InputArg(Arg.SRC, at.bottom[0], layout)
        arguments = [
            source,
            InputArg(Arg.WEIGHTS, at.params[0], found.layout(Query.WEIGHTS)),
            OutputArg(Arg.DST, at.top[0], layout),
        ]
        call = Call(self.engine, found, arguments)
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
