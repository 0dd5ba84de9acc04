"""Products of the pixels of a block, which were noted, and all filters."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.words import (
    FLOAT,
    INT,
    Vector,
    Word,
    choose,
)
from demitasse.backends.kernels.products.registers import ROWS, multiply
from demitasse.backends.kernels.rectify import rectifying
from demitasse.backends.kernels.separable.blocks import LINE, LINES, UNROLLED
from demitasse.backends.kernels.separable.fields import SeparableFields

__all__ = ["Later", "Products", "multiplying", "multiplying_few"]

AHEAD = 8
"""Channels before its turn a row of filters is fetched."""


class Products(NamedTuple):
    """Parameters that the kernel's code depends on.

    Attributes:
        width: Floats of a vector.
        vectors: Vectors of a panel of filters.
        pixel_bytes: From one pixel that is noted to the next.
        limited: Whether outputs have limits.
        adds: Whether another image is added to them.
    """

    width: int
    vectors: int
    pixel_bytes: int
    limited: bool
    adds: bool

    @property
    def most(self) -> int:
        """Pixels whose sums are computed at a time."""
        return ROWS[self.width][self.vectors]

    def __str__(self) -> str:
        size = f"{self.vectors}x{self.width}_{self.pixel_bytes}"
        return size + "_limited" * self.limited + "_adding" * self.adds


class Later(NamedTuple):
    """Prefetch of the rows that the next block reads first.

    Attributes:
        at: Address of the next line.
        edge: Where the rows of one group of channels end.
        step: Bytes that are fetched in a turn.
        part: Bytes of the rows of a group.
        whole: Bytes from one group to the next.
    """

    at: Word
    edge: Word
    step: Word
    part: Word
    whole: Word

    def after(self, at: Word) -> list[Word]:
        """Return ``at`` and ``edge`` when all up to an address has been fetched."""
        over = at >= self.edge
        at = at + choose(over, self.whole - self.part, 0)
        return [at, self.edge + choose(over, self.whole, 0)]


@cache
def multiplying(of: Products) -> int:
    """Return the address of the kernel that multiplies the pixels of a block with all filters.

    Its arguments are those of :func:`_write_all`.
    """
    name = f"separable_pixels{of}"
    count = 4 + len(Later._fields)

    def module(one: Any) -> None:
        k = Kernel(one, name, count, of.width, exported=True)
        _, noted, pixels, target, *later = k.arguments
        _write_all(k, of, noted, pixels, target, Later(*later))
        k.done()

    return compiled(name, module, name)[name]


@cache
def multiplying_few(of: Products, count: int) -> int:
    """Return the address of the kernel that multiplies so few pixels with a panel of filters.

    Its arguments are the address of the fields, the panel, and the addresses of the first pixel
    that is noted and of the first output.
    """
    name = f"separable_pixels{of}_of{count}"

    def module(one: Any) -> None:
        k = Kernel(one, name, 4, of.width, exported=True)
        _, panel, noted, output = k.arguments
        _multiply(k, SeparableFields.read(k), of, panel, noted, output, count, None)
        k.done()

    return compiled(name, module, name)[name]


def _write_all(
    k: Kernel, of: Products, noted: Word, pixels: Word, target: Word, later: Later
) -> None:
    """Write the products of a block and all panels of filters.

    Args:
        k: The kernel, whose first argument is the address of the fields.
        of: What its code depends on.
        noted: Address of the first.
        pixels: How many there are.
        target: Address of the first output pixel.
        later: What is fetched for the next block.
    """
    s, most = SeparableFields.read(k), of.most
    rest = pixels % most
    whole, of_rest = pixels - rest, k.load_word(s.rests + rest * INT)
    with k.loop(s.panels, words=[later.at, later.edge]) as panel:
        with k.loop(whole, 0, most, words=panel.words) as few:
            output = target + few.i * s.y_stride * FLOAT
            here = noted + few.i * of.pixel_bytes
            step = choose(panel.i < s.quiet, 0, later.step)
            now = later._replace(at=few.words[0], edge=few.words[1], step=step)
            few.words = _multiply(k, s, of, panel.i, here, output, most, now)
        with k.when(rest > 0):
            here, output = noted + whole * of.pixel_bytes, target + whole * s.y_stride * FLOAT
            k.call_at(of_rest, k.arguments[0], panel.i, here, output)
        panel.words = few.words


def _multiply(
    k: Kernel,
    s: SeparableFields,
    of: Products,
    panel: Word,
    pixels: Word,
    output: Word,
    count: int,
    later: Later | None,
) -> list[Word]:
    """Write the products of some pixels that were noted and one panel of filters.

    Args:
        k: The kernel.
        s: Its fields.
        of: What its code depends on.
        panel: The panel.
        pixels: Address of the pixels.
        output: Address of the first output pixel.
        count: How many pixels.
        later: What is fetched for the next block; None for nothing.

    Returns:
        Where the next line of that is, and the edge; nothing where there is none.
    """
    panel_bytes = of.vectors * k.vector_bytes
    first, place = (k.load_word(at + panel * INT) for at in (s.panel_table, s.place_table))
    begin = s.filters + panel * s.channels * panel_bytes
    middle = begin + s.channels // UNROLLED * (UNROLLED * panel_bytes)
    end = begin + s.channels * panel_bytes
    following = choose(panel + 1 < s.panels, end, s.filters)  # the first will be the next
    next_panel = following - begin

    def turns(
        sums: list[Vector], words: list[Word], start: Word, stop: Word, unrolled: int
    ) -> tuple[list[Vector], list[Word]]:
        with k.loop(stop, start, panel_bytes * unrolled, vectors=sums, words=words) as loop:
            totals, [here, *ahead] = loop.vectors, loop.words
            for one in ahead:
                for line in range(LINES):
                    k.prefetch(one + LINE * FLOAT * line, cache=2)
            for turn in range(unrolled):
                filters = loop.i + panel_bytes * turn
                places = [filters + k.vector_bytes * j for j in range(of.vectors)]
                for one in places:
                    k.prefetch(one + panel_bytes * AHEAD)
                    k.prefetch(one + next_panel, cache=2)
                columns = [k.load(one) for one in places]
                numbers = [here + (of.pixel_bytes * i + FLOAT * turn) for i in range(count)]
                multiply(k, totals, numbers, columns)
            moved = [one + later.step for one in ahead] if later else []
            loop.words = [here + FLOAT * unrolled, *moved]
        return loop.vectors, loop.words

    none, words = [k.constant(0.0)] * (count * of.vectors), [pixels, *([later.at] if later else [])]
    sums, words = turns(none, words, begin, middle, UNROLLED)
    sums, words = turns(sums, words, middle, end, 1)
    then = rectifying(k, s.rectifier, None, limited=of.limited)
    offsets = [k.load(s.offsets + (first + s.next_vector * j) * FLOAT) for j in range(of.vectors)]
    added = s.other - s.y  # both lie alike
    with_pixel = [(i, j) for i in range(count) for j in range(of.vectors)]
    for (i, j), total in zip(with_pixel, sums, strict=True):
        target = output + (s.y_stride * i + place + s.y_vector_stride * j) * FLOAT
        result = total + offsets[j]
        k.store(then(result + k.load(target + added) if of.adds else result), target)
    return later.after(words[1]) if later else []
