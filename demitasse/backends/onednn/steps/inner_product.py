"""InnerProduct: rows times a weight matrix."""

from __future__ import annotations

from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Gradient, Port, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["InnerProductStep"]


class InnerProductStep(PreparedStep):
    """x (rows, k) in C order; the weight (m, k) in one layout for all primitives.

    It is the one they like, if they like the same; the bottom is taken as rows, not as images, so
    that they may. Otherwise a weight that is learned would be converted there and back in every
    step, which takes as long as a product, and stays in C order.
    """

    def __init__(self, backend: OnednnBackend, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(backend, at)
        self.op, plain = op, self.engine.plain
        self.x, self.y, self.w = plain((op.rows, op.k)), plain((op.rows, op.m)), (op.m, op.k)
        self.bias = plain((op.m,)) if op.bias else None

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        found = self._describe(self.any(self.w), self.engine.attributes)
        if found and not self._agree(found):
            found = self._describe(self.engine.plain(self.w).handle, self.engine.attributes)
        layouts = found and found.layouts(Query.WEIGHTS)
        if not found or not layouts:
            return False
        self.forward_calls = [self._call(found, layouts[0], self.at.top[0])]
        self.hint, self.weight = found, layouts[0]
        return True

    def _agree(self, found: Description) -> bool:
        """Whether the gradient of a weight that is learned has the weight's own layout."""
        if not self.at.backward or not self.at.param_propagate_down[0]:
            return True
        gradient = self._describe_weights(found, self.any(self.w), self.bias)
        mine = gradient and gradient.layout(Query.DIFF_WEIGHTS)
        return mine is not None and mine is found.layout(Query.WEIGHTS)

    def with_relu(self, target: Any) -> Step | None:
        """Return a Step that runs the ReLU behind it too, with the same layout of the weight."""
        w = self.hint.descriptor(Query.WEIGHTS)
        found = self._describe(w, self.engine.attributes_with_relu)
        if not found:
            return None
        step = PreparedStep(self.backend, self.at)
        step.forward_calls = [self._call(found, self.weight, target)]
        return step

    def _describe(self, w: int, attributes: int) -> Description | None:
        return self.describe(
            "inner_product_forward",
            Pass.TRAINING if self.at.backward else Pass.INFERENCE,
            self.x.handle,
            w,
            self.bias.handle if self.bias else None,
            self.y.handle,
            attributes,
        )

    def _call(self, found: Description, w: Layout, target: Any) -> Call:
        at, bias = self.at, self.bias
        ports: list[Port] = [
            Reader(Arg.SRC, at.bottom[0], self.x),
            Reader(Arg.WEIGHTS, at.params[0], w),
        ]
        if bias:
            ports.append(Reader(Arg.BIAS, at.params[1], bias))
        ports.append(Writer(Arg.DST, target, self.y))
        return Call(self.engine, found, ports)

    def prepare_backward(self) -> bool:
        if any(self.at.param_propagate_down) and not self._prepare_weights():
            return False
        return not self.at.propagate_down[0] or self._prepare_data()

    def _prepare_weights(self) -> bool:
        at = self.at
        bias = self.bias if self.op.bias and at.param_propagate_down[1] else None
        found = self._describe_weights(self.hint, self.hint.descriptor(Query.WEIGHTS), bias)
        layouts = found and found.layouts(Query.DIFF_WEIGHTS)
        if not found or not layouts:
            return False
        ports: list[Port] = [
            Reader(Arg.SRC, at.bottom[0], self.x),
            Reader(Arg.DIFF_DST, at.top[0], self.y, diff=True),
            Gradient(Arg.DIFF_WEIGHTS, at.params[0], layouts[0], diff=True),
        ]
        if bias:
            ports.append(Gradient(Arg.DIFF_BIAS, at.params[1], bias, diff=True))
        self.backward_calls.append(Call(self.engine, found, ports))
        return True

    def _describe_weights(
        self, hint: Description, w: int, bias: Layout | None
    ) -> Description | None:
        return self.describe(
            "inner_product_backward_weights",
            self.x.handle,
            w,
            bias.handle if bias else None,
            self.y.handle,
            hint.handle,
            self.engine.attributes,
        )

    def _prepare_data(self) -> bool:
        at = self.at
        found = self.describe(
            "inner_product_backward_data",
            self.x.handle,
            self.hint.descriptor(Query.WEIGHTS),
            self.y.handle,
            self.hint.handle,
            self.engine.attributes,
        )
        layouts = found and found.layouts(Query.WEIGHTS)
        if not found or not layouts:
            return False
        ports = [
            Reader(Arg.DIFF_DST, at.top[0], self.y, diff=True),
            Reader(Arg.WEIGHTS, at.params[0], layouts[0]),
            Writer(Arg.DIFF_SRC, at.bottom[0], self.x, diff=True),
        ]
        self.backward_calls.append(Call(self.engine, found, ports))
        return True


@OnednnBackend.lowers(ops.InnerProduct)
def inner_product(backend: Any, op: ops.InnerProduct, at: Operands) -> Step | None:
    """Weights (m, k); a transposed weight runs on numpy."""
    if op.dtype != "float32" or op.transpose or at.in_place or 0 in (op.rows, op.k, op.m):
        return None
    step = InnerProductStep(backend, op, at)
    return step if step.prepare() else None
