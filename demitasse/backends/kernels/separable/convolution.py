"""Separable convolution: a depthwise convolution and a 1x1 convolution in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise.convolution import (
    DepthwiseFields,
    DepthwiseOperands,
    Shape,
    write_rows,
)
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled, structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    Vector,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.products import ROWS, fill_panels, multiply
from demitasse.backends.kernels.separable import LINE, LINES, UNROLLED, SeparableSchedule
from demitasse.backends.storage import narrowed


class SeparableFields(structs.Struct):
    """A depthwise convolution and a pointwise one."""

    depthwise: DepthwiseFields
    """The first; its output is the scratch memory."""
    y: structs.Output
    y_stride: Word
    """Elements from one pixel of the output to the next."""
    terms: Word
    """Terms of a pixel's sum: channels between the two, or pairs of channels in bfloat16."""
    filters: structs.Address
    """Filters of the second: for each panel, channel after channel."""
    panels: Word
    quiet: Word
    """First panels during which nothing of the next block is prefetched."""
    panel_table: structs.Address
    """The first filter of each panel."""
    next_vector: Word
    """Filters from a panel's first vector to its second; fewer than a vector where there are fewer
    than two vectors of filters, some of which both hold then."""
    offsets: structs.Address
    """One offset for each channel of the output."""
    other: structs.OptionalAddress
    """An image that is added, which lies as the output does."""
    rectifier: structs.Address
    """Numbers of the epilogue: the slope of negative sums, or the limits."""
    most: Word
    """Pixels that are multiplied at a time."""
    multiply: Word
    """The kernel that multiplies the pixels of a block with all filters."""
    remainders: structs.Address
    """For each number of pixels that a block leaves, the kernel that multiplies so few with a
    panel."""
    scratch_bytes: Word
    """Bytes of scratch memory of each thread."""
    parts: Word
    """Parts of the rows of outputs of all images."""
    blocks: Word
    """Blocks of each part."""
    overlap: Word
    """Rows of the input that two consecutive rows of outputs share."""


@SeparableFields.kernel("separable")
def _kernel(k: Kernel, s: SeparableFields, shape: Shape, *, pairs: bool, bf16: bool) -> None:
    """Write the kernel; with ``pairs``, two rows of outputs are computed at a time."""
    f = s.depthwise
    thread, threads = k.thread()
    noted = f.y.at + thread * s.scratch_bytes
    low, high = chunk(s.parts, thread, threads)  # one each, unless there are fewer threads
    with k.loop(high, low) as part, k.loop(s.blocks) as block:
        begin, end = chunk(f.images * f.y.rows, part.i, s.parts)
        first, behind = (begin + place for place in chunk(end - begin, block.i, s.blocks))
        _note_rows(k, f, shape, first, behind, noted, pairs=pairs)
        pixels = (behind - first) * f.y.columns
        if bf16:
            _round_pixels(k, s, noted, pixels)
        target = s.y + first * f.y.columns * s.y_stride * FLOAT
        prefetch = _plan_prefetch(f, s, behind, end, behind - first)
        k.call_at(s.multiply, k.arguments[0], noted, pixels, target, *prefetch)


def _note_rows(
    k: Kernel, f: DepthwiseFields, shape: Shape, first: Word, behind: Word, noted: Word, *,
    pairs: bool,
) -> None:  # fmt: skip
    """Write the depthwise outputs of a block, for the rows from ``first`` to ``behind``.

    With ``pairs``, two rows of one image are computed at a time: both see most of what is read.
    """
    line_bytes = f.y.columns * f.y.column_stride * FLOAT

    def rows(number: Word, lines: Sequence[Word | int]) -> None:
        row = f.row(number)._replace(output=noted + (number - first) * line_bytes)
        write_rows(k, f, shape, row, (k.word(0), f.vectors), lines)

    with k.loop(behind, first, 2 if pairs else 1) as step:
        last = step.i + 1
        if pairs:
            both = (step.i + 1 < behind) & (step.i % f.y.rows + 1 < f.y.rows)
            with k.when(both):
                rows(step.i, [0, line_bytes])
            last = choose(both, step.i, minimum(step.i + 2, behind))
        with k.loop(last, step.i) as row:
            rows(row.i, [0])


def _round_pixels(k: Kernel, s: SeparableFields, noted: Word, pixels: Word) -> None:
    """Replace the channels of each pixel by bfloat16, at the pixel's beginning."""
    with k.loop(pixels, words=[noted]) as pixel:
        [at] = pixel.words
        with k.loop(s.terms * 2, 0, k.width) as channel:
            k.store_bfloat(k.load(at + channel.i * FLOAT), at + channel.i * HALF)
        pixel.words = [at + s.depthwise.y.column_stride * FLOAT]


