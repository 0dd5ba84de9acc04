"""SPP: pooling over ever finer grids, one level behind the other in the top, without gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.pooling import PoolStep
from demitasse.backends.step import Operand, Operands, decline_gradients

__all__ = ["PyramidStep"]


class _LevelWriter(Writer):
    """The part of the top that a level is written to.

    Args:
        top: The top.
        layout: Its layout, C order.
        first: Elements of an image before the level's.
    """

    __slots__ = ("_first",)

    def __init__(self, top: Operand, layout: Layout, first: int) -> None:
        super().__init__(Arg.DST, top, layout)
        self._first = first

    def array(self) -> np.ndarray:
        return super().array()[self._first :]


class PyramidStep(OnednnStep[ops.Pyramid]):
    """Each level is pooled in the layout that is fastest for it, and copied into the top."""

    def __init__(self, engine: Engine, op: ops.Pyramid, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_gradients([at])
        self._levels = [self._level(number, pool) for number, pool in enumerate(op.levels)]

    def _level(self, number: int, pool: ops.Pool) -> PoolStep:
        pooled = self.at.saved(f"level {number}", pool.top).blob
        return PoolStep(self.engine, pool, replace(self.at, top=(pooled,)))

    def prepare(self) -> None:
        for level in self._levels:
            level.prepare()
        first = 0
        for level in self._levels:
            self.forward_calls += [*level.forward_calls, self._copy(level, first)]
            first += math.prod(level.op.top[1:])

    def _copy(self, level: PoolStep, first: int) -> Call:
        """Return what copies a level to where it begins in each image's part of the top."""
        engine, top, shape = self.engine, self.at.top[0], level.op.top
        _, _, rows, columns = shape
        each = math.prod(top.shape[1:])
        there = engine.strided(shape, (each, rows * columns, columns, 1))
        found = engine.describe_reorder(level.y.handle, there)
        target = _LevelWriter(top, engine.plain(top.shape), first)
        target.descriptor = there
        return Call(engine, found, [Reader(Arg.SRC, level.at.top[0], level.y), target])
