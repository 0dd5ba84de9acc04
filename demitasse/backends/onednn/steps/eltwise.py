"""Eltwise SUM."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import lent_attributes
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.activation import post_ops
from demitasse.backends.onednn.steps.sums import ONES, added, summed
from demitasse.backends.step import Declined, Operand, Operands

__all__ = ["SumStep"]

IMAGES = 3
"""Axes from which on there are channels and places."""


class SumStep(OnednnStep[ops.Eltwise]):
    """y = sum of c_i * x_i, in one layout."""

    def __init__(self, engine: Engine, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(engine, op, at)
        if op.operation != "SUM":
            message = f"{op.operation}; oneDNN's Step is for SUM"
            raise Declined(message)
        memories = {id(blob.data_memory) for blob in (*at.bottom, *at.top)}
        if len(memories) <= len(at.bottom):
            message = "blobs that share a memory; oneDNN adds different ones"
            raise Declined(message)
        if not op.shape:
            message = "0 axes; oneDNN takes 1 to 12"
            raise Declined(message)

    def prepare(self) -> None:
        at = self.at
        self.layout = self._layout()
        call = summed(self.engine, at.bottom, self.op.coefficients, at.top[0], self.layout)
        self.forward_calls = [call]

    def _layout(self) -> Layout:
        """Return the first bottom's layout, or channels last in place of C order.

        Without gradients, one bottom with channels last suffices: Steps that write the other
        bottoms, such as convolutions with pooling, can then write channels last too.
        """
        at, shape = self.at, self.op.shape
        found = [self.expected(blob, shape) for blob in at.bottom]
        if len(shape) < IMAGES or (at.backward and not found[0].plain):
            return found[0]
        last = self.engine.innermost_layout(shape, 1)
        return last if last in found else found[0]

    def with_activation(self, then: ops.Activation, target: Operand) -> Call:
        """Return the sum with an activation after it, in the same layout.

        Raises:
            Declined: The library does not do it.
        """
        if self.op.coefficients != ONES:
            message = f"coefficients {self.op.coefficients}; oneDNN appends to plain sums of two"
            raise Declined(message)
        with lent_attributes(self.engine.library, functions=post_ops(then)) as lent:
            return added(self.engine, self.at.bottom, target, self.layout, lent)

    def prepare_backward(self) -> None:
        at = self.at
        layout = self.expected(at.top[0], self.op.shape, diff=True)
        for blob, factor, wanted in zip(
            at.bottom, self.op.coefficients, at.propagate_down, strict=True
        ):
            if wanted:
                self.backward_calls.append(self._scaled(factor, blob, layout))

    def _scaled(self, factor: float, target: Operand, layout: Layout) -> Call:
        """Return the gradient of one bottom: the top's times a factor."""
        found = self.engine.describe(
            "eltwise_forward",
            Pass.INFERENCE,
            Algorithm.LINEAR,
            layout.handle,
            layout.handle,
            factor,
            0.0,
            self.engine.attributes,
        )
        arguments = [
            InputArg(Arg.SRC, self.at.top[0], layout, diff=True),
            OutputArg(Arg.DST, target, layout, diff=True),
        ]
        return Call(self.engine, found, arguments)
