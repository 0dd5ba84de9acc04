"""Rows of windows over images, with zeros in place of pixels outside, and their register tiles.

Tiles at the edges of an image have code of their own.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import Kind, Rectifier, rectifying
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields, first_channels
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, CompiledKernel, Struct, Values
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    maximum,
    minimum,
)
from demitasse.backends.kernels.products import tile_rows
from demitasse.backends.kernels.strided_copy import StridedCopy
from demitasse.backends.kernels.tuning import FLAT, ConvSchedule, Depth, Tuning
from demitasse.backends.step import decline_if

MOST_SEEN = 320
"""Greatest number of a tile's taps: kernels are unrolled over them."""

Inside = tuple[range, ...]
"""The columns of a tile that are inside an image, for each image that the tile reads."""


def inside(first: int, count: int, columns: int) -> range:
    """Return which of ``count`` columns, from ``first`` on, are inside an image."""
    return range(max(0, -first), min(count, columns - first))


@dataclass(frozen=True)
class Tiles:
    """The tiles of a row: the first column of each, and the columns inside."""

    tiles: tuple[tuple[int, Inside], ...]

    @cached_property
    def cases(self) -> list[Inside]:
        """Different ranges inside; the code has a branch for each."""
        return list(dict.fromkeys(columns for _, columns in self.tiles))

    def __str__(self) -> str:
        cases = ([f"{one.start}to{one.stop}" for one in case] for case in self.cases)
        return "_".join("and".join(case) for case in cases)


class TileFields(Struct):
    """The tiles of a row."""

    table: Address
    """First column of each tile, and the number of its case."""
    count: Word

    @classmethod
    def of(cls, tiles: Tiles) -> Values:
        table = [(first, tiles.cases.index(columns)) for first, columns in tiles.tiles]
        return cls.values(table=np.array(table, np.int64), count=len(table))


def for_each_tile(
    k: Kernel, f: TileFields, tiles: Tiles, body: Callable[[Word, Inside], None]
) -> None:
    """Write a loop over the tiles of a row; ``body`` takes first column and columns inside."""
    with k.loop(f.count) as tile:
        first, number = k.load_words(f.table + tile.i * (2 * INT), 2)
        with k.cases(number) as case:
            for i, columns in enumerate(tiles.cases):
                case(i)
                body(first, columns)


class DepthFields(Struct):
    """The third axis of a convolution, whose planes are images; see :class:`Depth`."""

    taps: Word
    size: Word
    output: Word
    pad: Word

    @classmethod
    def of(cls, depth: Depth) -> Values:
        """Return the values of a depth."""
        return cls.values(**depth._asdict())

    def front(self, image: Word) -> Word:
        """Return the first plane, possibly outside, that an image of the output sees."""
        return image % self.output - self.pad

    def image(self, image: Word, plane: Word) -> Word:
        """Return the image of the input that is a plane of the same item."""
        return image // self.output * self.size + plane


class WindowFields(Struct):
    """A convolution's windows, in register tiles of a row, and the images that they go over."""

    x: ImageFields
    y: ImageFields
    step_down: Word
    """Rows of the input from one window to the window below."""
    down: Word
    """Rows of the input from one row of taps to the next."""
    top: Word
    """Rows that the first window begins above an image."""
    left: Word
    """Columns that the first window begins before an image."""
    zeros: Address
    """Zeros in place of a row outside."""
    tiles: TileFields
    depth: DepthFields


