"""The mean of each bin of regions of interest, each bin from channels of its own: PSROIPooling.

The vectors are columns of an image in C order: bins of one region are of different channels, and
few of them of the same.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    EACH_CALL,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import FLOAT, INT, Word, chunk, lane_sums, minimum
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.regions import Bins

__all__ = ["RegionMeans"]

FEWEST_EACH = 1 << 10
"""Results of a thread at least."""


class MeanFields(Struct):
    """Images in C order, and bins."""

    x: Address
    """Address of the first image."""
    y: Output
    """Address of the first result."""
    items: Address
    """Address of each region's image, its index in the batch."""
    rows: Address
    """Address of the first row of each row of bins, and the one after the last."""
    columns: Word
    """The same of columns."""
    counts: Address
    """Address of how many pixels each bin has, a float; 1 for an empty one."""
    regions: Word
    """Number of regions."""
    outputs: Word
    """Results of each bin."""
    bin_rows: Word
    """Rows of bins of a region."""
    bin_columns: Word
    """Columns of bins."""
    height: Word
    """Rows of an image."""
    width: Word
    """Columns of an image."""


@cache
def _kernel(width: int) -> int:
    """Return the address of the kernel for vectors of so many floats."""
    name = f"region_means{width}"
    return compiled(name, lambda module: _write(module, name, width), name)[name]


def _write(module: Any, name: str, width: int) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = MeanFields.read(k)
    none, one = k.constant(0.0), k.first(k.word(1))
    bins, plane = f.bin_rows * f.bin_columns, f.height * f.width
    begin, end = chunk(f.regions * bins, *k.thread())
    with k.loop(end, begin) as part:
        region, place = part.i // bins, part.i % bins
        row, column = place // f.bin_columns, place % f.bin_columns
        top, bottom = k.load_words(f.rows + (region * f.bin_rows + row) * (2 * INT), 2)
        spans = f.columns + (region * f.bin_columns + column) * (2 * INT)
        left, right = k.load_words(spans, 2)
        image = k.load_word(f.items + region * INT) * f.outputs * bins
        source = f.x + (image + place) * plane * FLOAT
        target = f.y + (region * f.outputs * bins + place) * FLOAT
        count = k.broadcast(f.counts + part.i * FLOAT)
        with k.loop(f.outputs, words=[source, target]) as output:
            here, result = output.words
            with k.loop(bottom, top, vectors=[none]) as line:
                start = here + line.i * f.width * FLOAT
                with k.loop(right, left, width, vectors=line.vectors) as pixel:
                    some = k.first(minimum(right - pixel.i, width))
                    value = k.load_some(start + pixel.i * FLOAT, some)
                    pixel.vectors = [pixel.vectors[0] + value]
                line.vectors = pixel.vectors
            k.store_some(lane_sums(line.vectors[0]) / count, result, one)
            output.words = [here + bins * plane * FLOAT, result + bins * FLOAT]
    k.done()


class RegionMeans:
    """Bin (i, j) of output d from channel (d G + i) G + j of an image; 0 in an empty one.

    Args:
        shape: Of the images, (N, D G G, H, W).
        regions: How many regions there are.
        pooled: Rows and columns of bins of each: G and G.
        tuning: The kernel's vectors and threads.

    Raises:
        ValueError: The channels are not those of whole outputs.
    """

    def __init__(
        self, shape: tuple[int, ...], regions: int, pooled: tuple[int, int], tuning: Tuning
    ) -> None:
        outputs, rest = divmod(shape[1], math.prod(pooled))
        if rest:
            message = f"{shape[1]} channels for {pooled} bins; give a multiple of as many"
            raise ValueError(message)
        self.tuning = tuning
        results = regions * shape[1]
        self._threads = max(1, min(tuning.threads, results // FEWEST_EACH))
        self._kernel = _kernel(tuning.width)
        self._arguments = Arguments(
            MeanFields.values(
                x=EACH_CALL,
                y=EACH_CALL,
                items=EACH_CALL,
                rows=EACH_CALL,
                columns=EACH_CALL,
                counts=EACH_CALL,
                regions=regions,
                outputs=outputs,
                bin_rows=pooled[0],
                bin_columns=pooled[1],
                height=shape[2],
                width=shape[3],
            )
        )

    def __call__(self, x: np.ndarray, bins: Bins, y: np.ndarray) -> None:
        """Write ``y``; both are in C order.

        Args:
            x: The images.
            bins: Those of the regions, within the images.
            y: The results. Shape: (regions, D, G, G) or the same in one row.
        """
        tables = {
            name: np.ascontiguousarray(table, np.int64) for name, table in bins._asdict().items()
        }
        tall, wide = (np.diff(spans, axis=2)[:, :, 0] for spans in (bins.rows, bins.columns))
        counts = np.maximum(1, tall[:, :, None] * wide[:, None, :]).astype(np.float32)
        self._arguments.run(
            self._kernel, self._threads, {"x": x, "y": y, "counts": counts, **tables}
        )

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"region means llvm:{self.tuning.instructions}"
