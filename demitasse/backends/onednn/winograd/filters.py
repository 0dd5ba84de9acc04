"""Filters at the points: made from a parameter, and again when it has changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse.backends.onednn.engine import Engine, address
from demitasse.backends.onednn.layout import aligned
from demitasse.backends.onednn.winograd.pieces import Move, Piece, Transform, View
from demitasse.backends.onednn.winograd.tiling import Tiling

__all__ = ["FilterGradient", "Filters", "filter_views"]


def filter_views(tiling: Tiling, *, backward: bool = False) -> tuple[View, View]:
    """Return filters as a parameter has them, and tap by tap: (r, r, groups, inputs, outputs).

    Backward, what the outputs are made of are the convolution's own outputs.
    """
    taps, groups = tiling.matrices.taps, tiling.groups
    area, a, b = taps * taps, tiling.channels // groups, tiling.filters // groups
    own = (b * area, area) if backward else (area, a * area)
    strides = (taps, 1, a * b * area, *own)
    shape = (taps, taps, groups, a, b)
    packed = (taps * tiling.weights, tiling.weights, a * tiling.row, tiling.row, 1)
    return View(shape, strides), View(shape, packed)


class Filters:
    """The filters of a convolution at all points, as matrices (points, groups, inputs, outputs).

    Args:
        engine: The engine.
        tiling: The convolution, or that which is the gradient of its input.
        backward: For that gradient: the filters are turned round.
    """

    def __init__(self, engine: Engine, tiling: Tiling, *, backward: bool = False) -> None:
        self.engine = engine
        stored, taps = filter_views(tiling, backward=backward)
        matrix = tiling.matrices.filter[:, ::-1] if backward else tiling.matrices.filter
        count = tiling.weights
        self.move = Move(engine, stored, taps)
        self.transform = Transform(engine, np.ascontiguousarray(matrix), count)
        self.size = tiling.points * count
        self.points = aligned(self.size)
        self.version = (-1, -1)

    @property
    def pieces(self) -> list[Piece]:
        """What it runs."""
        return [self.move, *self.transform.pieces]

    def of(self, blob: Any) -> np.ndarray:
        """Return the filters of a parameter, transformed."""
        memory = blob.data_memory
        if self.version != (memory.serial, memory.version):
            self.update(memory.cpu_data())
            self.version = memory.serial, memory.version
        return self.points

    def update(self, weights: np.ndarray) -> None:
        """Transform ``weights``, in C order."""
        spaces = self.engine.workspaces(self.size, self.size)
        taps, middle = map(address, spaces)
        self.move(address(weights), taps)
        self.transform(taps, middle, address(self.points))


class FilterGradient:
    """From the gradient at the points, one for each lane, to that of the parameter."""

    def __init__(self, engine: Engine, tiling: Tiling) -> None:
        self.engine, self.size = engine, tiling.points * tiling.weights
        stored, taps = filter_views(tiling)
        matrix = np.ascontiguousarray(tiling.matrices.filter.T)
        self.transform = Transform(engine, matrix, tiling.weights, parts=tiling.lanes)
        self.move = Move(engine, taps, stored)

    @property
    def pieces(self) -> list[Piece]:
        """What it runs."""
        return [self.move, *self.transform.pieces]

    def __call__(self, points: int, target: int) -> None:
        """Write the gradient to ``target``, in C order."""
        spaces = self.engine.workspaces(self.size, self.size)
        middle, taps = map(address, spaces)
        self.transform(points, middle, taps)
        self.move(taps, target)
