"""Products of bfloat16 by AMX, whose registers are tiles of up to 16 rows of 64 bytes.

Source: *Intel 64 and IA-32 Architectures Software Developer's Manual*, volume 1, "Programming with
Intel AMX".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    HALF,
    INT,
    LINE_BYTES,
    Value,
    Word,
    call_function,
)

HEIGHT = 16
"""Rows of a tile at most; and filters of a tile of them."""

WIDTH = LINE_BYTES // HALF
"""Channels of a row of a tile at most."""

TILE_BYTES = HEIGHT * LINE_BYTES

SUMS, ROWS, FILTERS = (0, 1, 2, 3), (4, 5), (6, 7)
"""Numbers of the registers: sums, tile of rows after tile of rows; rows of channels; filters."""

MOST_ROWS, MOST_VECTORS = HEIGHT * len(ROWS), len(FILTERS)
"""Rows of a product, and vectors of filters, whose sums fit into the registers."""


class Ahead(NamedTuple):
    """Memory that steps prefetch.

    Attributes:
        address: Address of what the first step prefetches.
        step_bytes: Bytes from there to the next step's.
        lines: Lines that a step prefetches.
    """

    address: Word
    step_bytes: Word | int
    lines: int


def configure(k: Kernel, rows: int, channels: int) -> None:
    """Set the sizes of the registers for products of ``rows``, so many channels at a time."""
    heights, widths = [0] * 16, [0] * 16
    for i, height in enumerate(_heights(rows)):
        for register in (*SUMS[2 * i : 2 * i + 2], ROWS[i]):
            heights[register], widths[register] = height, LINE_BYTES
        widths[ROWS[i]] = channels * HALF
    for register in FILTERS:
        heights[register], widths[register] = channels // 2, LINE_BYTES
    palette = bytes([1, *[0] * 15])
    sizes = palette + b"".join(width.to_bytes(2, "little") for width in widths) + bytes(heights)
    table = k.scratch(LINE_BYTES // k.vector_bytes)
    for at in range(0, len(sizes), INT):
        k.store_word(int.from_bytes(sizes[at : at + INT], "little"), table + at)
    call_function(k.code, "llvm.x86.ldtilecfg", "void", k.pointer(table))


def release(k: Kernel) -> None:
    """Empty the registers: a change of threads need not store them then."""
    call_function(k.code, "llvm.x86.tilerelease", "void")


def product_sums(
    k: Kernel, steps: Word, step_offsets: Word, left: Word, rows: int, row_bytes: Word,
    filters: Word, filter_bytes: int, vectors: int, into: Word, ahead: Sequence[Ahead] = (),
) -> list[Word]:  # fmt: skip
    """Write the sums of rows times filters, row after row: the micro-kernel of products.

    Args:
        k: The kernel.
        steps: Number of steps. Each multiplies as many channels as the registers have.
        step_offsets: Address of the bytes from the first row to its channels, for each step.
        left: Address of the first row.
        rows: Number of rows.
        row_bytes: Bytes from each row to the next.
        filters: Address of the filters, of which a step has a tile for each vector.
        filter_bytes: Bytes from the filters of a step to the next's.
        vectors: Vectors of filters.
        into: Address of the sums, ``vectors`` of each row.
        ahead: Memory that steps prefetch; the addresses behind it are returned.
    """
    columns, blocks = range(vectors), range(len(_heights(rows)))

    def call(name: str, *operands: Value) -> None:
        call_function(k.code, f"llvm.x86.{name}", "void", *operands)

    def register(number: int) -> Value:
        return Value(k.code, "i8", str(number))

    def tile(name: str, number: int, address: Word, stride: Word | int) -> None:
        call(name, register(number), k.pointer(address), k.word(stride))

    sums = {(i, j): SUMS[2 * i + j] for i in blocks for j in columns}
    for number in sums.values():
        call("tilezero", register(number))
    with k.loop(steps, words=[filters, *(one.address for one in ahead)]) as step:
        panel, *addresses = step.words
        row = left + k.load_word(step_offsets + step.i * INT)
        for one, address in zip(ahead, addresses, strict=True):
            for line in range(one.lines):
                k.prefetch(address + LINE_BYTES * line, cache=2)
        for j in columns:
            tile("tileloadd64", FILTERS[j], panel + TILE_BYTES * j, LINE_BYTES)
        for i in blocks:
            tile("tileloadd64", ROWS[i], row + row_bytes * (HEIGHT * i), row_bytes)
            for j in columns:
                call("tdpbf16ps", *map(register, (sums[i, j], ROWS[i], FILTERS[j])))
        fetched = [at + one.step_bytes for one, at in zip(ahead, addresses, strict=True)]
        step.words = [panel + filter_bytes, *fetched]
    for (i, j), number in sums.items():
        at = into + LINE_BYTES * (HEIGHT * vectors * i + j)
        tile("tilestored64", number, at, LINE_BYTES * vectors)
    return step.words[1:]


def _heights(rows: int) -> list[int]:
    return [min(rows - at, HEIGHT) for at in range(0, rows, HEIGHT)]
