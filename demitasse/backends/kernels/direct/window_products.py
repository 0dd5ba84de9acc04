"""Products of the windows of an image with filters, whose sums stay in registers.

The windows are not copied: a table says how far each of their taps is from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import FLOAT, INT, Vector, Word
from demitasse.backends.kernels.products.registers import (
    Panels,
    Rows,
    by_panel,
    multiply,
    product_rows,
)
from demitasse.backends.kernels.rectify import rectifying

__all__ = ["window_products", "window_sums"]

WRITTEN_OUT = 5
"""Taps of a row up to which the last windows of a line have them written out, as all others have.
There are more kernels for the last windows than for the others, and each takes time to compile."""


@cache
def window_products(
    width: int, row: int, step: int, stride: int, *, limited: bool = False
) -> Panels:
    """Return the kernels of the forward pass, by the vectors of a panel.

    A row of pixels is the product of their windows and a panel's filters. Arguments: the first
    window; the table of the places of its rows, and bytes of the table; the filters, tap after tap;
    the first output, bytes to the next, the table of its vectors' places; the offsets, vector after
    vector; how many pixels there are; the rectifier's numbers; the table of rests.

    Args:
        width: Floats of a vector.
        row: Taps of a window's row.
        step: Columns from one of them to the next.
        stride: Columns from one window to the next.
        limited: Whether results have limits.
    """

    def write(k: Kernel, vectors: int, of: Rows) -> None:
        _write_product(k, vectors, of, row, FLOAT * step, FLOAT * stride, limited=limited)

    kind = f"window_product{row}s{step}s{stride}{'_limited' if limited else ''}"
    return by_panel(kind, width, 11, write)


@cache
def window_sums(width: int) -> Panels:
    """Return the kernels of the filters' gradient, by the vectors of a panel.

    The gradient of a panel's filters is the sum over pixels of windows times the outputs' gradient.
    Arguments: the first window, bytes to the next, and to that below; the taps' table, how many
    they are; the first output's gradient, bytes to the next, and to that below, the table of its
    vectors' places; the totals, tap after tap, to which the sums are added; pixels of a row,
    and rows; the table of rests.
    """
    return by_panel("window_sum", width, 13, _write_sum)


def _write_product(
    k: Kernel,
    vectors: int,
    of: Rows,
    taps: int,
    tap_bytes: int,
    stride_bytes: int,
    *,
    limited: bool,
) -> None:
    window, row_table, table_bytes, filters, output, output_bytes = k.arguments[:6]
    place_table, offsets, pixels, rectifier = k.arguments[6:10]
    vector = k.vector_bytes
    places = k.load_words(place_table, vectors)
    biases = [k.load(offsets + vector * j) for j in range(vectors)]
    then = rectifying(k, rectifier, None, limited=limited)
    end = row_table + table_bytes

    def add(totals: list[Vector], right: Word, left: Word, tap: int, count: int) -> None:
        """Write the products of one tap, so many taps behind ``left``, of some windows."""
        first = k.opaque(left)
        columns = [k.load(right + vector * j) for j in range(vectors)]
        numbers = [first + (stride_bytes * pixel + tap_bytes * tap) for pixel in range(count)]
        multiply(k, totals, numbers, columns)

    def sums(starts: Sequence[Word], count: int) -> None:
        window, output = starts
        with k.loop(end, row_table, INT, vectors=biases * count, words=[filters]) as loop:
            left, [row] = window + k.load_word(loop.i), loop.words
            if count == of.most or taps <= WRITTEN_OUT:
                for tap in range(taps):
                    add(loop.vectors, row + vector * vectors * tap, left, tap, count)
            else:
                with k.loop(taps, vectors=loop.vectors, words=[row, left]) as turn:
                    right, left = turn.words
                    add(turn.vectors, right, left, 0, count)
                    turn.words = [right + vector * vectors, left + tap_bytes]
                loop.vectors = turn.vectors
            loop.words = [row + vector * vectors * taps]
        for pixel in range(count):
            for j, place in enumerate(places):
                total = then(loop.vectors[pixel * vectors + j])
                k.store(total, output + output_bytes * pixel + place)

    product_rows(k, pixels, of, (window, output), (stride_bytes, output_bytes), sums)
    k.done()


def _write_sum(k: Kernel, vectors: int, of: Rows) -> None:
    window, window_bytes, window_row_bytes, tap_table, taps = k.arguments[:5]
    dy, dy_bytes, dy_row_bytes, place_table, totals, pixels, rows = k.arguments[5:12]
    vector = k.vector_bytes
    places = k.load_words(place_table, vectors)

    def sums(starts: Sequence[Word], count: int) -> None:
        tap, target = starts
        lefts = [window + distance for distance in k.load_words(tap, count)]
        zeros = [k.constant(0.0)] * (count * vectors)
        with k.loop(rows, vectors=zeros) as row:
            first, right = row.i * window_row_bytes, dy + row.i * dy_row_bytes
            with k.loop(pixels, vectors=row.vectors, words=[first, right]) as pixel:
                offset, gradient = pixel.words
                columns = [k.load(gradient + place) for place in places]
                multiply(k, pixel.vectors, [left + offset for left in lefts], columns)
                pixel.words = [offset + window_bytes, gradient + dy_bytes]
            row.vectors = pixel.vectors
        places_of_sums = [target + vector * at for at in range(len(zeros))]
        k.accumulate(list(zip(row.vectors, places_of_sums, strict=True)), 1)

    product_rows(k, taps, of, (tap_table, totals), (INT, vector * vectors), sums)
    k.done()
