"""Few rows times a large weight, bounded by the bandwidth of the caches.

Each panel of the weight, the columns of some outputs, is read once and multiplied with all rows.
The epilogue runs before sums are written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.epilogue import rectifying
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import (
    RUNTIME,
    Address,
    Arguments,
    Output,
    Struct,
)
from demitasse.backends.kernels.language.words import (
    FLOAT,
    Vector,
    Word,
    chunk,
    fma,
    minimum,
)
from demitasse.backends.kernels.math_functions import sigmoid, tanh
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.kernels.tuning import Tuning

__all__ = ["MOST_ROWS", "FewRows", "Then"]

Then = Rectifier | Literal["sigmoid", "tanh"]
"""Epilogue of the sums."""

MOST_ROWS = {4: 8, 8: 4, 16: 8}
"""Floats of a vector -> rows for which the sums of two vectors fit into registers."""

REGISTERS = {4: 32, 8: 16, 16: 32}
"""Vector registers by vector width."""

WRITTEN = 16
"""Approximate number of unrolled products in the innermost loop."""

SUMMED = 512
"""Products added in order; sums of such sums have smaller rounding errors."""

FEWEST_EACH = 1 << 16
"""Least number of the weight's elements per thread."""


class RowFields(Struct):
    """Rows, and the panels of a weight."""

    x: Address
    """Address of the first row."""
    y: Output
    """Address of the first row of results."""
    weight: Address
    """Address of the first panel."""
    offsets: Address
    """Address of one offset for each output."""
    length: Word
    """Elements of a row."""
    panel_stride: Word
    """Elements from one panel to the next."""
    outputs: Word
    """Elements of a row of results."""
    rectifier: Address
    """Address of the rectifier's numbers: the slope of negative sums, or the limits."""


@cache
def _kernel(width: int, rows: int, vectors: int, then: str) -> int:
    """Return the address of the kernel.

    Args:
        width: Floats of a vector.
        rows: Number of rows.
        vectors: Of a panel.
        then: Epilogue of the sums: "" for a slope, "limits", or a function.
    """
    name = f"few_rows{width}_{rows}_{vectors}{then and '_'}{then}"
    return compiled(name, lambda module: _write(module, name, width, rows, vectors, then), name)[
        name
    ]


def _write(module: Any, name: str, width: int, rows: int, vectors: int, then: str) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    f = RowFields.read(k)
    panel_floats, row_bytes = vectors * width, f.length * FLOAT
    panel_bytes = panel_floats * FLOAT
    at_once, finished = _vectors_at_once(width, rows, vectors), _finish(k, f, then)
    begin, end = chunk((f.outputs + (panel_floats - 1)) // panel_floats, *k.thread())

    def steps(sums: list[Vector], panel: Word, start: Word, stop: Word, count: int) -> list[Vector]:
        """Multiply with some numbers of each row, ``count`` of them per step."""
        with k.loop(stop, start, count, vectors=sums) as loop:
            for step in range(count):
                place, here = loop.i + step, panel + (loop.i + step) * panel_bytes
                columns = [k.load(here + k.vector_bytes * j) for j in range(at_once)]
                numbers = [k.broadcast(f.x + row_bytes * i + place * FLOAT) for i in range(rows)]
                products = [(number, column) for number in numbers for column in columns]
                loop.vectors = [
                    fma(*product, total)
                    for product, total in zip(products, loop.vectors, strict=True)
                ]
        return loop.vectors

    products = rows * at_once
    none, unrolled = [k.constant(0.0)] * products, max(1, WRITTEN // products)
    with k.loop(end, begin) as panel, k.loop(vectors, 0, at_once) as first:
        place = panel.i * panel_floats + first.i * width
        source = f.weight + (panel.i * f.panel_stride + first.i * width) * FLOAT
        with k.loop(f.length, 0, SUMMED, vectors=none) as part:
            stop = minimum(part.i + SUMMED, f.length)
            middle = part.i + (stop - part.i) // unrolled * unrolled
            found = steps(none, source, part.i, middle, unrolled)
            if unrolled > 1:
                found = steps(found, source, middle, stop, 1)
            part.vectors = [one + more for one, more in zip(part.vectors, found, strict=True)]
        for j in range(at_once):
            here = place + j * width
            some = k.lane_mask(f.outputs - here)
            offset = k.masked_load(f.offsets + here * FLOAT, some)
            for i, total in enumerate(part.vectors[j::at_once]):
                target = f.y + (f.outputs * i + here) * FLOAT
                k.masked_store(finished(total + offset), target, some)
    k.done()


def _finish(k: Kernel, f: RowFields, then: str) -> Callable[[Vector], Vector]:
    """Return a function that writes the epilogue of sums."""
    if then in ("", "limits"):
        return rectifying(k, f.rectifier, None, limited=then == "limits")
    return partial(sigmoid if then == "sigmoid" else tanh, k)


def _vectors_at_once(width: int, rows: int, vectors: int) -> int:
    """Return how many vectors of a panel fit into registers, with their sums and a number."""
    most = max(1, (REGISTERS[width] - 1) // (rows + 1))
    return max(n for n in range(1, most + 1) if vectors % n == 0)


class FewRows:
    """y = x W^T + b, and an epilogue; NaN stays.

    Args:
        rows: Number of rows, up to the vectors' ``MOST_ROWS``.
        length: Elements of a row.
        outputs: Elements of a row of results.
        panel: Outputs whose columns lie side by side in the weight: whole vectors.
        columns: Columns of a panel, ``length`` or more of them.
        tuning: The kernel's vectors and threads.
        then: Epilogue of the sums.

    Raises:
        ValueError: There are too many rows, or the panels are no whole vectors.
    """

    def __init__(
        self,
        rows: int,
        length: int,
        outputs: int,
        panel: int,
        columns: int,
        tuning: Tuning,
        then: Then = NOTHING,
    ) -> None:
        most = MOST_ROWS[tuning.width]
        if not 1 <= rows <= most or panel % tuning.width:
            message = (
                f"{rows} rows and panels of {panel} were given; give 1 to {most}, and whole "
                f"vectors of {tuning.width}"
            )
            raise ValueError(message)
        self.tuning = tuning
        self.threads = max(1, min(tuning.threads, length * outputs // FEWEST_EACH))
        rectifier = then if isinstance(then, Rectifier) else NOTHING
        kind = then if isinstance(then, str) else "limits" if then.limited else ""
        self._kernel = _kernel(tuning.width, rows, panel // tuning.width, kind)
        self._none = aligned(outputs)
        self._arguments = Arguments(
            RowFields.values(
                x=RUNTIME,
                y=RUNTIME,
                weight=RUNTIME,
                offsets=RUNTIME,
                length=length,
                panel_stride=panel * columns,
                outputs=outputs,
                rectifier=rectifier.numbers(),
            )
        )

    def __call__(
        self, x: np.ndarray, weight: np.ndarray, offsets: np.ndarray | None, y: np.ndarray
    ) -> None:
        """Write ``y``.

        Args:
            x: The rows. Shape: (rows, length).
            weight: Panels, filled with anything. Shape: (panels, columns, panel).
            offsets: One for each output; None for none. Shape: (outputs,).
            y: The results. Shape: (rows, outputs).
        """
        offsets = self._none if offsets is None else offsets
        each = {"x": x, "y": y, "weight": weight, "offsets": offsets}
        self._arguments.run(self._kernel, self.threads, each)

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"few rows llvm:{self.tuning.instructions}"
