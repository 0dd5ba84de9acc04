"""A convolution of images whose channels are contiguous, in blocks or all, to few planes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.few_outputs import FewOutputsSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import RUNTIME, Address
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    chunk,
    fma,
    horizontal_sums,
)
from demitasse.backends.kernels.windows import (
    OutputFields,
    RegisterTile,
    Seen,
    WindowConvolution,
    WindowFields,
    columns_read,
    for_each_tile,
    window_values,
)


class NarrowFields(WindowFields):
    """A convolution to few channels; the channel that is written is the output's plane."""

    y: OutputFields
    """The output."""

    vectors: Word
    """Vectors of channels that are read."""
    places: Address
    """Address of the vectors' table: bytes from the beginning of a pixel to each vector."""
    filters: Address
    """Address of the filters: for each vector, tap after tap; filter after filter."""
    plane_stride: Word
    """Elements from one plane of the output to the next."""
    planes: Word
    """Number of planes."""
    offsets: Address
    """Address of one offset for each plane."""
    rectifier: Address
    """Address of the rectifier's numbers: one slope for each plane, or the limits of all."""


@cache
def _kernel(width: int, rows: int, tile: RegisterTile, *, limited: bool) -> int:
    """Return the address of the kernel."""
    name = f"narrow{width}_{rows}x{tile}{'_limited' if limited else ''}"

    def write(module: Any) -> None:
        _write(module, name, width, rows, tile, limited=limited)

    return compiled(name, write, name)[name]


def _write(
    module: Any, name: str, width: int, rows: int, tile: RegisterTile, *, limited: bool
) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = NarrowFields.read(k)
    begin, end = chunk(f.images * f.y.rows, *k.thread())

    def body(_corner: Word, output: Word, seen: Seen) -> None:
        with k.loop(f.planes, words=[f.filters]) as plane:
            sums, filters = _summed(k, f, rows, tile, seen, plane.words[0])
            one = plane.i * FLOAT
            total = horizontal_sums(sums) + k.broadcast(f.offsets + one)
            numbers = f.rectifier if limited else f.rectifier + one
            result = rectifying(k, numbers, None, limited=limited)(total)
            target = output + plane.i * f.plane_stride * FLOAT
            if tile.pixels == width:
                k.store(result, target)
            else:
                k.masked_store(result, target, k.lane_mask(k.word(tile.pixels)))
            plane.words = [filters]

    with k.loop(end, begin) as line:
        for_each_tile(k, f.row(line.i), rows, tile, body)
    k.done()


def _summed(
    k: Kernel, f: NarrowFields, rows: int, tile: RegisterTile, seen: Seen, filters: Word
) -> tuple[list[Vector], Word]:
    """Write the sums of a tile's windows times a filter; return them, and the next filter."""
    vector = k.vector_bytes
    zeros = [k.constant(0.0)] * tile.pixels
    with k.loop(f.vectors, vectors=zeros, words=[filters]) as channels:
        place = k.load_word(f.places + channels.i * INT)
        with k.loop(rows, vectors=channels.vectors, words=channels.words) as row:
            [taps] = row.words
            weights = [k.load(taps + vector * tap) for tap in range(tile.taps)]
            for column, products in columns_read(tile).items():
                value = k.load(seen(row.i, column, place))
                for tap, pixel in products:
                    row.vectors[pixel] = fma(value, weights[tap], row.vectors[pixel])
            row.words = [taps + vector * tile.taps]
        channels.vectors, channels.words = row.vectors, row.words
    return channels.vectors, channels.words[0]


class NarrowConvolution(WindowConvolution):
    """A convolution to few channels, with an offset for each and perhaps a rectifier.

    Args:
        lines: The convolution.
        x: The input.
        then: Epilogue of the sums.

    Attributes:
        filters: The filters: for each, vector after vector, and tap after tap. Shape:
            (M, vectors, taps, width).

    Raises:
        ValueError: The channels of the input are not contiguous.
    """

    def __init__(self, lines: FewOutputsSchedule, x: Images, then: Rectifier = NOTHING) -> None:
        width, op = lines.width, lines.op
        (images, planes, rows, columns), taps = lines.y, op.kernel[0] * op.kernel[1]
        places = np.array([place for _, place in x.vectors(width)], np.int64)
        self.filters = aligned(planes * lines.x[1] * taps).reshape(planes, -1, taps, width)
        rectifier = then.numbers(planes)
        # a plane is taken for an image of one channel
        y = Images((images, 1, rows, columns), planes * rows * columns, columns, 1, 1)
        values = NarrowFields.values(
            **window_values(op, x, y, aligned(width)),
            vectors=len(places),
            places=places * FLOAT,
            filters=self.filters,
            plane_stride=rows * columns,
            planes=planes,
            offsets=RUNTIME,
            rectifier=rectifier,
        )
        kernel = _kernel(width, op.kernel[0], lines.tile, limited=then.limited)
        super().__init__(lines, kernel, values, rectifier)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, given in C order."""
        planes, vectors, taps, width = self.filters.shape
        by_channel = weights[: self.filters.size].reshape(planes, vectors, width, taps)
        self.filters[...] = by_channel.transpose(0, 1, 3, 2)
