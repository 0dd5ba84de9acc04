"""Products of the windows of a picture with filters, whose sums stay in registers.

The windows are not copied: a table says how far each of their taps is from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from demitasse.backends.kernels.language.kernel import FLOAT, WIDE, Kernel, Value
from demitasse.backends.kernels.products.registers import ROWS, a_few_at_a_time, by_panel, multiply

__all__ = ["window_products", "window_sums"]


@cache
def window_products(width: int, row: int, step: int, stride: int) -> dict[int, int]:
    """Return the addresses of the kernels of the forward pass, by the vectors of a panel.

    A row of pixels is the product of their windows and a panel's filters. Arguments: the first
    window; the table of the places of its rows, and bytes of the table; the filters, tap after tap;
    the first output, bytes to the next, the table of its vectors' places; the offsets, vector after
    vector; how many pixels there are; what the output is raised to.

    Args:
        width: Floats of a vector.
        row: Taps of a window's row.
        step: Columns from one of them to the next.
        stride: Columns from one window to the next.
    """

    def write(k: Kernel, vectors: int) -> None:
        _write_product(k, vectors, [FLOAT * step * tap for tap in range(row)], FLOAT * stride)

    return by_panel(f"window_product{row}s{step}s{stride}", width, 10, write)


@cache
def window_sums(width: int) -> dict[int, int]:
    """Return the addresses of the kernels of the filters' gradient, by the vectors of a panel.

    The gradient of a panel's filters is the sum over pixels of windows times the outputs' gradient.
    Arguments: the first window, bytes to the next, and to that below; the taps' table, how many
    they are; the first output's gradient, bytes to the next, and to that below, the table of its
    vectors' places; the totals, tap after tap, to which the sums are added; pixels of a row, and
    rows.
    """
    return by_panel("window_sum", width, 12, _write_sum)


def _write_product(k: Kernel, vectors: int, taps: Sequence[int], stride: int) -> None:
    a, table, length, b, c, next_c, places, offsets, pixels, floor = k.arguments
    most, size = ROWS[k.width][vectors], FLOAT * k.width
    places = [k.load_word(k.add(places, WIDE * j)) for j in range(vectors)]
    biases = [k.load(k.add(offsets, size * j)) for j in range(vectors)]
    least = k.spread(k.load_number(floor))
    end = k.add(table, length)

    def sums(starts: Sequence[Value], count: int) -> None:
        a, c = starts
        with k.loop(end, table, WIDE, carry=[*biases * count, b]) as loop:
            *totals, right = loop.values
            left = k.add(a, k.load_word(loop.i))
            for number, tap in enumerate(taps):
                row, window = k.add(right, size * vectors * number), k.opaque(left)
                filters = [k.load(k.add(row, size * j)) for j in range(vectors)]
                numbers = [k.add(window, stride * pixel + tap) for pixel in range(count)]
                multiply(k, totals, numbers, filters)
            loop.next = [*totals, k.add(right, size * vectors * len(taps))]
        for pixel in range(count):
            for j, place in enumerate(places):
                total = k.at_least(loop.out[pixel * vectors + j], least)
                k.store(total, k.add(c, k.times(next_c, pixel), place))

    a_few_at_a_time(k, pixels, most, (a, c), (stride, next_c), sums)
    k.done()


def _write_sum(k: Kernel, vectors: int) -> None:
    a, next_a, below_a, taps, length, b, next_b, below_b, places, c, pixels, rows = k.arguments
    most, size = ROWS[k.width][vectors], FLOAT * k.width
    places = [k.load_word(k.add(places, WIDE * j)) for j in range(vectors)]

    def sums(starts: Sequence[Value], count: int) -> None:
        taps, c = starts
        lefts = [k.add(a, k.load_word(k.add(taps, WIDE * tap))) for tap in range(count)]
        zeros = [k.constant(0.0)] * (count * vectors)
        with k.loop(rows, carry=zeros) as row:
            first, right = k.times(row.i, below_a), k.add(b, k.times(row.i, below_b))
            with k.loop(pixels, carry=[*row.values, first, right]) as pixel:
                *totals, offset, gradient = pixel.values
                slopes = [k.load(k.add(gradient, place)) for place in places]
                multiply(k, totals, [k.add(left, offset) for left in lefts], slopes)
                pixel.next = [*totals, k.add(offset, next_a), k.add(gradient, next_b)]
            row.next = pixel.out[: len(zeros)]
        k.accumulate([(total, k.add(c, size * at)) for at, total in enumerate(row.out)], 1)

    a_few_at_a_time(k, length, most, (taps, c), (WIDE, size * vectors), sums)
    k.done()
