"""Products of few rows with a weight in panels, which is read once."""

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.epilogue import NOTHING, Kind, Rectifier, rectifying
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import FLOAT, HALF, Word, minimum
from demitasse.backends.kernels.products import product_sums
from demitasse.backends.kernels.tuning import Tuning

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
    y: Output
    weight: Address
    offsets: Address
    """One offset for each output."""
    length: Word
    """Elements of a row."""
    panel_stride: Word
    outputs: Word
    """Elements of a row of results."""
    rectifier: Address
    """Numbers of the epilogue: the slope of negative sums, or the limits."""


@RowFields.kernel("few_rows")
def _kernel(k: Kernel, f: RowFields, rows: int, vectors: int, *, kind: Kind, half: bool) -> None:
    width, each = k.width, HALF if half else FLOAT
    panel_floats, row_bytes = vectors * width, f.length * FLOAT
    panel_bytes = panel_floats * each
    at_once = max(n for n in range(1, most_vectors(width, rows) + 1) if vectors % n == 0)
    finished = rectifying(k, f.rectifier, None, kind)
    panels = (f.outputs + (panel_floats - 1)) // panel_floats
    products = rows * at_once
    none, unrolled = [k.constant(0.0)] * products, max(1, WRITTEN // products)
    lefts = [row_bytes * i for i in range(rows)]
    with k.parallel_loop(panels) as [panel], k.loop(vectors, 0, at_once) as first:
        place = panel * panel_floats + first.i * width
        source = f.weight + (panel * f.panel_stride + first.i * width) * each
        with k.loop(f.length, 0, SUMMED, vectors=none) as part:
            length = minimum(f.length - part.i, SUMMED)
            left, right = f.x + part.i * FLOAT, source + part.i * panel_bytes
            ends = length, left, lefts, FLOAT, right, panel_bytes
            found, _ = product_sums(k, *ends, at_once, unrolled, half=half)
            part.vectors = [one + more for one, more in zip(part.vectors, found, strict=True)]
        for j in range(at_once):
            here = place + j * width
            some = k.lane_mask(f.outputs - here)
            offset = k.load(f.offsets + here * FLOAT, some)
            for i, total in enumerate(part.vectors[j::at_once]):
                target = f.y + (f.outputs * i + here) * FLOAT
                k.store(finished(total + offset), target, some)


def most_vectors(width: int, rows: int) -> int:
    """Return how many vectors of a panel fit into registers, with their sums and a number."""
    return max(1, (REGISTERS[width] - 1) // (rows + 1))


class FewRows(BoundKernel):
    """y = x W^T + b, and an epilogue; NaN stays.

    Panels have as many outputs, whole vectors, whose columns lie side by side in the weight, and
    ``columns``, at least the ``length`` of a row. A call takes x, y, (rows, outputs), the weight,
    (panels, columns, panel), and b or None. The weight is in 16 bits if it is ``half``.

    Raises:
        ValueError: There are too many rows, or the panels are no whole vectors.
    """

    def __init__(
        self, rows: int, length: int, outputs: int, panel: int, columns: int, tuning: Tuning,
        then: Rectifier = NOTHING, *, half: bool = False,
    ) -> None:  # fmt: skip
        most, width = MOST_ROWS[tuning.width], tuning.width
        if not 1 <= rows <= most or panel % width:
            message = f"{rows} rows, panels of {panel}; give 1 to {most}, whole vectors of {width}"
            raise ValueError(message)
        self._none = aligned(outputs)
        values = RowFields.values(
            length=length, panel_stride=panel * columns, outputs=outputs,
            rectifier=then.numbers(),
        )  # fmt: skip
        kernel = _kernel(width, rows, panel // width, kind=then.kind, half=half)
        threads = threads_for(tuning, length * outputs, FEWEST_EACH)
        super().__init__("few rows", kernel, values, tuning, threads)
        self.code += "_half" * half

    def __call__(self, *arrays: np.ndarray | int | None) -> None:
        *others, offsets = arrays
        super().__call__(*others, self._none if offsets is None else offsets)
