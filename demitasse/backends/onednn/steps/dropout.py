"""Dropout: a product with a mask, in whatever layout the data is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import Argument, Call, InputArg, OutputArg
from demitasse.backends.onednn.library.constants import Algorithm, Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.step import Operand, Operands

__all__ = ["DropoutStep"]


class DropoutStep(OnednnStep[ops.Dropout]):
    """y = x * mask and dx = dy * mask; nothing, or a copy, where the mask would be 1.

    Where elements are dropped the mask is made in C order, since the layer's random words are, and
    brought into the layout of the data once a pass. Else it is one number.
    """

    def __init__(self, engine: Engine, op: ops.Dropout, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.shape = at.bottom[0].shape
        self.mask: np.ndarray | None = None

    def prepare(self) -> None:
        at = self.at
        self.layout = self.expected(at.bottom[0], self.shape)
        if self.op.drops:
            self.mask = aligned(self.layout.size)
            self.kept_bytes = self.mask.nbytes
        elif self.op.factor != 1:
            self.mask = aligned(1)
            self.mask[...] = self.op.factor
        if self._works:
            self.forward_calls = [self._call(at.bottom[0], at.top[0], diff=False)]

    @property
    def deferrable(self) -> bool:
        return not self.op.drops

    replayable = deferrable

    def forward(self) -> None:
        if self.op.drops and self.mask is not None:
            self._fill(self.mask)
        super().forward()

    def prepare_backward(self) -> None:
        at = self.at
        if at.propagate_down[0] and self._works:
            self.backward_calls = [self._call(at.top[0], at.bottom[0], diff=True)]

    @property
    def _works(self) -> bool:
        """True if there is something to do at all."""
        return self.mask is not None or not self.at.in_place

    def _call(self, source: Operand, target: Operand, *, diff: bool) -> Call:
        """Return target = source * mask, or a copy."""
        layout, mask = self.layout, self.mask
        # all arrays are in one layout, so the primitive may take them for rows of numbers
        row = self.engine.plain((layout.size,)).handle
        second = row if mask is None else self.engine.plain(mask.shape).handle
        function = Algorithm.MAX if mask is None else Algorithm.MUL
        found = self.engine.describe("binary", function, row, second, row, self.engine.attributes)
        arguments: list[Argument] = [InputArg(Arg.SRC, source, layout, diff=diff)]
        if mask is None:  # max(x, x), which is a copy
            arguments.append(InputArg(Arg.SECOND_SRC, source, layout, diff=diff))
        arguments.append(OutputArg(Arg.DST, target, layout, diff=diff))
        for argument in arguments:
            argument.descriptor = row
        fixed = [] if mask is None else [(int(Arg.SECOND_SRC), second, mask)]
        return Call(self.engine, found, arguments, fixed)

    def _fill(self, mask: np.ndarray) -> None:
        """Write this pass's mask: the factor, and 0 where an element is dropped."""
        kept: Any = self.at.random_words(self.shape) > self.op.threshold
        factor = mask.dtype.type(self.op.factor)
        layout, size = self.layout, math.prod(self.shape)
        plain = mask if layout.plain else self.engine.workspaces(size)[0][:size]
        np.multiply(kept, factor, out=plain.reshape(self.shape))
        if not layout.plain:
            self.engine.reorder(plain, self.engine.plain(self.shape), mask, layout)
