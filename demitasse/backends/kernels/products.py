"""Matrix products of kernels: panels of columns, and few rows."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from demitasse.backends.arrays import address, aligned
from demitasse.backends.kernels.bound import BoundKernel, threads_for
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import Address, Output, Struct
from demitasse.backends.kernels.language.values import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    fma,
    minimum,
    pair_fma,
)
from demitasse.backends.kernels.math_functions import sigmoid, tanh
from demitasse.backends.kernels.tuning import Tuning

ROWS = {4: {1: 16, 2: 12, 3: 8, 4: 6}, 8: {1: 8, 2: 6, 3: 4}, 16: {1: 16, 2: 14, 3: 9}}
"""Floats of a vector -> vectors of a panel -> rows whose sums fit into the registers, with a row of
columns and one number: 16 registers of 8 floats, 32 of 16. Fewer than eight sums would wait for
each other."""


class Rows(NamedTuple):
    """Row counts that a kernel supports.

    Attributes:
        most: Greatest number of rows in registers.
        few: The only number, less than that; 0 for any.
    """

    most: int
    few: int = 0


class Product(NamedTuple):
    """A kernel and its kernels for remainders, the last rows.

    Attributes:
        address: Address of the kernel.
        remainders: Addresses of the remainders' kernels, by number of rows; the address of the
            table is the last argument of each kernel. Without a remainder's kernel, rows are
            computed one at a time, to the same bits.
    """

    address: int
    remainders: np.ndarray

    @property
    def entry(self) -> tuple[int, int]:
        """Both addresses, for a table of products; tables of remainders are never freed."""
        return self.address, address(self.remainders)


Panels = Callable[[int, Iterable[int]], Product]
"""Returns the kernel for panels of a number of vectors and for numbers of rows.

Only the required kernels are compiled: few nets need every panel, and few layers every remainder.
"""


def by_panel(
    kind: str, width: int, count: int, write: Callable[[Kernel, int, Rows], None]
) -> Panels:
    """Return the factory of one kind of kernels.

    Args:
        kind: Prefix of the kernels' names, unique in the process.
        width: Floats of a vector.
        count: Number of arguments; the last is :attr:`Product.remainders`.
        write: Writes one, for so many vectors and such numbers of rows.
    """

    def kernel(vectors: int, few: int = 0) -> int:
        name = f"{kind}_{vectors}x{width}" + (f"of{few}" if few else "")

        def module(of: Any) -> None:
            rows = Rows(ROWS[width][vectors], few)
            write(Kernel(of, name, count, width, exported=True), vectors, rows)

        return compiled(name, module, name)[name]

    def product(vectors: int, counts: Iterable[int]) -> Product:
        most, remainders = ROWS[width][vectors], _remainders(f"{kind}_{vectors}x{width}")
        numbers = set(counts)
        if len(numbers) == 1 and max(numbers) < most:
            return Product(kernel(vectors, numbers.pop()), remainders)
        for rest in {number % most for number in numbers} - {0, 1}:
            remainders[rest] = remainders[rest] or kernel(vectors, rest)
        return Product(kernel(vectors), remainders)

    return product


@cache
def _remainders(name: str) -> np.ndarray:
    """Return the table of a kernel's remainders, which is filled while it may be read."""
    del name
    return np.zeros(max(ROWS[8][1], ROWS[16][1]), np.int64)


def multiply(
    k: Kernel, totals: list[Vector], numbers: Sequence[Word], columns: Sequence[Vector],
    *, bf16: bool = False,
) -> None:  # fmt: skip
    """Add to the totals, row by row, a number times each of the columns.

    Args:
        k: The kernel.
        totals: The sums, which are replaced.
        numbers: The address of each row's number.
        columns: Vectors.
        bf16: Whether numbers and elements of vectors are pairs of bfloat16.
    """
    for row, place_of_number in enumerate(numbers):
        number = k.broadcast(place_of_number)
        for j, column in enumerate(columns):
            place = row * len(columns) + j
            totals[place] = (pair_fma if bf16 else fma)(number, column, totals[place])


