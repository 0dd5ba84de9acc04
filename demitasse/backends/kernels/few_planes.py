"""Convolution of few channels to few, plane by plane: vectors have neighbours of a row."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import NOTHING, Kind, Rectifier, rectifying
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Struct
from demitasse.backends.kernels.language.values import FLOAT, INT, Word, minimum
from demitasse.backends.kernels.products import multiply
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.kernels.windows import PaddedImages, WindowConvolution
from demitasse.backends.step import decline_if

MOST_CHANNELS, MOST_FILTERS = 15, 7
"""Channels on either side; of more, vectors of channels have less in vain."""

SUMS = {4: 16, 8: 12, 16: 24}
"""Floats of a vector -> sums that fit into the registers, with a row's vectors and a weight."""

MOST_VECTORS = 4
"""Vectors of a row at a time."""


@dataclass(frozen=True)
class FewPlanesSchedule(ConvSchedule):
    """A convolution of few channels to few."""

    kernel: ClassVar[str] = "planes"

    @cached_property
    def vectors(self) -> int:
        """Vectors of a row of outputs at a time."""
        return min(MOST_VECTORS, SUMS[self.width] // self.y[1], self.y[3] // self.width)


def plan_few_planes(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> FewPlanesSchedule:
    """Return the schedule of a convolution; shapes are (N, C, H, W).

    Raises:
        Declined: It has other channels, several groups or gaps between windows of a row.
    """
    tuning.require("few_outputs")
    fits = len(op.kernel) == 2 and op.group == op.stride[1] == 1 and y[3] >= tuning.width
    decline_if(
        not fits or x[1] > MOST_CHANNELS or y[1] > MOST_FILTERS,
        f"few planes are up to {MOST_CHANNELS} to {MOST_FILTERS}, in one group, whose rows have "
        f"{tuning.width} windows or more, next to each other",
    )
    return FewPlanesSchedule(op, x, y, tuning)


class PlaneFields(Struct):
    """A convolution of planes, with zeros around those that are read."""

    x: ImageFields
    y: OutputFields
    step_down: Word
    """Rows of the input from one window to the window below."""
    tiles: Word
    """Tiles of a row, the last of which begins early."""
    taps: Address
    """Bytes from a window's first tap to each."""
    tap_count: Word
    filters: Address
    """Filters side by side, tap after tap."""
    offsets: Address
    rectifier: Address
    """Numbers of the epilogue: one slope for each filter, or the limits."""
    plane_bytes: Word


@PlaneFields.kernel("planes")
def _kernel(k: Kernel, f: PlaneFields, planes: int, vectors: int, *, kind: Kind) -> None:
    tile_columns, filters = vectors * k.width, range(planes)
    with k.parallel_loop(f.y.images, f.y.rows) as (image, row):
        source, target = f.x.row(image, row * f.step_down), f.y.row(image, row)
        with k.loop(f.tiles) as tile:
            first = minimum(tile.i * tile_columns, f.y.columns - tile_columns) * FLOAT
            start = [k.broadcast(f.offsets + FLOAT * m) for m in filters for _ in range(vectors)]
            with k.loop(f.tap_count, vectors=start, words=[f.filters]) as tap:
                [weights] = tap.words
                place = source + first + k.load_word(f.taps + tap.i * INT)
                columns = [k.load(place + k.vector_bytes * v) for v in range(vectors)]
                multiply(k, tap.vectors, [weights + FLOAT * m for m in filters], columns)
                tap.words = [weights + FLOAT * planes]
            for m in filters:
                numbers = f.rectifier if kind == "limits" else f.rectifier + FLOAT * m
                then = rectifying(k, numbers, None, kind)
                to = target + first + f.plane_bytes * m
                for v in range(vectors):
                    k.store(then(tap.vectors[m * vectors + v]), to + k.vector_bytes * v)


class FewPlanesConvolution(WindowConvolution):
    """A convolution of images in C order, with an offset for each filter and an epilogue.

    Attributes:
        filters: The filters side by side. Shape: (taps, M).
        nbytes: Bytes of the filters, and of images with zeros around them.
    """

    def __init__(self, schedule: FewPlanesSchedule, then: Rectifier = NOTHING) -> None:
        op, n, (_, planes, *size) = schedule.op, schedule.x[0], schedule.y
        self._padded = PaddedImages(op, schedule.x, schedule.tuning)
        _, c, rows, columns = self._padded.shape
        self._pads, taps = self._padded.shape != schedule.x, self._padded.taps
        self.filters = aligned(taps.size * planes).reshape(taps.size, planes)
        self.nbytes = self.filters.nbytes + (self._padded.planes.nbytes if self._pads else 0)
        rectifier, vectors, area_y = then.numbers(planes), schedule.vectors, size[0] * size[1]
        kernel = _kernel(schedule.width, planes, vectors, kind=then.kind)
        values = PlaneFields.values(
            x=ImageFields.of(Images((n, 1, rows, columns), c * rows * columns, columns, 1)),
            y=OutputFields.of(Images((n, 1, size[0], size[1]), planes * area_y, size[1], 1)),
            step_down=op.stride[0],
            tiles=-(-size[1] // (vectors * schedule.width)),
            taps=FLOAT * taps.reshape(-1),
            tap_count=taps.size,
            filters=self.filters,
            rectifier=rectifier,
            plane_bytes=FLOAT * area_y,
        )
        super().__init__(schedule, kernel, values, rectifier)

    def update(self, weights: np.ndarray) -> None:
        """Copy new weights, in C order."""
        taps, planes = self.filters.shape
        self.filters[...] = weights[: self.filters.size].reshape(planes, taps).T

    def __call__(self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None) -> None:
        """Convolve, with one offset for each channel, None for those that were taken."""
        if self._pads:
            self._padded(source)
            source = self._padded.planes
        super().__call__(source, target, offsets)
