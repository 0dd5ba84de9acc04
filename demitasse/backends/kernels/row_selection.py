"""Selection of rows of a table by their indices, and the gradient of the table."""

from demitasse.backends.kernels.bound import (
    BoundKernel,
    clearing,
    each_vector,
    own_vectors,
    threads_for,
)
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    Condition,
    Word,
    choose,
    is_nan,
    truncated,
)
from demitasse.backends.kernels.tuning import Tuning

FEWEST_EACH = 1 << 13
"""Elements of a thread at least."""


class SelectionFields(Struct):
    """Indices, and rows in C order."""

    indices: Address
    """Floats, whose fractions are cut off."""
    table: Address
    bias: Address
    y: Output
    outside: Output
    """A word that becomes 1 if there is no such row."""
    count: Word
    rows: Word
    columns: Word


@SelectionFields.kernel("row_selection")
def _kernel(k: Kernel, f: SelectionFields, *, biased: bool) -> None:
    row_bytes = f.columns * FLOAT
    with k.parallel_loop(f.count) as [place]:
        number = k.load_float(f.indices + place * FLOAT)
        index = truncated(number)
        outside = (index < 0) | (index >= f.rows) | is_nan(number)
        with k.when(outside):
            k.store_word(1, f.outside)
        source, target = f.table + choose(outside, 0, index) * row_bytes, f.y + place * row_bytes

        def write(at: Word, some: Condition | None) -> None:
            row = k.load(source + at, some)
            k.store(row + k.load(f.bias + at, some) if biased else row, target + at, some)

        each_vector(k, f.columns, write)


class RowSelection(BoundKernel):
    """Rows of a table (rows, columns) by ``count`` indices; with a bias (columns,), their sums.

    A call takes indices, table, bias, result, and an integer that becomes 1 for an index without a
    row; another row is selected then. Without a bias, its array is not read.
    """

    def __init__(
        self, count: int, rows: int, columns: int, tuning: Tuning, *, biased: bool
    ) -> None:
        values = SelectionFields.values(count=count, rows=rows, columns=columns)
        threads = threads_for(tuning, count * columns, FEWEST_EACH)
        kernel = _kernel(tuning.width, biased=biased)
        super().__init__("row selection", kernel, values, tuning, threads)


class RowSumFields(Struct):
    """Indices, and rows in C order; threads divide the columns."""

    indices: Address
    dy: Address
    sums: Output
    count: Word
    rows: Word
    columns: Word


@RowSumFields.kernel("row_sums")
def _sums_kernel(k: Kernel, f: RowSumFields) -> None:
    row_bytes = f.columns * FLOAT
    with k.loop(f.rows) as row:
        own_vectors(k, f.columns, clearing(k, f.sums + row.i * row_bytes))
    with k.loop(f.count) as item:
        index = truncated(k.load_float(f.indices + item.i * FLOAT))
        source, target = f.dy + item.i * row_bytes, f.sums + index * row_bytes

        def add(at: Word, some: Condition | None) -> None:
            k.store(k.load(target + at, some) + k.load(source + at, some), target + at, some)

        with k.when((index >= 0) & (index < f.rows)):
            own_vectors(k, f.columns, add)


class RowSums(BoundKernel):
    """Gradient of a table (rows, columns) of which ``count`` rows were selected.

    A call takes indices, gradients of the selected rows, and the result. Indices without a row are
    left out.
    """

    def __init__(self, count: int, rows: int, columns: int, tuning: Tuning) -> None:
        values = RowSumFields.values(count=count, rows=rows, columns=columns)
        threads = threads_for(tuning, rows * columns, FEWEST_EACH)
        super().__init__("row sums", _sums_kernel(tuning.width), values, tuning, threads)
