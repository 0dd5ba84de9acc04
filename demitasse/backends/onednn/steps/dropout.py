"""Dropout: a product with a mask, in whatever layout the data is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.base import Operands, Step
from demitasse.backends.onednn.backend import OnednnBackend
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Port, Reader, Writer
from demitasse.backends.onednn.step import PreparedStep

__all__ = ["DropoutStep"]


class DropoutStep(PreparedStep):
    """y = x * mask and dx = dy * mask; nothing, or a copy, where nothing is dropped.

    The mask is made in C order, since the layer's random words are, and brought into the layout of
    the data once a pass.
    """

    def __init__(self, backend: OnednnBackend, op: ops.Dropout, at: Operands) -> None:
        super().__init__(backend, at)
        self.op, self.shape = op, tuple(at.bottom[0].shape)
        self.mask: np.ndarray | None = None

    def prepare(self) -> bool:
        """Make the forward primitive; False where there is no good one."""
        at = self.at
        self.layout = self.backend.expected(at.bottom[0], self.shape)
        if self.op.train:
            self.mask = aligned(self.layout.size)
            self.kept = self.mask.nbytes
        call = self._call(at.bottom[0], at.top[0], diff=False)
        if call is None:
            return False
        self.forward_calls = [call] if self._works else []
        return True

    def forward(self) -> None:
        if self.mask is not None:
            self._fill(self.mask)
        super().forward()

    def prepare_backward(self) -> bool:
        at = self.at
        if not (at.propagate_down[0] and self._works):
            return True
        call = self._call(at.top[0], at.bottom[0], diff=True)
        if call is None:
            return False
        self.backward_calls = [call]
        return True

    @property
    def _works(self) -> bool:
        """Whether there is something to do at all."""
        return self.mask is not None or not self.at.in_place

    def _call(self, source: Any, target: Any, *, diff: bool) -> Call | None:
        """Return target = source * mask, or a copy."""
        layout, mask = self.layout, self.mask
        # all arrays are in one layout, so the primitive may take them for rows of numbers
        row = self.engine.plain((layout.size,)).handle
        function = Algorithm.MAX if mask is None else Algorithm.MUL
        found = self.describe("binary", function, row, row, row, self.engine.attributes)
        if found is None:
            return None
        ports: list[Port] = [Reader(Arg.SRC, source, layout, diff=diff)]
        if mask is None:  # the larger of a number and itself
            ports.append(Reader(Arg.SECOND_SRC, source, layout, diff=diff))
        ports.append(Writer(Arg.DST, target, layout, diff=diff))
        for port in ports:
            port.descriptor = row
        fixed = [] if mask is None else [(int(Arg.SECOND_SRC), row, mask)]
        if not layout.plain:
            self.backend.promise(target, layout, diff=diff)
        return Call(self.engine, found, ports, fixed)

    def _fill(self, mask: np.ndarray) -> None:
        """Write this pass's mask: the factor, and 0 where an element is dropped."""
        kept: Any = self.op.kept(self.shape)
        factor = mask.dtype.type(1 / (1 - self.op.ratio))
        layout, size = self.layout, math.prod(self.shape)
        plain = mask if layout.plain else self.engine.workspaces(size)[0][:size]
        np.multiply(kept, factor, out=plain.reshape(self.shape))
        if not layout.plain:
            self.engine.reorder(plain, self._c_order, mask, layout)

    @property
    def _c_order(self) -> Layout:
        return self.engine.plain(self.shape)


@OnednnBackend.lowers(ops.Dropout)
def dropout(backend: Any, op: ops.Dropout, at: Operands) -> Step | None:
    """Of any shape."""
    if op.dtype != "float32" or not op.count:
        return None
    step = DropoutStep(backend, op, at)
    return step if step.prepare() else None