def _plan_prefetch(
    f: DepthwiseFields, s: SeparableFields, row: Word, end: Word, rows: Word
) -> Prefetch:
    """Return what is prefetched while a block is multiplied.

    The next block begins with the given row, and has about as many ``rows``; the part's rows end
    at ``end``.
    """
    row_bytes = f.x.row_stride * FLOAT
    top = row % f.y.rows * f.step_down - f.top + s.overlap
    begin = f.x.row(row // f.y.rows, top)
    part = minimum(rows, end - row) * f.step_down * row_bytes
    times = (s.panels - s.quiet) * (rows * f.y.columns // s.most + 1)
    return Prefetch(begin, part // (times * (s.terms // UNROLLED)))


def _remainders(products: Products, blocks: SeparableSchedule) -> np.ndarray:
    """Return the kernels of the few pixels that blocks leave, by how many these are."""
    table = np.zeros(blocks.pixels, np.int64)
    for few in blocks.remainders:
        table[few] = multiplying_few(products, few)
    return table


class SeparableConvolution:
    """A depthwise convolution and a pointwise one, offsets after each, and perhaps epilogues.

    With ``adds``, another image is added to the sums of the second convolution.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        depthwise: The operands of the first convolution, which take its weights.
        filters: The filters of each panel of the second, channel after channel.
            Shape: (panels, C, filters of a panel), half of C in bfloat16.

    Raises:
        ValueError: Channels are not contiguous, or the output cannot be written so.
    """

    def __init__(
        self,
        blocks: SeparableSchedule,
        x: Images,
        y: Images,
        then: tuple[Rectifier, Rectifier] = (NOTHING, NOTHING),
        *,
        adds: bool = False,
    ) -> None:
        self.blocks, strips = blocks, blocks.strips
        if not y.is_rows:
            message = (
                f"{y} was given for outputs; give images whose pixels follow evenly, with all "
                "channels"
            )
            raise ValueError(message)
        shape = Shape.of(strips, then[0])
        self._kernel = _kernel(strips.width, shape, pairs=blocks.pairs, bf16=blocks.bf16)
        self.depthwise = DepthwiseOperands(strips, x, blocks.between, then[0])
        self.scratch_size = strips.tuning.threads * blocks.scratch
        panel = blocks.vectors * strips.width
        self.filters = aligned(len(blocks.panels) * blocks.terms * panel).reshape(
            -1, blocks.terms, panel
        )
        pixel_bytes = blocks.between.column_stride * FLOAT
        products = Products(
            strips.width, blocks.vectors, pixel_bytes, then[1].limited, then[1].relu, adds,
            blocks.bf16,
        )  # fmt: skip
        self._arguments = structs.Arguments(
            SeparableFields.values(
                depthwise=self.depthwise.values,
                y_stride=y.column_stride,
                terms=blocks.terms,
                filters=self.filters,
                panels=len(blocks.panels),
                quiet=blocks.quiet,
                panel_table=np.array(blocks.panels, np.int64),
                next_vector=blocks.next_vector,
                other=structs.RUNTIME if adds else None,
                rectifier=then[1].numbers(),
                most=products.most,
                multiply=multiplying(products),
                remainders=_remainders(products, blocks),
                scratch_bytes=blocks.scratch * FLOAT,
                parts=strips.tuning.threads,
                blocks=blocks.count,
                overlap=(strips.op.kernel[0] - 1) * strips.op.dilation[0] + 1 - strips.op.stride[0],
            )
        )

    def update(self, weights: np.ndarray) -> None:
        """Take new weights of the pointwise convolution, in C order."""
        blocks, width = self.blocks, self.blocks.strips.width
        if blocks.bf16:
            own = weights[: blocks.y[1] * blocks.channels]
            weights = narrowed(own, "bfloat16").view(np.float32)
        for vector in range(blocks.vectors):
            firsts = [first + vector * blocks.next_vector for first in blocks.panels]
            part = self.filters[:, :, vector * width : (vector + 1) * width]
            fill_panels(part, weights, firsts)

    @property
    def nbytes(self) -> int:
        """Bytes of the filters of both convolutions."""
        return self.filters.nbytes + self.depthwise.filters.nbytes

    def __call__(self, source: np.ndarray, target: np.ndarray, *more: np.ndarray) -> None:
        """Convolve.

        ``more`` are one offset for each channel of the first convolution's output, and of the
        second's; the other image if there is one, in another memory like the output's; and scratch
        memory.

        Raises:
            TypeError: An image is given where none is added, or none where one is.
        """
        *added, scratch = more
        names = "depthwise.offsets", "offsets", "other"
        each = {
            "depthwise.x.at": source,
            "depthwise.y.at": scratch,
            "y": target,
            **dict(zip(names, added, strict=False)),
        }
        self._arguments.run(self._kernel, self.blocks.strips.tuning.threads, each)


AHEAD = 8
"""Prefetch distance, in channels, of a row of filters."""


class Products(NamedTuple):
    """Parameters that the kernel's code depends on; pixels are ``pixel_bytes`` apart."""

    width: int
    vectors: int
    pixel_bytes: int
    limited: bool
    relu: bool
    adds: bool
    bf16: bool

    @property
    def most(self) -> int:
        """Pixels whose sums are computed at a time."""
        return ROWS[self.width][self.vectors]

    def __str__(self) -> str:
        size = f"{self.vectors}x{self.width}_{self.pixel_bytes}"
        size += "_limited" * self.limited + "_relu" * self.relu
        return size + "_adding" * self.adds + "_bf16" * self.bf16


class Prefetch(NamedTuple):
    """Prefetch of the rows that the next block reads first, from an address in steps of bytes."""

    at: Word
    step: Word


@cache
def multiplying(of: Products) -> int:
    """Return the address of the kernel that multiplies the pixels of a block with all filters.

    Its arguments are those of :func:`_write_all`.
    """
    name = f"separable_pixels{of}"
    count = 4 + len(Prefetch._fields)

    def module(one: Any) -> None:
        k = Kernel(one, name, count, of.width, exported=True)
        _, noted, pixels, target, *prefetch = k.arguments
        _write_all(k, of, noted, pixels, target, Prefetch(*prefetch))
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
    k: Kernel, of: Products, noted: Word, pixels: Word, target: Word, prefetch: Prefetch
) -> None:
    """Write the products of a block and all panels of filters."""
    s, most = SeparableFields.read(k), of.most
    rest = pixels % most
    whole, of_rest = pixels - rest, k.load_word(s.remainders + rest * INT)
    with k.loop(s.panels, words=[prefetch.at]) as panel:
        with k.loop(whole, 0, most, words=panel.words) as few:
            output = target + few.i * s.y_stride * FLOAT
            here = noted + few.i * of.pixel_bytes
            step = choose(panel.i < s.quiet, 0, prefetch.step)
            now = Prefetch(few.words[0], step)
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
    prefetch: Prefetch | None,
) -> list[Word]:
    """Write the products of ``count`` noted pixels and one panel of filters.

    Return the next address to prefetch, or nothing without a prefetch.
    """
    panel_bytes = of.vectors * k.vector_bytes
    first = k.load_word(s.panel_table + panel * INT)
    begin = s.filters + panel * s.terms * panel_bytes
    middle = begin + s.terms // UNROLLED * (UNROLLED * panel_bytes)
    end = begin + s.terms * panel_bytes
    following = choose(panel + 1 < s.panels, end, s.filters)  # the first will be the next
    next_panel = following - begin

    def steps(
        sums: list[Vector], words: list[Word], start: Word, stop: Word, unrolled: int
    ) -> tuple[list[Vector], list[Word]]:
        with k.loop(stop, start, panel_bytes * unrolled, vectors=sums, words=words) as loop:
            totals, [here, *ahead] = loop.vectors, loop.words
            for one in ahead:
                for line in range(LINES):
                    k.prefetch(one + LINE * FLOAT * line, cache=2)
            for step in range(unrolled):
                filters = loop.i + panel_bytes * step
                places = [filters + k.vector_bytes * j for j in range(of.vectors)]
                for one in places[:: max(1, LINE // k.width)]:  # each line once
                    k.prefetch(one + panel_bytes * AHEAD)
                    k.prefetch(one + next_panel, cache=2)
                columns = [k.load(one) for one in places]
                numbers = [here + (of.pixel_bytes * i + FLOAT * step) for i in range(count)]
                multiply(k, totals, numbers, columns, bf16=of.bf16)
            moved = [one + prefetch.step for one in ahead] if prefetch else []
            loop.words = [here + FLOAT * unrolled, *moved]
        return loop.vectors, loop.words

    none, words = (
        [k.constant(0.0)] * (count * of.vectors),
        [pixels, *([prefetch.at] if prefetch else [])],
    )
    sums, words = steps(none, words, begin, middle, UNROLLED)
    sums, words = steps(sums, words, middle, end, 1)
    then = rectifying(k, s.rectifier, None, limited=of.limited, relu=of.relu)
    offsets = [k.load(s.offsets + (first + s.next_vector * j) * FLOAT) for j in range(of.vectors)]
    added = s.other - s.y  # both lie alike
    with_pixel = [(i, j) for i in range(count) for j in range(of.vectors)]
    for (i, j), total in zip(with_pixel, sums, strict=True):
        target = output + (s.y_stride * i + first + s.next_vector * j) * FLOAT
        result = total + offsets[j]
        k.store(then(result + k.load(target + added) if of.adds else result), target)
    return words[1:]
