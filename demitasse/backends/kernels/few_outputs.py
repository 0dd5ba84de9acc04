"""Convolution of images with contiguous channels to few planes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    fma,
    horizontal_sums,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import (
    ConvolutionFields,
    WindowCode,
    WindowConvolution,
    Windows,
    WindowSchedule,
    columns_read,
    decline_many,
    for_each_window_tile,
    window_values,
)
from demitasse.backends.step import decline_if


@dataclass(frozen=True)
class FewOutputsSchedule(WindowSchedule):
    """A convolution to few channels. Threads divide the rows of all images.

    The channels of ``x`` are those of the operation's bottom, perhaps filled up to whole vectors.
    """

    kernel: ClassVar[str] = "narrow"

    @property
    def most(self) -> int:
        return self.width  # the sums of a tile become one vector


WIDEST = 11
"""Greatest number of taps of a window's row; kernels are unrolled over taps."""

MOST_PLANES = 8
"""Greatest number of output channels: a library's kernel computes whole vectors of channels, at
least as many."""


def plan_few_outputs(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning
) -> FewOutputsSchedule:
    """Return the schedule of a convolution with few output channels; shapes are (N, C, H, W).

    Raises:
        Declined: Channels or windows are unsupported.
    """
    tuning.require("few_outputs")
    most = min(tuning.width * 3 // 4, MOST_PLANES)
    fits = len(op.kernel) == 2 and op.group == 1 and x[1] % tuning.width == 0 and y[1] <= most
    decline_if(
        not fits or op.kernel[1] > WIDEST,
        f"convolution to few channels takes whole vectors of {tuning.width} channels to up to "
        f"{most}, in one group, windows up to {WIDEST} wide",
    )
    schedule = FewOutputsSchedule(op, x, y, tuning)
    decline_many(schedule.tile, op)
    return schedule


class NarrowFields(ConvolutionFields):
    """A convolution to few channels, each of which is a plane of the output."""

    vectors: Word
    """Vectors of channels that are read."""
    places: Address
    """Bytes from the beginning of a pixel to each vector."""
    plane_stride: Word
    planes: Word


@NarrowFields.kernel("narrow")
def _kernel(k: Kernel, f: NarrowFields, code: WindowCode) -> None:
    def body(windows: Windows, output: Word) -> None:
        with k.loop(f.planes, words=[f.filters, output]) as plane:
            filters, target = plane.words
            sums, filters = _summed(k, f, code, windows, filters)
            one = plane.i * FLOAT
            total = horizontal_sums(sums) + k.broadcast(f.offsets + one)
            numbers = f.rectifier if code.kind == "limits" else f.rectifier + one
            result = code.rectifying(k, numbers, None)(total)
            if code.tile.pixels == k.width:
                k.store(result, target)
            else:
                k.store(result, target, k.lane_mask(code.tile.pixels))
            plane.words = [filters, target + f.plane_stride * FLOAT]

    for_each_window_tile(k, f, code, body)


def _summed(
    k: Kernel, f: NarrowFields, code: WindowCode, windows: Windows, filters: Word
) -> tuple[list[Vector], Word]:
    """Write the sums of a tile's windows times a filter; return them, and the next filter."""
    tile, zero = code.tile, k.constant(0.0)
    vector, x_step = k.vector_bytes, f.x.column_stride * FLOAT
    with k.loop(f.vectors, vectors=[zero] * tile.pixels, words=[filters]) as channels:
        place = k.load_word(f.places + channels.i * INT)
        words = [*channels.words, windows.top, windows.corner + place]
        with k.loop(code.rows, vectors=channels.vectors, words=words) as row:
            taps, y, at = row.words
            pixels = choose((y > -1) & (y < f.x.rows), at, windows.zeros)
            weights = [k.load(taps + vector * tap) for tap in range(tile.taps)]
            for column, products in columns_read(tile).items():
                seen = column in windows.inside
                value = k.load(pixels + x_step * column) if seen else zero
                for tap, pixel in products:
                    row.vectors[pixel] = fma(value, weights[tap], row.vectors[pixel])
            below = at + f.down * f.x.row_stride * FLOAT
            row.words = [taps + vector * tile.taps, y + f.down, below]
        channels.vectors, channels.words = row.vectors, row.words[:1]
    return channels.vectors, channels.words[0]


class NarrowConvolution(WindowConvolution):
    """A convolution to few channels, with an offset for each and an epilogue.

    Attributes:
        filters: The filters: for each, vector after vector, and tap after tap. Shape:
            (M, vectors, taps, width).
        nbytes: Bytes of the filters.
    """

    def __init__(self, schedule: FewOutputsSchedule, x: Images, then: Rectifier = NOTHING) -> None:
        width, op = schedule.width, schedule.op
        (images, planes, rows, columns), taps = schedule.y, op.kernel[0] * op.kernel[1]
        places = np.array(x.vectors(width), np.int64)
        self.filters = aligned(planes * schedule.x[1] * taps).reshape(planes, -1, taps, width)
        self.nbytes, rectifier = self.filters.nbytes, then.numbers(planes)
        # a plane is taken for an image of one channel
        y = Images((images, 1, rows, columns), planes * rows * columns, columns, 1)
        values = NarrowFields.values(
            **window_values(op, x, y, schedule.tiles),
            vectors=len(places),
            places=places * FLOAT,
            filters=self.filters,
            plane_stride=rows * columns,
            planes=planes,
            rectifier=rectifier,
        )
        super().__init__(schedule, _kernel(width, schedule.code_with(then)), values, rectifier)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order."""
        op, (planes, vectors, taps, width) = self.schedule.op, self.filters.shape
        channels = op.bottom[op.axis]  # zeros fill the last vector
        by_channel = np.zeros((planes, vectors * width, taps), np.float32)
        own = weights[: planes * channels * taps].reshape(planes, channels, taps)
        by_channel[:, :channels] = own
        filters = by_channel.reshape(planes, vectors, width, taps)
        self.filters[...] = filters.transpose(0, 1, 3, 2)