def product_rows(
    k: Kernel,
    count: Word,
    rows: Rows,
    starts: Sequence[Word],
    row_bytes: Sequence[Word | int],
    body: Callable[[Sequence[Word], int], None],
) -> None:
    """Write a loop over rows for a kernel of :func:`by_panel`; another computes the remainder.

    Args:
        k: The kernel.
        count: Number of rows.
        rows: The rows that the kernel is for.
        starts: Addresses that belong to the first row, which are arguments of the kernel.
        row_bytes: From each of them to the next row's.
        body: Writes it for the addresses of some rows, and how many these are.
    """
    if rows.few:
        body(starts, rows.few)
        return
    behind = _repeated(k, count // rows.most, rows.most, starts, row_bytes, body)
    *others, remainders = k.arguments
    rest = count % rows.most
    kernel = k.load_word(remainders + rest * INT)
    with k.when(kernel > 0):
        moved = dict(zip(starts, behind, strict=True))
        k.call_at(kernel, *(moved.get(one, one) for one in others), remainders)
    _repeated(k, choose(kernel > 0, 0, rest), 1, behind, row_bytes, body)


def _repeated(
    k: Kernel,
    times: Word,
    rows: int,
    starts: Sequence[Word],
    row_bytes: Sequence[Word | int],
    body: Callable[[Sequence[Word], int], None],
) -> Sequence[Word]:
    """Write a loop over groups of ``rows`` rows; return the addresses behind the last group."""
    with k.loop(times, words=starts) as loop:
        body(loop.words, rows)
        loop.words = [
            start + k.word(step) * rows for start, step in zip(loop.words, row_bytes, strict=True)
        ]
    return loop.words


UNROLLED = {4: 2, 8: 4, 16: 4}
"""Floats of a vector -> unrolled steps of the innermost loop where distances are known."""


@cache
def matrix_products(width: int, *, packed: bool = False) -> Panels:
    """Return the kernels, by the vectors of a panel.

    Their arguments are: ``a``, the bytes from one of its rows to the next, the bytes from one of
    its columns to the next; ``b``, the bytes from one of its rows to the next; ``c``, the bytes
    from one of its rows to the next; rows, the length of the sums, whether they are added to ``c``,
    and the table of remainders.

    Args:
        width: Floats of a vector.
        packed: Whether the columns of ``a`` and the rows of ``b`` are contiguous, and sums are
            written and never added, whatever the arguments say.
    """
    return by_panel("packed" if packed else "product", width, 11, partial(_write, packed=packed))


def _write(k: Kernel, vectors: int, of: Rows, *, packed: bool) -> None:
    a, a_row_bytes, a_column_bytes, b, b_row_bytes, c, c_row_bytes, rows, length = k.arguments[:9]
    adds = k.arguments[9]
    if packed:
        a_column_bytes, b_row_bytes = k.word(FLOAT), k.word(k.vector_bytes * vectors)
    end = b + b_row_bytes * length

    def steps(
        totals: list[Vector], left: Word, begin: Word, stop: Word, count: int, unrolled: int
    ) -> tuple[list[Vector], Word]:
        """Write the unrolled innermost loop; return the sums and the next column's address."""
        with k.loop(stop, begin, b_row_bytes * unrolled, vectors=totals, words=[left]) as loop:
            totals, [left] = loop.vectors, loop.words
            for step in range(unrolled):
                right = loop.i + b_row_bytes * step
                columns = [k.load(right + k.vector_bytes * j) for j in range(vectors)]
                here = left + a_column_bytes * step
                multiply(k, totals, [here + a_row_bytes * row for row in range(count)], columns)
            loop.words = [left + a_column_bytes * unrolled]
        return loop.vectors, loop.words[0]

    def sums(starts: Sequence[Word], count: int) -> None:
        left, c = starts
        places = [
            c + c_row_bytes * row + k.vector_bytes * j
            for row in range(count)
            for j in range(vectors)
        ]
        begin, totals = b, [k.constant(0.0)] * len(places)
        if packed and count == of.most:
            unrolled = UNROLLED[k.width]
            middle = end - length % unrolled * b_row_bytes
            totals, left = steps(totals, left, begin, middle, count, unrolled)
            begin = middle
        totals, _ = steps(totals, left, begin, end, count, 1)
        sums_and_places = list(zip(totals, places, strict=True))
        if packed:
            for total, place in sums_and_places:
                k.store(total, place)
        else:
            k.accumulate(sums_and_places, adds)

    product_rows(k, rows, of, (a, c), (a_row_bytes, c_row_bytes), sums)
    k.done()


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
def _kernel(k: Kernel, f: RowFields, rows: int, vectors: int, then: str) -> None:
    """Write the kernel; ``then`` is "" for a slope, "limits", or a function."""
    width = k.width
    panel_floats, row_bytes = vectors * width, f.length * FLOAT
    panel_bytes = panel_floats * FLOAT
    at_once = max(n for n in range(1, most_vectors(width, rows) + 1) if vectors % n == 0)
    finished = _finish(k, f, then)
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


def _finish(k: Kernel, f: RowFields, then: str) -> Callable[[Vector], Vector]:
    """Return a function that writes the epilogue of sums."""
    if then in ("", "limits"):
        return rectifying(k, f.rectifier, None, limited=then == "limits")
    return sigmoid if then == "sigmoid" else tanh


def most_vectors(width: int, rows: int) -> int:
    """Return how many vectors of a panel fit into registers, with their sums and a number."""
    return max(1, (REGISTERS[width] - 1) // (rows + 1))


class FewRows(BoundKernel):
    """y = x W^T + b, and an epilogue; NaN stays.

    Panels have as many outputs, whole vectors, whose columns lie side by side in the weight, and
    ``columns``, at least the ``length`` of a row. A call takes x, y, (rows, outputs), the weight,
    (panels, columns, panel), and b or None.

    Raises:
        ValueError: There are too many rows, or the panels are no whole vectors.
    """

    def __init__(
        self, rows: int, length: int, outputs: int, panel: int, columns: int, tuning: Tuning,
        then: Then = NOTHING,
    ) -> None:  # fmt: skip
        most = MOST_ROWS[tuning.width]
        if not 1 <= rows <= most or panel % tuning.width:
            message = (
                f"{rows} rows and panels of {panel} were given; give 1 to {most}, and whole "
                f"vectors of {tuning.width}"
            )
            raise ValueError(message)
        rectifier = then if isinstance(then, Rectifier) else NOTHING
        kind = then if isinstance(then, str) else "limits" if then.limited else ""
        self._none = aligned(outputs)
        values = RowFields.values(
            length=length,
            panel_stride=panel * columns,
            outputs=outputs,
            rectifier=rectifier.numbers(),
        )
        kernel = _kernel(tuning.width, rows, panel // tuning.width, kind)
        threads = threads_for(tuning, length * outputs, FEWEST_EACH)
        super().__init__("few rows", kernel, values, tuning, threads)

    def __call__(self, *arrays: np.ndarray | int | None) -> None:
        *others, offsets = arrays
        super().__call__(*others, self._none if offsets is None else offsets)


WIDEST = 3
"""Vectors of a panel of columns at most."""


def split_columns(columns: int, width: int) -> list[tuple[int, int]]:
    """Divide columns into panels: vectors of each, and its first column. The last may reach over.

    Panels of one vector are the slowest.
    """
    panels, at = [], 0
    while at < columns:
        left = -(-(columns - at) // width)
        vectors = min(left, 2 if left == 4 else WIDEST)  # 4 is 2 + 2
        panels.append((vectors, at))
        at += vectors * width
    return panels


def fill_panels(panels: np.ndarray, weights: np.ndarray, firsts: Sequence[int]) -> None:
    """Write filters of single pixels, given in C order, by panels, which may share filters.

    Shape of the panels: (panels, channels, filters of a panel).
    """
    _, channels, width = panels.shape
    order = np.add.outer(firsts, np.arange(width))
    by_filter = weights[: (order.max() + 1) * channels].reshape(-1, channels)
    panels[...] = by_filter[order].transpose(0, 2, 1)
