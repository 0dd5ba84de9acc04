"""Local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.candidates import candidates
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["LRNStep"]


class LRNStep(PreparedStep):
    """One layout for everything, one in which both directions are good."""

    def __init__(self, backend: OnednnBackend, op: ops.LRN, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op
        self.numbers = (op.size, op.alpha, op.beta, op.k)

    def prepare(self) -> bool:
        """Make the primitives in the first layout that does both well; False for none."""
        for layout in self._layouts():
            found = self.describe(
                "lrn_forward",
                Pass.TRAINING if self.at.backward else Pass.INFERENCE,
                Algorithm.LRN_ACROSS,
                layout.handle,
                layout.handle,
                *self.numbers,
                self.engine.attributes,
            )
            if found and (not self.at.backward or self._gradient(found, layout)):
                self._forward(found, layout)
                return True
        return False

    def _layouts(self) -> Iterator[Layout]:
        """Yield layouts, the best first.

        Without AVX-512 the library goes across blocks of channels three times as slowly as across
        channels that lie side by side, and a copy costs less than that.
        """
        engine, shape = self.engine, self.op.bottom
        expected = self.backend.expected(self.at.bottom[0], shape)
        last = engine.innermost_layout(shape, 1)
        if last is not None and not (expected.plain or engine.wide or self.at.backward):
            yield last
        yield from candidates(self.backend, expected, shape)

    def _gradient(self, hint: Description, layout: Layout) -> Description | None:
        return self.describe(
            "lrn_backward",
            Algorithm.LRN_ACROSS,
            layout.handle,
            layout.handle,
            layout.handle,
            *self.numbers,
            hint.handle,
            self.engine.attributes,
        )

    def _forward(self, found: Description, layout: Layout) -> None:
        self.hint, self.layout = found, layout
        size = found.bytes_of(Query.WORKSPACE)
        buffer = aligned(-(-size // 4))
        self.state = [(Arg.WORKSPACE, found.descriptor(Query.WORKSPACE), buffer)] if size else []
        self.kept = buffer.nbytes
        top = self.at.top[0]
        ports = [
            Reader(Arg.SRC, self.at.bottom[0], layout),
            Writer(Arg.DST, top, layout),
        ]
        self.forward_calls = [Call(self.engine, found, ports, self.state)]
        self.backend.promise(top, layout)

    def prepare_backward(self) -> bool:
        at, layout = self.at, self.layout
        if not at.propagate_down[0]:
            return True
        found = self._gradient(self.hint, layout)
        if not found:
            return False
        bottom = at.bottom[0]
        ports = [
            Reader(Arg.SRC, at.bottom[0], layout),
            Reader(Arg.DIFF_DST, at.top[0], layout, diff=True),
            Writer(Arg.DIFF_SRC, bottom, layout, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, ports, self.state)]
        self.backend.promise(bottom, layout, diff=True)
        return True


@OnednnBackend.lowers(ops.LRN)
def lrn(backend: Any, op: ops.LRN, at: Operands) -> Step | None:
    """Across channels; within one channel runs on numpy, whose sums oneDNN does not form."""
    across = op.region == "ACROSS_CHANNELS"
    if op.dtype != "float32" or not across or at.in_place or 0 in op.bottom:
        return None
    step = LRNStep(backend, op, at)
    return step if step.prepare() else None
