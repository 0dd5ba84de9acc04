"""A depthwise convolution and the pointwise one behind it, each perhaps with a rectifier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise.convolution import (
    DepthwiseFields,
    DepthwiseOperands,
    next_group,
    write_strip,
)
from demitasse.backends.kernels.depthwise.windows import Shape
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import compiled
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.structs import EACH_CALL, Arguments
from demitasse.backends.kernels.language.words import FLOAT, Word, choose, chunk, minimum
from demitasse.backends.kernels.products.panels import fill_panels
from demitasse.backends.kernels.rectifier import NOTHING, Rectifier
from demitasse.backends.kernels.separable.blocks import UNROLLED, Blocks
from demitasse.backends.kernels.separable.fields import SeparableFields
from demitasse.backends.kernels.separable.multiply import (
    Later,
    Products,
    multiplying,
    multiplying_few,
)

__all__ = ["SeparableConvolution"]


@cache
def _kernel(width: int, shape: Shape, *, pairs: bool, in_blocks: bool) -> int:
    """Return the address of the kernel.

    Args:
        width: Floats of a vector.
        shape: The windows of the depthwise convolution.
        pairs: Whether two rows of outputs are computed at a time.
        in_blocks: Whether the images lie in blocks of one vector of channels.
    """
    name = f"separable{width}_{shape}" + "_pairs" * pairs + "_blocks" * in_blocks

    def module(of: Any) -> None:
        _write(of, name, width, shape, pairs=pairs, in_blocks=in_blocks)

    return compiled(name, module, name)[name]


def _write(
    module: Any, name: str, width: int, shape: Shape, *, pairs: bool, in_blocks: bool
) -> None:
    k = Kernel(module, name, 1, width, exported=True)
    s = SeparableFields.read(k)
    f = s.depthwise
    thread, threads = k.thread()
    noted = f.y.at + thread * s.scratch_bytes
    low, high = chunk(s.parts, thread, threads)  # one each, unless there are fewer threads
    with k.loop(high, low) as part, k.loop(s.blocks) as block:
        begin, end = chunk(f.images * f.y.rows, part.i, s.parts)
        first, behind = (begin + place for place in chunk(end - begin, block.i, s.blocks))
        with k.loop(f.groups) as group:
            _note_rows(k, f, shape, group.i, first, behind, noted, pairs=pairs, in_blocks=in_blocks)
        pixels = (behind - first) * f.y.columns
        target = s.y + first * f.y.columns * s.y_stride * FLOAT
        later = _later(k, f, s, behind, end, behind - first)
        k.call_at(s.multiply, k.arguments[0], noted, pixels, target, *later)
    k.done()


def _note_rows(
    k: Kernel,
    f: DepthwiseFields,
    shape: Shape,
    group: Word,
    first: Word,
    behind: Word,
    noted: Word,
    *,
    pairs: bool,
    in_blocks: bool,
) -> None:
    """Write the depthwise outputs of a block.

    Args:
        k: The kernel.
        f: Fields of the depthwise convolution.
        shape: Its windows.
        group: A group of channels.
        first: The first row, of those of all images.
        behind: The one behind the last.
        noted: Address of the first output.
        pairs: Whether two rows are computed at a time where they are of one image: both see most of
            what is read.
        in_blocks: Whether the images lie in blocks of one vector of channels.
    """
    output_bytes = f.y.column_stride * FLOAT
    line_bytes = f.y.columns * output_bytes

    def rows(row: Word, lines: Sequence[Word | int]) -> None:
        output = noted + (row - first) * line_bytes
        write_strip(k, f, shape, group, row, output, output_bytes, lines, in_blocks=in_blocks)

    with k.loop(behind, first, 2 if pairs else 1) as turn:
        last = turn.i + 1
        if pairs:
            both = (turn.i + 1 < behind) & (turn.i % f.y.rows + 1 < f.y.rows)
            with k.when(both):
                rows(turn.i, [0, line_bytes])
            last = choose(both, turn.i, minimum(turn.i + 2, behind))
        with k.loop(last, turn.i) as row:
            rows(row.i, [0])


def _later(
    k: Kernel, f: DepthwiseFields, s: SeparableFields, row: Word, end: Word, rows: Word
) -> Later:
    """Return what is fetched while a block is multiplied.

    Args:
        k: The kernel.
        f: Fields of the depthwise convolution.
        s: All fields.
        row: The first row of outputs of the next block, of those of all images.
        end: Where the rows of this part end.
        rows: Rows of this block; the next one has about as many.
    """
    image, line = row // f.y.rows, row % f.y.rows
    row_bytes = f.x.row_stride * FLOAT
    top = line * f.step_down - f.top + s.overlap
    begin = f.x.at + image * f.x.image_stride * FLOAT + top * row_bytes
    part = minimum(rows, end - row) * f.step_down * row_bytes
    times = (s.panels - s.quiet) * (rows * f.y.columns // s.most + 1)
    turns = times * (s.channels // UNROLLED)
    whole = choose(f.groups > 1, next_group(k, f) * FLOAT, part)
    return Later(begin, begin + part, part * f.groups // turns, part, whole)


def _rests(products: Products, blocks: Blocks) -> np.ndarray:
    """Return the kernels of the few pixels that blocks leave, by how many these are."""
    table = np.zeros(blocks.pixels, np.int64)
    for few in blocks.rests:
        table[few] = multiplying_few(products, few)
    return table


class SeparableConvolution:
    """A depthwise convolution and a pointwise one, offsets after each, and perhaps rectifiers.

    Args:
        blocks: The convolutions.
        x: The input.
        y: The output, as ``blocks`` may write it.
        then: What becomes of the sums of the first, and of the second.
        adds: Whether another image is added to those of the second before.

    Attributes:
        scratch_size: Elements of scratch memory that a call takes.
        depthwise: The operands of the first convolution, which take its weights.
        filters: The filters of each panel of the second, channel after channel.
            Shape: (panels, C, filters of a panel).

    Raises:
        ValueError: Channels are not contiguous, or the output cannot be written so.
    """

    def __init__(
        self,
        blocks: Blocks,
        x: Images,
        y: Images,
        then: tuple[Rectifier, Rectifier] = (NOTHING, NOTHING),
        *,
        adds: bool = False,
    ) -> None:
        self.blocks, strips = blocks, blocks.strips
        if not blocks.writes(y):
            message = (
                f"{y} was given for outputs; give images whose pixels follow evenly, or one in "
                f"blocks of {strips.width} channels"
            )
            raise ValueError(message)
        shape = Shape.of(strips.op, limited=then[0].limited)
        in_blocks = strips.reads_blocks(x)
        self._kernel = _kernel(strips.width, shape, pairs=blocks.pairs, in_blocks=in_blocks)
        self.depthwise = DepthwiseOperands(strips, x, blocks.between, then[0])
        self.scratch_size = strips.tuning.threads * blocks.scratch
        panel = blocks.vectors * strips.width
        self.filters = aligned(len(blocks.panels) * blocks.channels * panel).reshape(
            -1, blocks.channels, panel
        )
        pixel_bytes = blocks.between.column_stride * FLOAT
        products = Products(strips.width, blocks.vectors, pixel_bytes, then[1].limited, adds)
        self._arguments = Arguments(
            SeparableFields.values(
                depthwise=self.depthwise.values,
                y=EACH_CALL,
                y_stride=y.column_stride,
                y_vector_stride=blocks.next_vector if y.block == blocks.y[1] else y.block_stride,
                channels=blocks.channels,
                filters=self.filters,
                panels=len(blocks.panels),
                quiet=blocks.quiet,
                panel_table=np.array(blocks.panels, np.int64),
                place_table=np.array([y.place(at) for at in blocks.panels], np.int64),
                next_vector=blocks.next_vector,
                offsets=EACH_CALL,
                other=EACH_CALL if adds else None,
                rectifier=then[1].numbers(),
                most=products.most,
                multiply=multiplying(products),
                rests=_rests(products, blocks),
                scratch_bytes=blocks.scratch * FLOAT,
                parts=strips.tuning.threads,
                blocks=blocks.count,
                overlap=(strips.op.kernel[0] - 1) * strips.op.dilation[0] + 1 - strips.op.stride[0],
            )
        )

    def update(self, weights: np.ndarray) -> None:
        """Take new weights of the pointwise convolution, in C order."""
        blocks, width = self.blocks, self.blocks.strips.width
        for vector in range(blocks.vectors):
            firsts = [first + vector * blocks.next_vector for first in blocks.panels]
            part = self.filters[:, :, vector * width : (vector + 1) * width]
            fill_panels(part, weights, firsts)

    @property
    def filters_nbytes(self) -> int:
        """Bytes of the filters that it holds, of both convolutions."""
        return self.filters.nbytes + self.depthwise.filters.nbytes

    def __call__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        added: tuple[np.ndarray, ...],
        scratch: np.ndarray,
    ) -> None:
        """Convolve.

        Args:
            source: The images, in the memory that ``x`` describes.
            target: The output, in the memory that ``y`` describes.
            added: One offset for each channel of the first convolution's output, and of the
                second's; and the other image if there is one, in a memory like that of the output,
                which is never the same.
            scratch: Memory for ``scratch_size`` elements.

        Raises:
            TypeError: An image is given where none is added, or none where one is.
        """
        names = "depthwise.offsets", "offsets", "other"
        each = {
            "depthwise.x.at": source,
            "depthwise.y.at": scratch,
            "y": target,
            **dict(zip(names, added, strict=False)),
        }
        self._arguments.run(self._kernel, self.blocks.strips.tuning.threads, each)

    @property
    def code(self) -> str:
        """Name of what runs."""
        return self.blocks.code