def window_values(
    op: ops.Conv, x: Images, y: Images, tiles: Tiles, depth: Depth = FLAT, *,
    gradient: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the values of a convolution's windows.

    With ``gradient``, rows of ``y`` are read, instead of written.
    """
    return {
        "x": ImageFields.of(x),
        "y": (ImageFields if gradient else OutputFields).of(y),
        "step_down": op.stride[0],
        "down": op.dilation[0],
        "top": op.pad[0],
        "left": op.pad[1],
        "zeros": aligned((y if gradient else x).row_size),
        "tiles": TileFields.of(tiles),
        "depth": DepthFields.of(depth),
    }


class PaddedImages:
    """A copy of images in C order with zeros around them, at least as large as a window.

    As in Caffe, an image somewhat smaller than the window has one output.

    Attributes:
        shape: Shape of the copy, with ``more`` planes of each image: (N, C + more, rows, columns).
        taps: Elements from a window's first to each. Shape: (C, *kernel).
    """

    def __init__(self, op: ops.Conv, x: ops.Shape, tuning: Tuning, more: int = 0) -> None:
        (n, c, *size), pad = x, op.pad
        padded = map(sum, zip(size, pad, op.after or pad, strict=True))
        spans = (d * (k - 1) + 1 for d, k in zip(op.dilation, op.kernel, strict=True))
        rows, columns = map(max, padded, spans)
        self.shape = n, c + more, rows, columns
        self._x, self._first, self._tuning = x, pad[0] * columns + pad[1], tuning
        channel, i, j = np.ogrid[:c, : op.kernel[0], : op.kernel[1]]
        down, right = op.dilation
        self.taps: np.ndarray = channel * (rows * columns) + i * (down * columns) + j * right

    @cached_property
    def planes(self) -> np.ndarray:
        """The copy."""
        return aligned(math.prod(self.shape)).reshape(self.shape)

    @cached_property
    def _copy(self) -> StridedCopy:
        (n, c, h, w), (_, planes, rows, columns) = self._x, self.shape
        area = rows * columns
        loops = (n, c * h * w, planes * area), (c, h * w, area), (h, w, columns), (w, 1, 1)
        return StridedCopy(loops, self._tuning)

    def __call__(self, source: np.ndarray) -> None:
        """Copy images."""
        self._copy(source, self.planes.reshape(-1)[self._first :])


class ConvolutionFields(WindowFields):
    """A convolution with an epilogue."""

    y: OutputFields
    filters: Address
    offsets: Address
    """One offset for each channel of the output."""
    rectifier: Address
    """Numbers of the epilogue: one slope for each channel of the output, or the limits."""


class RegisterTile(NamedTuple):
    """Parameters of a row of windows that the code depends on: ``pixels`` windows at a time."""

    pixels: int
    taps: int
    stride: int
    dilation: int

    @property
    def span(self) -> int:
        """Columns from the first to the last that the windows of a tile read."""
        return (self.pixels - 1) * self.stride + (self.taps - 1) * self.dilation + 1

    def __str__(self) -> str:
        return "x".join(map(str, self))


def plan_tile(columns: int, most: int, op: ops.Conv) -> RegisterTile:
    """Return the register tile for a row of ``columns`` windows: few tiles, with little overlap.

    The sums of ``most`` windows fit into registers.
    """
    pixels = tile_rows(columns, most)
    return RegisterTile(pixels, op.kernel[1], op.stride[1], op.dilation[1])


class WindowCode(NamedTuple):
    """Parameters of a convolution over windows that the kernel's code depends on.

    Attributes:
        rows: Rows of a window.
        sizes: Bytes of an element of the input and of the output.
    """

    rows: int
    tile: RegisterTile
    tiles: Tiles
    kind: Kind
    sizes: tuple[int, int] = (FLOAT, FLOAT)

    def rectifying(
        self, k: Kernel, numbers: Word, place: Word | None
    ) -> Callable[[Vector], Vector]:
        """Return a function that writes the epilogue of the sums of some channels."""
        return rectifying(k, numbers, place, self.kind)

    def __str__(self) -> str:
        kind = f"_{self.kind}" if self.kind else ""
        return f"{self.rows}x{self.tile}_{self.tiles}{kind}_{self.sizes[0]}to{self.sizes[1]}"


@dataclass(frozen=True)
class WindowSchedule(ConvSchedule):
    """A convolution by rows of windows, some of a row at a time."""

    @property
    @abstractmethod
    def most(self) -> int:
        """Windows of a register tile at most."""

    @cached_property
    def tile(self) -> RegisterTile:
        return plan_tile(self.y[3], self.most, self.op)

    @cached_property
    def tiles(self) -> Tiles:
        """Register tiles of a row of outputs, and the columns of the input that they read.

        The last tile begins early.
        """
        tile, op = self.tile, self.op
        firsts = first_channels(op.top[-1], tile.pixels)
        corners = [first * tile.stride - op.pad[1] for first in firsts]
        seen = [(inside(corner, tile.span, op.bottom[-1]),) for corner in corners]
        return Tiles(tuple(zip(firsts, seen, strict=True)))

    def code_with(self, then: Rectifier) -> WindowCode:
        """Return the parameters of the convolution with an epilogue."""
        rows = self.op.kernel[0]
        return WindowCode(rows, self.tile, self.tiles, then.kind)


def decline_many(tile: RegisterTile, op: ops.Conv) -> None:
    """Raise Declined if windows read too many pixels in a tile."""
    seen = op.kernel[0] * tile.span
    decline_if(
        seen > MOST_SEEN,
        f"windows of {op.kernel} see {seen} pixels at a time; kernels take up to {MOST_SEEN}",
    )


def columns_read(tile: RegisterTile) -> dict[int, list[tuple[int, int]]]:
    """Return the columns that a tile's windows read: for each, its taps and their windows."""
    found: dict[int, list[tuple[int, int]]] = {}
    for tap in range(tile.taps):
        for pixel in range(tile.pixels):
            column = pixel * tile.stride + tap * tile.dilation
            found.setdefault(column, []).append((tap, pixel))
    return dict(sorted(found.items()))


class Windows(NamedTuple):
    """Windows of a tile, in the kernel.

    Attributes:
        top: The first row, possibly outside.
        corner: Address of the first column in this row, possibly outside.
        zeros: Address of the same column in a row of zeros.
        channels: First and last of the channels of the planes that are not outside. The corner is
            that of the first.
        inside: The columns that are not outside.
    """

    top: Word
    corner: Word
    zeros: Word
    channels: tuple[Word, Word]
    inside: range


def for_each_window_tile(
    k: Kernel, f: WindowFields, code: WindowCode, body: Callable[[Windows, Word], None]
) -> None:
    """Write a loop over the tiles of the rows of outputs, which threads divide.

    ``body`` takes the windows of a tile, and the address of its first output.
    """
    x_step, y_step = (images.column_stride * FLOAT for images in (f.x, f.y))
    with k.parallel_loop(f.y.images, f.y.rows) as (image, row):
        top, depth = row * f.step_down - f.top, f.depth
        front = depth.front(image)
        begin, end = maximum(-front, 0), minimum(depth.size - front, depth.taps)
        plane = depth.image(image, front + begin)
        channels = begin * f.x.channels, end * f.x.channels

        def write(first: Word, inside: Inside) -> None:
            column = (first * code.tile.stride - f.left) * x_step
            corner, zeros = f.x.row(plane, top) + column, f.zeros + column
            windows = Windows(top, corner, zeros, channels, *inside)
            body(windows, f.y.row(image, row) + first * y_step)

        for_each_tile(k, f.tiles, code.tiles, write)


class WindowConvolution:
    """Base of convolutions with an offset for each channel and an epilogue."""

    def __init__(
        self, schedule: ConvSchedule, kernel: CompiledKernel, values: Values, rectifier: np.ndarray
    ) -> None:
        self.schedule, self._rectifier = schedule, rectifier
        self._offsets = aligned(max(schedule.y[1], schedule.width))
        self._run = BoundKernel(schedule.kernel, kernel, values, schedule.tuning)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each channel, or one for all."""
        self._rectifier[: self.schedule.y[1]] = slopes

    def take_offsets(self, offsets: np.ndarray) -> None:
        """Copy new offsets, one for each channel, of calls without any; the first are zeros."""
        channels = self.schedule.y[1]
        self._offsets[:channels] = offsets[:channels]

    def __call__(self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None) -> None:
        """Convolve, with one offset for each channel, None for those that were taken."""
        self._run(source, target, self._offsets if offsets is None else offsets)
