"""Sums of arrays of one shape: Eltwise SUM, and the gradient of Split."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_void_p
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["EltwiseSumStep", "SplitStep"]


class SumStep(PreparedStep):
    """What both share."""

    def summed(
        self,
        sources: Sequence[Any],
        factors: Sequence[float],
        target: Any,
        layout: Layout,
        *,
        diff: bool = False,
    ) -> Call | None:
        """Return target = sum of factor * source, all in one layout; None where there is none.

        Args:
            sources: The blobs to add.
            factors: What each is multiplied with.
            target: The blob to overwrite.
            layout: Of all of them.
            diff: Whether their gradients are meant.
        """
        count = len(sources)
        if tuple(factors) == (1.0, 1.0):
            call = self._added(sources, target, layout, self.engine.attributes, diff=diff)
            if call:
                return call
        found = self.engine.describe(
            "dnnl_sum",
            self.engine.handle,
            layout.handle,
            count,
            (c_float * count)(*factors),
            (c_void_p * count)(*[layout.handle] * count),
            self.engine.attributes,
            general=True,  # made of reorders, which are good
        )
        if not found:
            return None
        ports = [
            Reader(Arg.MULTIPLE_SRC + i, blob, layout, diff=diff) for i, blob in enumerate(sources)
        ]
        self.backend.promise(target, layout, diff=diff)
        return Call(self.engine, found, [*ports, Writer(Arg.DST, target, layout, diff=diff)])

    def _added(
        self,
        sources: Sequence[Any],
        target: Any,
        layout: Layout,
        attributes: int,
        *,
        diff: bool = False,
    ) -> Call | None:
        """Return the plain sum of two blobs; None where there is none."""
        one, two = sources
        handles = [layout.handle] * 3
        found = self.describe("binary", Algorithm.ADD, *handles, attributes)
        if not found:
            return None
        self.backend.promise(target, layout, diff=diff)
        ports = [
            Reader(Arg.SRC, one, layout, diff=diff),
            Reader(Arg.SECOND_SRC, two, layout, diff=diff),
            Writer(Arg.DST, target, layout, diff=diff),
        ]
        return Call(self.engine, found, ports)

    def scaled(self, source: Any, factor: float, target: Any, layout: Layout) -> Call | None:
        """Return target = factor * source, gradients both; None where there is none."""
        found = self.describe(
            "eltwise_forward",
            Pass.INFERENCE,
            Algorithm.LINEAR,
            layout.handle,
            layout.handle,
            factor,
            0.0,
            self.engine.attributes,
        )
        if not found:
            return None
        self.backend.promise(target, layout, diff=True)
        ports = [
            Reader(Arg.SRC, source, layout, diff=True),
            Writer(Arg.DST, target, layout, diff=True),
        ]
        return Call(self.engine, found, ports)


class EltwiseSumStep(SumStep):
    """y = sum of c_i * x_i, in the first bottom's layout."""

    def __init__(self, backend: OnednnBackend, op: ops.Eltwise, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is none."""
        at = self.at
        self.layout = self.backend.expected(at.bottom[0], self.op.shape)
        call = self.summed(at.bottom, self.op.coefficients, at.top[0], self.layout)
        self.forward_calls = [call] if call else []
        return bool(call)

    def with_relu(self, target: Any) -> Step | None:
        """Return a Step that runs the ReLU behind it too, in the same layout."""
        at, attributes = self.at, self.engine.attributes_with_relu
        if self.op.coefficients != (1.0, 1.0):
            return None
        call = self._added(at.bottom, target, self.layout, attributes)
        if not call:
            return None
        step = PreparedStep(self.backend, self.at)
        step.forward_calls = [call]
        return step

    def prepare_backward(self) -> bool:
        at = self.at
        layout = self.backend.expected(at.top[0], self.op.shape, diff=True)
        for blob, factor, wanted in zip(
            at.bottom, self.op.coefficients, at.propagate_down, strict=True
        ):
            if wanted:
                call = self.scaled(at.top[0], factor, blob, layout)
                if not call:
                    return False
                self.backward_calls.append(call)
        return True


class SplitStep(SumStep):
    """The tops hold the bottom's memory, so forward does nothing; gradients are added up."""

    def __init__(self, backend: OnednnBackend, op: ops.Split, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op

    def forward(self) -> None:
        bottom = self.at.bottom[0]
        for top in self.at.top:
            if top.data_memory is not bottom.data_memory:
                top.share_data(bottom)

    def prepare_backward(self) -> bool:
        at = self.at
        if not at.propagate_down[0]:
            return True
        layouts = [self.backend.expected(blob, self.op.shape, diff=True) for blob in at.top]
        layout = next((one for one in layouts if not one.plain), layouts[0])
        call = self.summed(at.top, [1.0] * len(at.top), at.bottom[0], layout, diff=True)
        self.backward_calls = [call] if call else []
        return bool(call)


@OnednnBackend.lowers(ops.Eltwise)
def eltwise(backend: Any, op: ops.Eltwise, at: Operands) -> Step | None:
    """Sums of different blobs."""
    memories = {id(blob.data_memory) for blob in (*at.bottom, *at.top)}  # type: ignore[attr-defined]
    if op.dtype != "float32" or op.operation != "SUM" or 0 in op.shape or not op.shape:
        return None
    if at.in_place or len(memories) <= len(at.bottom):
        return None
    step = EltwiseSumStep(backend, op, at)
    return step if step.prepare() else None


@OnednnBackend.lowers(ops.Split)
def split(backend: Any, op: ops.Split, at: Operands) -> Step | None:
    """Any number of readers."""
    if op.dtype != "float32" or 0 in op.shape or not op.shape:
        return None
    return SplitStep(backend, op, at)
