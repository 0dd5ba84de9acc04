"""Crop: a part of the bottom, copied from the layout it is in."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.onednn.library.candidates import in_some_layout
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.onednn.steps.part import IMAGES, like, part_copy
from demitasse.backends.step import Operands, decline_in_place

__all__ = ["CropStep"]


class CropStep(OnednnStep[ops.Crop]):
    """The top has its channels last, unless the bottom is in C order."""

    portable_gradient = True

    def __init__(self, engine: Engine, op: ops.Crop, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(at, NEEDS_BOTTOM)

    def prepare(self) -> None:
        expected = self.engine.expected(self.at.bottom[0].data_memory, self.op.bottom)
        if len(self.op.bottom) < IMAGES:
            self._prepare_in(self.engine.plain(self.op.bottom))
        else:
            in_some_layout(self.engine, expected, self._prepare_in)

    def _prepare_in(self, layout: Layout) -> None:
        engine, op, [top] = self.engine, self.op, self.at.top
        there = like(engine, layout, op.top)
        source, target = Reader(Arg.SRC, self.at.bottom[0], layout), Writer(Arg.DST, top, there)
        self.forward_calls = [part_copy(engine, source, op.first, target)]
