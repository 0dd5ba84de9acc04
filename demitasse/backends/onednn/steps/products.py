"""Matrix products with a learned weight: InnerProduct and Embed."""

from __future__ import annotations

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import (
    Argument,
    BufferArg,
    Call,
    GradArg,
    InputArg,
    OutputArg,
    ParamArg,
)
from demitasse.backends.onednn.jit_adapters.calls import ConvOperands, rectifier_of
from demitasse.backends.onednn.jit_adapters.pixels import bf16_rows_call, rows_call
from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description, lent_attributes
from demitasse.backends.onednn.step import OnednnStep, Runnable
from demitasse.backends.onednn.steps.activation import post_ops
from demitasse.backends.step import Declined, Operand, Operands, decline_if

FEW = 8
"""Rows below which a packed weight is no faster than one in C order."""


class Product:
    """y = x W^T + b and its gradients. Shapes: x (rows, k), W (m, k), b (m,), y (rows, m).

    The weight is packed in the primitive's layout after each change; for few rows it stays in C
    order.

    Args:
        attributes: What happens to the product; by default it overwrites the target.
        alone: Whether the weight may lie in the primitive's layout alone, as nothing learns it.
    """

    def __init__(
        self,
        engine: Engine,
        rows: int,
        weight: Operand,
        bias: Operand | None = None,
        *,
        attributes: int | None = None,
        alone: bool = False,
    ) -> None:
        self._reader = ParamArg if alone else InputArg
        self._engine, self._weight, self._bias = engine, weight, bias
        m, k = weight.shape
        self.x, self.y, self.w = (engine.plain(shape) for shape in ((rows, k), (rows, m), (m, k)))
        self._row = None if bias is None else engine.plain((m,))
        self._forward = engine.describe(
            "inner_product_forward",
            Pass.TRAINING,
            self.x,
            engine.any((m, k)) if rows >= FEW else self.w,
            self._row,
            self.y,
            attributes=attributes,
        )
        self._packed = self._forward.layout(Query.WEIGHTS)

    def forward(self, x: Matrix, y: Matrix) -> Call:
        """Return a call that computes y."""
        weight = self._reader(Arg.WEIGHTS, self._weight, self._packed)
        arguments = [_argument(InputArg, Arg.SRC, x, self.x), weight]
        if self._row and self._bias:
            arguments.append(InputArg(Arg.BIAS, self._bias, self._row))
        arguments.append(_argument(OutputArg, Arg.DST, y, self.y))
        return Call(self._engine, self._forward, arguments)

    def gradient(self, dy: Matrix, dx: Matrix) -> Call:
        """Return a call that computes the gradient of x.

        The weight is used as it is, in C order: for few rows that is the fastest there is.
        """
        layouts = self.x, self.w, self.y
        found = self._engine.describe("inner_product_backward_data", *layouts, self._forward)
        source = _argument(InputArg, Arg.DIFF_DST, dy, self.y, diff=True)
        target = _argument(OutputArg, Arg.DIFF_SRC, dx, self.x, diff=True)
        weight = InputArg(Arg.WEIGHTS, self._weight, self.w)
        return Call(self._engine, found, [source, weight, target])

    def gradients(self, x: Matrix, dy: Matrix, *, bias: bool) -> Call:
        """Return a call that adds to the gradients of W and, with ``bias``, of b."""
        row = self._row if bias else None
        found = self._engine.describe(
            "inner_product_backward_weights", self.x, self.w, row, self.y, self._forward
        )
        source = _argument(InputArg, Arg.SRC, x, self.x)
        gradient = _argument(InputArg, Arg.DIFF_DST, dy, self.y, diff=True)
        arguments = [source, gradient, GradArg(Arg.DIFF_WEIGHTS, self._weight, self.w)]
        if row and self._bias:
            arguments.append(GradArg(Arg.DIFF_BIAS, self._bias, row))
        return Call(self._engine, found, arguments)


Matrix = Operand | np.ndarray | BufferArg
"""Rows of a product: a blob, an array, or an argument whose array changes between calls."""


def _argument(
    kind: type[InputArg | OutputArg], role: Arg, rows: Matrix, layout: Layout, *, diff: bool = False
) -> Argument:
    """Return an argument of this role; ``kind`` and ``diff`` are those of a blob's."""
    if isinstance(rows, BufferArg):
        return rows
    if isinstance(rows, np.ndarray):
        return BufferArg(role, layout, rows)
    return kind(role, rows, layout, diff=diff)


