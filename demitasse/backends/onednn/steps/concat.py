"""Concat: one copy forward, one for each bottom backward."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import Any

from demitasse.backends import ops
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Arg, Query
from demitasse.backends.onednn.library.engine import Description
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["ConcatStep"]


class ConcatStep(PreparedStep):
    """Every bottom in the layout it is in; the top in one that oneDNN finds."""

    def __init__(self, backend: OnednnBackend, op: ops.Concat, at: Operands) -> None:
        super().__init__(backend, at)
        self.op = op

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is none."""
        at, op = self.at, self.op
        pairs = zip(at.bottom, op.bottoms, strict=True)
        layouts = [self.backend.expected(blob, shape) for blob, shape in pairs]
        found = self.engine.describe(
            "dnnl_concat",
            self.engine.handle,
            None,
            len(layouts),
            op.axis,
            (c_void_p * len(layouts))(*[layout.handle for layout in layouts]),
            self.engine.attributes,
            general=True,  # made of reorders, which are good
        )
        y = found and found.layout(Query.DST)
        if not found or not y:
            return False
        ports = zip(at.bottom, layouts, strict=True)
        reads = [Reader(Arg.MULTIPLE_SRC + i, m, layout) for i, (m, layout) in enumerate(ports)]
        top = at.top[0]
        self.forward_calls = [Call(self.engine, found, [*reads, Writer(Arg.DST, top, y)])]
        self.layouts, self.y = layouts, y
        self.backend.promise(top, y)
        return True

    def prepare_backward(self) -> bool:
        at, first = self.at, 0
        dy = self.backend.expected(at.top[0], self.y.shape, diff=True)
        for wholes in (dy, self.y, self.engine.plain(self.y.shape)):
            self.backward_calls, first = [], 0
            for blob, shape, layout, wanted in zip(
                at.bottom, self.op.bottoms, self.layouts, at.propagate_down, strict=True
            ):
                if wanted:
                    call = self._part(wholes, first, blob, layout)
                    if not call:
                        break
                    self.backward_calls.append(call)
                first += shape[self.op.axis]
            else:
                return True
        return False

    def _part(self, whole: Layout, first: int, target: Any, layout: Layout) -> Call | None:
        """Return the copy of a part of the top's gradient to one bottom's."""
        library, engine = self.engine.library, self.engine
        offsets = [0] * len(layout.shape)
        offsets[self.op.axis] = first
        part = c_void_p()
        if library.dnnl_memory_desc_create_submemory(
            ctypes.byref(part), whole.handle, dims(layout.shape), dims(tuple(offsets))
        ):
            return None
        handle = c_void_p()
        failed = library.dnnl_reorder_primitive_desc_create(
            ctypes.byref(handle),
            part,
            engine.handle,
            layout.handle,
            engine.handle,
            engine.attributes,
        )
        if failed:
            library.dnnl_memory_desc_destroy(part)
            return None
        source = Reader(Arg.SRC, self.at.top[0], whole, diff=True)
        source.descriptor = part.value or 0
        found = Description(engine, handle.value or 0)
        self.backend.promise(target, layout, diff=True)
        return Call(engine, found, [source, Writer(Arg.DST, target, layout, diff=True)])


@OnednnBackend.lowers(ops.Concat)
def concat(backend: Any, op: ops.Concat, at: Operands) -> Step | None:
    """At least two bottoms of one number of axes."""
    if op.dtype != "float32" or len(at.bottom) < 2 or at.in_place:
        return None
    if any(0 in shape or not shape for shape in op.bottoms):
        return None
    step = ConcatStep(backend, op, at)
    return step if step.prepare() else None
