"""The gradient of a convolution's filters over tiles: sums of products at the points."""

from __future__ import annotations

import numpy as np

from demitasse.backends.onednn.engine import Engine, address
from demitasse.backends.onednn.layout import aligned
from demitasse.backends.onednn.ports import Gradient, Port, Reader
from demitasse.backends.onednn.winograd.convolution import Windows
from demitasse.backends.onednn.winograd.filters import FilterGradient
from demitasse.backends.onednn.winograd.pieces import Piece, Transform, View, moves, product
from demitasse.backends.onednn.winograd.tiling import Axes, Tiling

__all__ = ["TiledFilterGradient"]


class TiledFilterGradient:
    """What a Step calls to get the gradients of weights and bias.

    Args:
        engine: The engine.
        tiling: The convolution.
        source: Its input.
        gradient: The gradient of its output.
        weight: The gradient of its weights, in C order.
        bias: The gradient of its bias, or None.

    Raises:
        Missing: The library has no good primitive for a part.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        source: Reader,
        gradient: Reader,
        weight: Gradient,
        bias: Gradient | None,
    ) -> None:
        tiling = tiling.gradient
        self.engine, self.tiling = engine, tiling
        self.ports: tuple[Port, ...] = (source, gradient, weight, *([bias] if bias else []))
        self.source, self.gradient, self.weight, self.bias = source, gradient, weight, bias
        for port in self.ports:
            port.engine = engine
        here, there = Axes(source.layout), Axes(gradient.layout)
        self.windows = Windows(engine, tiling, here, there)
        self.pieces = aligned(tiling.lanes * tiling.stack)  # zero where the last tiles are cut off
        step = tiling.matrices.outputs
        lanes = self.pieces.reshape(tiling.lanes, -1)[:, : step**2 * tiling.sums]
        uneven = tiling.bands > 1 and tiling.output[0] < tiling.bands * tiling.next_band
        self.cut_off = lanes if uneven else None
        self.cut = [
            moves(engine, ((image, tiles) for tiles, image in tiling.outputs(there, last=last)))
            for last in (False, True)
        ]
        matrix = np.ascontiguousarray(tiling.matrices.output.T)
        self.transform = Transform(engine, matrix, tiling.sums, (tiling.lanes, tiling.stack))
        # those of the first chunk overwrite the totals, the others add to them
        self.products = [self._products(adds=adds) for adds in (False, True)]
        self.ones = aligned(tiling.tiles)
        self.ones[...] = 1.0
        self.sums = [
            [self._sum(lane, adds=adds or lane > 0) for lane in range(tiling.lanes if bias else 0)]
            for adds in (False, True)
        ]
        self.back = FilterGradient(engine, tiling)

    def _products(self, *, adds: bool) -> list[Piece]:
        """Return the products at all points, group by group."""
        tiling, engine = self.tiling, self.engine
        rows, groups, points = tiling.tiles, tiling.groups, tiling.points
        lanes, stack, row = tiling.lanes, tiling.stack, tiling.row
        data, sums, weights = tiling.data, tiling.sums, tiling.weights
        c, m = tiling.channels // groups, tiling.filters // groups
        wide, broad = tiling.tile, tiling.sum
        return [
            product(
                engine,
                (
                    View((lanes, points, c, rows), (stack, data, 1, wide), group * c),
                    View((lanes, points, rows, m), (stack, sums, broad, 1), group * m),
                    View(
                        (lanes, points, c, m), (points * weights, weights, row, 1), group * c * row
                    ),
                ),
                attributes=engine.attributes_adding if adds else None,
            )
            for group in range(groups)
        ]

    def _sum(self, lane: int, *, adds: bool) -> Piece:
        """Return the sum over a lane's tiles at the last point, where each sums its outputs."""
        tiling, engine = self.tiling, self.engine
        rows, m = tiling.tiles, tiling.filters
        tiles = View(
            (rows, m), (tiling.sum, 1), lane * tiling.stack + (tiling.points - 1) * tiling.sums
        )
        views = (View.rows(1, rows), tiles, View.rows(1, m))
        return product(engine, views, attributes=engine.attributes_adding if adds else None)

    def __call__(self) -> None:
        source, gradient = self.source.array(), self.gradient.array()
        tiling = self.tiling
        stack = tiling.lanes * tiling.stack
        filters = tiling.lanes * tiling.points * tiling.weights
        size = max(stack, filters)
        spaces = self.engine.workspaces(size, size, stack, filters)
        weight = self.weight.array()
        offsets = self.bias.array() if self.bias else None
        x, dy, one, two, three, total = map(address, (source, gradient, *spaces))
        pieces = address(self.pieces)
        ones, bias = address(self.ones), 0 if offsets is None else address(offsets)
        adds = False
        for band, last in self.windows.bands(x, dy, one, two):
            if last and self.cut_off is not None:
                self.cut_off[...] = 0.0  # the band before had more rows
            for move in self.cut[last]:
                move(band, pieces)
            self.transform(pieces, two, three)
            for multiply in self.products[adds]:
                multiply(one, three, total)
            for add in self.sums[adds]:
                add(ones, three, bias)
            adds = True
        self.back(total, address(weight))
        self.weight.done()
        if self.bias:
            self.bias.done()

    @property
    def implementations(self) -> list[str]:
        """Names of the library's code that it runs."""
        sums = [piece for pieces in self.sums for piece in pieces]
        products = [piece for pieces in self.products for piece in pieces]
        cuts = [move for moves in self.cut for move in moves]
        pieces = [*self.windows.pieces, *cuts, *self.transform.pieces, *products, *sums]
        return [piece.primitive.implementation for piece in (*pieces, *self.back.pieces)]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        scratch = [self.source.scratch, self.gradient.scratch, self.weight.scratch]
        converted = sum(array.nbytes for array in scratch if array is not None)
        return self.windows.padded.nbytes + self.pieces.nbytes + converted