class InnerProductStep(OnednnStep[ops.InnerProduct]):
    """x (rows, k) in C order; the weight (m, k) in one layout for all primitives.

    It is the layout that all of them prefer, if that is one and the same; the bottom is taken as
    rows, not as images, to make that likely. Otherwise the weight stays in C order: converting a
    learned weight there and back in every step takes as long as a product.
    """

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.transpose, "a transposed weight; oneDNN's Step takes (num_output, K)")
        plain = engine.plain
        self.x, self.y, self.w = plain((op.rows, op.k)), plain((op.rows, op.m)), (op.m, op.k)
        self.bias = plain((op.m,)) if op.bias else None

    def prepare(self) -> None:
        engine, call = self.engine, self._bf16_call(self.at.top[0])
        if call is not None:
            self.forward_calls = [call]
            return
        found = self._describe(engine.any(self.w))
        if not self._agree(found):
            found = self._describe(engine.plain(self.w).handle)
        self.hint, self.weight = found, found.layout(Query.WEIGHTS)
        top = self.at.top[0]
        self.forward_calls = [self._jit_call(top) or self._call(found, top)]

    def _agree(self, found: Description) -> bool:
        """Return whether the gradient of a weight that is learned has the weight's own layout."""
        if not self.at.backward or not self.at.param_propagate_down[0]:
            return True
        try:
            gradient = self._describe_weights(found, self.engine.any(self.w), self.bias)
            return gradient.layout(Query.DIFF_WEIGHTS) is found.layout(Query.WEIGHTS)
        except Declined:
            return False

    def with_activation(self, then: ops.Activation, target: Operand) -> Runnable:
        """Return the product with an activation after it, with the same layout of the weight."""
        jit_call = self._bf16_call(target, then) or self._jit_call(target, then)
        if jit_call is not None:
            return jit_call
        functions = post_ops(then)
        with lent_attributes(self.engine.library, functions=functions) as lent:
            found = self._describe(self.hint.descriptor(Query.WEIGHTS), lent)
        return self._call(found, target)

    def _describe(self, w: int, attributes: int | None = None) -> Description:
        return self.engine.describe(
            "inner_product_forward", self.kind, self.x, w, self.bias, self.y, attributes=attributes
        )

    def _bf16_call(self, target: Operand, then: ops.Activation | None = None) -> Runnable | None:
        """Return the product in bfloat16; None where the net does not ask for it.

        Raises:
            Declined: It does not do what follows.
        """
        at = self.at
        if at.storage != "bfloat16":
            return None
        bias = InputArg(Arg.BIAS, at.params[1], self.bias) if self.bias else None
        source = InputArg(Arg.SRC, at.bottom[0], self.x)
        written = OutputArg(Arg.DST, target, self.y)
        operands = ConvOperands(source, written, at.params[0], at.layouts, bias, rectifier_of(then))
        return bf16_rows_call(self.engine, operands, at.storage)

    def _jit_call(self, target: Operand, then: ops.Activation | None = None) -> Runnable | None:
        """Return the product in a kernel of our own; None where none pays or can be made.

        Raises:
            Declined: It does not do what follows.
        """
        if self.at.backward:
            return None
        source, weight, bias = self._sources()
        written = OutputArg(Arg.DST, target, self.y)
        return rows_call(self.engine, source, weight, bias, written, then)

    def _call(self, found: Description, target: Operand) -> Call:
        arguments: list[Argument] = [
            argument for argument in self._sources() if argument is not None
        ]
        return Call(self.engine, found, [*arguments, OutputArg(Arg.DST, target, self.y)])

    def _sources(self) -> tuple[InputArg, ParamArg, InputArg | None]:
        """Return what is read: rows, weight and bias."""
        at = self.at
        bias = InputArg(Arg.BIAS, at.params[1], self.bias) if self.bias else None
        weight = ParamArg(Arg.WEIGHTS, at.params[0], self.weight)
        return InputArg(Arg.SRC, at.bottom[0], self.x), weight, bias

    def prepare_backward(self) -> None:
        if self.at.param_propagate_down[0]:
            self._prepare_weights()
        if self.at.propagate_down[0]:
            self._prepare_data()

    @property
    def backward_replayable(self) -> bool:
        return not self._adds_bias_alone

    @property
    def _adds_bias_alone(self) -> bool:
        """True if there is a gradient of the bias, and none of the weight."""
        wanted = self.at.param_propagate_down
        return self.op.bias and wanted[1] and not wanted[0]

    def backward(self) -> None:
        super().backward()
        at, op = self.at, self.op
        if self._adds_bias_alone:
            # the primitive that sums it up computes the weight's gradient too
            dy = at.top[0].read_diff().reshape(op.rows, op.m)
            at.params[1].add_diff(np.add.reduce(dy, axis=0))

    def _prepare_weights(self) -> None:
        at = self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        found = self._describe_weights(self.hint, self.hint.descriptor(Query.WEIGHTS), bias)
        arguments: list[Argument] = [
            InputArg(Arg.SRC, at.bottom[0], self.x),
            InputArg(Arg.DIFF_DST, at.top[0], self.y, diff=True),
            GradArg(Arg.DIFF_WEIGHTS, at.params[0], found.layout(Query.DIFF_WEIGHTS)),
        ]
        if bias:
            arguments.append(GradArg(Arg.DIFF_BIAS, at.params[1], bias))
        self.backward_calls.append(Call(self.engine, found, arguments))

    def _describe_weights(self, hint: Description, w: int, bias: Layout | None) -> Description:
        return self.engine.describe("inner_product_backward_weights", self.x, w, bias, self.y, hint)

    def _prepare_data(self) -> None:
        at = self.at
        found = self.engine.describe(
            "inner_product_backward_data",
            self.x,
            self.hint.descriptor(Query.WEIGHTS),
            self.y,
            self.hint,
        )
        dy, dx = self.gradients(self.x, self.y)
        weight = InputArg(Arg.WEIGHTS, at.params[0], found.layout(Query.WEIGHTS))
        self.backward_calls.append(Call(self.engine, found, [dy, weight, dx]))
