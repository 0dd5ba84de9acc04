"""Rows of windows over images, with zeros in place of pixels outside."""

from typing import Any, NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields, first_channels
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Arguments, Struct, Values
from demitasse.backends.kernels.language.values import (
    Float,
    Vector,
    Word,
    choose,
    minimum,
)
from demitasse.backends.kernels.products import tile_rows
from demitasse.backends.kernels.tiles import Tiles, inside
from demitasse.backends.kernels.tuning import ConvSchedule
from demitasse.backends.step import decline_if

MOST_SEEN = 320
"""Greatest number of a tile's taps: kernels are unrolled over them."""


class WindowFields(Struct):
    """A convolution's windows, and the images that they go over."""

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


def window_values(
    op: ops.Conv, x: Images, y: Images, zeros: np.ndarray, *, gradient: bool = False
) -> dict[str, Any]:
    """Return the values of a convolution's windows.

    With ``gradient``, ``y`` is read instead of written.
    """
    return {
        "x": ImageFields.of(x),
        "y": (ImageFields if gradient else OutputFields).of(y),
        "step_down": op.stride[0],
        "down": op.dilation[0],
        "top": op.pad[0],
        "left": op.pad[1],
        "zeros": zeros,
    }


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


def window_tiles(tile: RegisterTile, op: ops.Conv) -> Tiles:
    """Return the register tiles of a row of windows, and the columns of the input that they read.

    The last tile begins early.
    """
    firsts = first_channels(op.top[-1], tile.pixels)
    corners = [first * tile.stride - op.pad[1] for first in firsts]
    seen = [(inside(corner, tile.span, op.bottom[-1]),) for corner in corners]
    return Tiles(tuple(zip(firsts, seen, strict=True)))


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


class Padded(NamedTuple):
    """Images of which rows are copied, with ``left`` zeros before, to rows of ``columns``."""

    height: Word
    width: Word
    left: Word
    columns: Word


def bordered(
    k: Kernel, y: Word, images: Padded, target: Word, zero: Vector | Float, step: int
) -> tuple[Word, Word]:
    """Write the zeros of a copied row, and return the range of columns to be copied.

    A row ``y`` outside the image is all zeros. Each zero has ``step`` bytes.
    """
    columns = images.columns
    inside = (y > -1) & (y < images.height)
    begin = choose(inside, images.left, columns)
    end = choose(inside, minimum(images.left + images.width, columns), columns)
    for stop, start in ((begin, 0), (columns, end)):
        with k.loop(stop, start) as column:
            k.store(zero, target + column.i * step)
    return begin, end


class WindowConvolution:
    """Base of convolutions with an offset for each channel and an epilogue."""

    def __init__(
        self, schedule: ConvSchedule, kernel: int, values: Values, rectifier: np.ndarray
    ) -> None:
        self.schedule, self._kernel, self._rectifier = schedule, kernel, rectifier
        self._none = aligned(schedule.y[1])
        self._arguments = Arguments(values)

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Copy new slopes of negative sums: one for each channel, or one for all."""
        self._rectifier[...] = slopes

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        offsets: np.ndarray | None,
        scratch: np.ndarray | None = None,
    ) -> None:
        """Convolve, with one offset for each channel, None for zeros, and what scratch it takes."""
        each = {
            "x.at": source,
            "y.at": target,
            "offsets": self._none if offsets is None else offsets,
        }
        if scratch is not None:
            each["scratch"] = scratch
        self._arguments.run(self._kernel, self.schedule.tuning.threads, each)
