"""MAX and AVE pooling."""

from __future__ import annotations

from typing import Any

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.candidates import candidates
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["PoolStep"]

IMAGE_AXES = (3, 4, 5)
SLOW = "simple"
"""Begins the names of code that takes ten times as long as the others."""


class PoolStep(PreparedStep):
    """Windows that reach beyond the image on the right are padded there."""

    def __init__(
        self, backend: OnednnBackend, op: ops.Pool, at: Operands, algorithm: Algorithm
    ) -> None:
        super().__init__(backend, at)
        self.op, self.algorithm = op, algorithm
        none = tuple(0 for _ in op.kernel)
        self.window = [
            dims(op.stride), dims(op.kernel), dims(none), dims(op.pad), dims(beyond(op)),
        ]  # fmt: skip
        self.mask: tuple[int, int, Any] | None = None

    def prepare(self) -> bool:
        """Make the forward primitive in the first layout that it does well; False for none."""
        bottom = self.at.bottom[0]
        expected = self.backend.expected(bottom, self.op.bottom)
        slow: tuple[Description, Layout, Layout] | None = None
        for layout in candidates(self.backend, expected, self.op.bottom):
            found = self._describe(layout)
            y = found and found.layout(Query.DST)
            gradient = self._gradient(found, layout) if found and self.at.backward else found
            if not found or not y or not gradient:
                continue
            if not any(one.implementation.startswith(SLOW) for one in (found, gradient)):
                self._forward(found, layout, y)
                return True
            slow = slow or (found, layout, y)
        if slow:
            self._forward(*slow)
        return slow is not None

    @property
    def largest(self) -> bool:
        """Whether it finds the largest of windows over two axes, and nothing else."""
        return self.algorithm is Algorithm.POOL_MAX and len(self.op.kernel) == 2

    def _describe(self, layout: Layout) -> Description | None:
        return self.describe(
            "pooling_forward",
            Pass.TRAINING if self.at.backward else Pass.INFERENCE,
            self.algorithm,
            layout.handle,
            self.any(self.op.top),
            *self.window,
            self.engine.attributes,
        )

    def _gradient(self, hint: Description, x: Layout) -> Description | None:
        # one value for a channel lies alike in several layouts, of which only the top's own will do
        return self.describe(
            "pooling_backward",
            self.algorithm,
            x.handle,
            hint.descriptor(Query.DST),
            *self.window,
            hint.handle,
            self.engine.attributes,
        )

    def _forward(self, found: Description, x: Layout, y: Layout) -> None:
        self.hint, self.x, self.y = found, x, y
        size = found.bytes_of(Query.WORKSPACE)
        if size:
            buffer = aligned(-(-size // 4))
            self.mask = (Arg.WORKSPACE, found.descriptor(Query.WORKSPACE), buffer)
            self.kept = buffer.nbytes
        ports = [
            Reader(Arg.SRC, self.at.bottom[0], x),
            Writer(Arg.DST, self.at.top[0], y),
        ]
        fixed = [self.mask] if self.mask else []
        self.forward_calls = [Call(self.engine, found, ports, fixed)]
        self.backend.promise(self.at.top[0], y)

    def prepare_backward(self) -> bool:
        at = self.at
        if not at.propagate_down[0]:
            return True
        found = self._gradient(self.hint, self.x)
        if not found:
            return False
        bottom = at.bottom[0]
        ports = [
            Reader(Arg.DIFF_DST, at.top[0], self.y, diff=True),
            Writer(Arg.DIFF_SRC, bottom, self.x, diff=True),
        ]
        self.backward_calls = [Call(self.engine, found, ports, [self.mask] if self.mask else [])]
        self.backend.promise(bottom, self.x, diff=True)
        return True


def beyond(op: ops.Pool) -> ops.Shape:
    """Return how far the last window reaches beyond the image, on each axis."""
    sizes = zip(op.bottom[2:], op.top[2:], op.kernel, op.stride, op.pad, strict=True)
    return tuple(max(0, (out - 1) * s + k - size - p) for size, out, k, s, p in sizes)


def averaging(op: ops.Pool) -> Algorithm | None:
    """Return the mean that divides as Caffe does; None where oneDNN has no such.

    Caffe counts the part of a window that lies on the image or its pads, but not what lies beyond
    the right pad.
    """
    clipped = any(right > p for right, p in zip(beyond(op), op.pad, strict=True))
    if not clipped:
        return Algorithm.POOL_AVERAGE_PADDED
    return Algorithm.POOL_AVERAGE if not any(op.pad) else None


def some_empty(op: ops.Pool) -> bool:
    """Whether some window holds no element of the image."""
    sizes = zip(op.bottom[2:], op.top[2:], op.kernel, op.stride, op.pad, strict=True)
    return any((out - 1) * s - p >= size or k <= p for size, out, k, s, p in sizes)


@OnednnBackend.lowers(ops.Pool)
def pool(backend: Any, op: ops.Pool, at: Operands) -> Step | None:
    """MAX without a second top, AVE where the divisor is the same."""
    if op.dtype != "float32" or op.tops > 1 or at.in_place or 0 in op.bottom or 0 in op.top:
        return None
    if len(op.bottom) not in IMAGE_AXES or some_empty(op):
        return None
    algorithm = {"MAX": Algorithm.POOL_MAX, "AVE": averaging(op)}.get(op.method)
    if algorithm is None:
        return None
    step = PoolStep(backend, op, at, algorithm)
    return step if step.prepare() else None
