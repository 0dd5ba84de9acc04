"""A convolution over tiles: to the points, products there, and back.

The same is the gradient of a convolution's input, which is a convolution of the output's gradient
with the filters turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from demitasse.backends.onednn.engine import Engine, address
from demitasse.backends.onednn.layout import aligned
from demitasse.backends.onednn.ports import Port, Reader, Writer
from demitasse.backends.onednn.winograd.filters import Filters
from demitasse.backends.onednn.winograd.pieces import FLOAT, Piece, Transform, View, moves, product
from demitasse.backends.onednn.winograd.tiling import Axes, Tiling

__all__ = ["TiledConvolution", "Windows"]


class Windows:
    """From images in any layout to the values of their tiles at the points, band by band.

    Args:
        engine: The engine.
        tiling: The convolution.
        image: Of the images.
        output: Of the images that the bands belong to at the other end.
    """

    def __init__(self, engine: Engine, tiling: Tiling, image: Axes, output: Axes) -> None:
        rows, columns = tiling.padded
        self.tiling = tiling
        here, there = tiling.border(image)
        as_they_are = here == there  # channels last, and no zeros around them
        self.inside = [] if as_they_are else moves(engine, [(here, there)])
        size = tiling.lanes * tiling.chunk * rows * columns * tiling.channels
        self.padded = aligned(0 if as_they_are else size)
        self.at = address(self.padded)
        self.cut = moves(engine, tiling.windows())
        self.next_chunk = FLOAT * image.image * tiling.chunk
        self.next_band = FLOAT * tiling.next_band * columns * tiling.channels
        self.output_chunk = FLOAT * output.image * tiling.chunk
        self.output_band = FLOAT * tiling.next_band * output.row
        lanes = tiling.lanes, tiling.stack
        self.transform = Transform(engine, tiling.matrices.input, tiling.data, lanes)

    @property
    def pieces(self) -> list[Piece]:
        """What it runs."""
        return [*self.inside, *self.cut, *self.transform.pieces]

    def bands(
        self, images: int, output: int, points: int, middle: int
    ) -> Iterator[tuple[int, bool]]:
        """Write the values of one band after the other to ``points``.

        Args:
            images: Where the images begin.
            output: Where those at the other end do.
            points: Where the values go.
            middle: Scratch of the same size.

        Yields:
            Where the band begins at the other end, and whether it is the last of its images, which
            may have fewer rows.
        """
        bands = self.tiling.bands
        for chunk in range(self.tiling.lane // self.tiling.chunk):
            first = images + chunk * self.next_chunk
            for move in self.inside:
                move(first, self.at)
            padded = self.at if self.inside else first
            for band in range(bands):
                source = padded + band * self.next_band
                for move in self.cut:
                    move(source, points)
                self.transform(points, middle, points)
                yield (
                    output + chunk * self.output_chunk + band * self.output_band,
                    band == bands - 1,
                )


class TiledConvolution:
    """What a Step calls: source and target are ports, as those of one primitive.

    Args:
        engine: The engine.
        tiling: The convolution.
        source: What is read.
        target: What is written.
        filters: At the points.
        weight: The parameter they are made from; None where somebody else updates them.
        bias: One offset for each channel of the output: a port, or an array; None for none.
        relu: Whether a rectifier follows.

    Raises:
        Missing: The library has no good primitive for a part.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        source: Reader,
        target: Writer,
        filters: Filters,
        weight: Any,
        bias: Reader | np.ndarray | None = None,
        *,
        relu: bool = False,
    ) -> None:
        self.engine, self.tiling = engine, tiling
        self.ports: tuple[Port, ...] = (source, target)
        self.source, self.target, self.bias = source, target, bias
        self.filters, self.weight = filters, weight
        for port in self.ports:
            port.engine = engine
        here, there = Axes(source.layout), Axes(target.layout)
        self.windows = Windows(engine, tiling, here, there)
        self.products, self.last = self._products(with_bias=bias is not None)
        lanes = tiling.lanes, tiling.stack
        self.back = Transform(engine, tiling.matrices.output, tiling.sums, lanes, relu=relu)
        self.join = [moves(engine, tiling.outputs(there, last=last)) for last in (False, True)]
        self.size = tiling.lanes * tiling.stack

    def _products(self, *, with_bias: bool) -> tuple[list[Piece], list[Piece]]:
        """Return products at all points, group by group, and those at the last one by itself.

        All outputs of a tile get the offset when the product at the last point gets it.
        """
        tiling = self.tiling
        rows, groups = tiling.tiles, tiling.groups
        c, m = tiling.channels // groups, tiling.filters // groups
        wide, broad = tiling.tile, tiling.sum

        def views(count: int, group: int) -> tuple[View, View, View]:
            first = tiling.points - 1 if count == 1 else 0
            data, weights, sums = tiling.data, tiling.weights, tiling.sums
            lanes, stack, row = tiling.lanes, tiling.stack, tiling.row
            at = [first * size for size in (data, weights, sums)]
            return (
                View((lanes, count, rows, c), (stack, data, wide, 1), at[0] + group * c),
                View(
                    (1, count, c, m),
                    (tiling.points * weights, weights, row, 1),
                    at[1] + group * c * row,
                ),
                View((lanes, count, rows, m), (stack, sums, broad, 1), at[2] + group * m),
            )

        most = tiling.points - with_bias
        engine = self.engine
        return (
            [product(engine, views(most, group)) for group in range(groups)],
            [
                product(engine, views(1, group), bias=View((1, 1, 1, m), (m, m, m, 1), group * m))
                for group in range(groups if with_bias else 0)
            ],
        )

    def __call__(self) -> None:
        source, target = self.source.array(), self.target.array()
        points = self.filters.points if self.weight is None else self.filters.of(self.weight)
        offsets = self.bias.array() if isinstance(self.bias, Reader) else self.bias
        spaces = self.engine.workspaces(self.size, self.size)
        x, y, filters, one, two = map(address, (source, target, points, *spaces))
        bias = None if offsets is None else address(offsets)
        for band, last in self.windows.bands(x, y, one, two):
            for multiply in self.products:
                multiply(one, filters, two)
            if bias is not None:
                for multiply in self.last:
                    multiply(one, filters, bias, two)
            self.back(two, one, two)
            for move in self.join[last]:
                move(two, band)

    @property
    def implementations(self) -> list[str]:
        """Names of the library's code that it runs."""
        joins = [move for moves in self.join for move in moves]
        moves: list[Piece] = [*self.windows.pieces, *joins, *self.filters.pieces]
        pieces = [*moves, *self.products, *self.last, *self.back.pieces]
        return [piece.primitive.implementation for piece in pieces]

    @property
    def workspace(self) -> int:
        """Bytes it holds."""
        converted = 0 if self.source.scratch is None else self.source.scratch.nbytes
        return self.windows.padded.nbytes + self.filters.points.nbytes + converted
