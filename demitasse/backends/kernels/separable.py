"""Separable convolution: a depthwise convolution and a 1x1 convolution in one pass.

A block of depthwise outputs is written to a buffer, which stays in a core's cache. The products of
the block are a call of implicit GEMM's kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.amx_convolution import AmxConvolution, AmxFields
from demitasse.backends.kernels.amx_schedule import AmxSchedule, plan_amx
from demitasse.backends.kernels.depthwise import (
    DepthwiseFields,
    DepthwiseOperands,
    DepthwiseSchedule,
    plan_depthwise,
    write_row,
)
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.igemm import IgemmFields, IgemmSchedule, ImplicitGemm, plan_igemm
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import FLOAT, HALF, LINE_FLOATS, Word, chunk
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.windows import WindowCode
from demitasse.backends.step import decline_if

MOST_CHANNELS = 1024
"""Greatest number of channels between the two."""

LARGER = 2
"""Greatest growth of blocks beyond their best size, where filters that exceed the second cache
are read again for each."""

MOST_FILTERS = 1 << 18
"""Most bytes of filters for each pixel of a thread: each of several threads reads all filters."""

MOST_WASTE = 1.06
"""Greatest load imbalance (maximum over mean) up to which the kernel pays."""


@dataclass(frozen=True)
class SeparableSchedule:
    """A depthwise and the following pointwise convolution. A block is some rows of outputs.

    Attributes:
        depthwise: The depthwise convolution.
        product: The pointwise convolution of whole images.
    """

    depthwise: DepthwiseSchedule
    product: IgemmSchedule | AmxSchedule

    @property
    def channels(self) -> int:
        """Channels between the two."""
        return self.depthwise.x[1]

    @property
    def between(self) -> Images:
        """Layout of the images between the two, of which a buffer has some rows.

        Pixels are an odd number of cache lines apart, so that equal channels of all pixels do not
        compete for the same lines.
        """
        n, channels, height, width = self.depthwise.y
        bf16 = self.depthwise.tuning.rounds
        line = LINE_FLOATS * (1 + bf16)
        pixel = (math.ceil(channels / line) | 1) * line
        row = width * pixel
        return Images((n, channels, height, width), height * row, row, pixel, bf16=bf16)

    @cached_property
    def rows(self) -> list[int]:
        """Rows of each thread."""
        rows, threads = self.depthwise.y[0] * self.depthwise.y[2], self.depthwise.tuning.threads
        return _sizes(rows, threads)

    @cached_property
    def count(self) -> int:
        """Blocks of each thread, each of which fits into a cache."""
        tuning, columns = self.depthwise.tuning, self.depthwise.y[3]
        block_bytes, filters = tuning.buffer_bytes, self.channels * self.product.filters
        if filters * FLOAT > block_bytes:
            block_bytes *= LARGER
        bytes_each = max(self.rows) * columns * self.channels * self.between.element_bytes
        return min(math.ceil(bytes_each / block_bytes), *self.rows)

    @cached_property
    def block_rows(self) -> list[int]:
        """Rows of every block."""
        return [rows for own in self.rows for rows in _sizes(own, self.count)]

    @property
    def code(self) -> str:
        """Name of the code, with the processor's instructions."""
        return f"separable llvm:{self.depthwise.tuning.product_instructions}"


def _sizes(count: int, chunks: int) -> list[int]:
    """Return the sizes of the chunks that kernels divide ``count`` items into."""
    return [count * (i + 1) // chunks - count * i // chunks for i in range(chunks)]


def plan_separable(depthwise: ops.Conv, pointwise: ops.Conv, tuning: Tuning) -> SeparableSchedule:
    """Return the schedule of a depthwise convolution and the following pointwise convolution.

    Raises:
        Declined: They are others, or it would not be faster.
    """
    tuning.require("separable")
    each = depthwise.group == depthwise.bottom[1] == depthwise.top[1]
    decline_if(
        not each or not pointwise.is_pointwise or len(pointwise.kernel) != 2,
        "a depthwise convolution runs as one with windows of one pixel in one group",
    )
    plan = plan_amx if tuning.amx else plan_igemm
    schedule = SeparableSchedule(
        plan_depthwise(depthwise, depthwise.bottom, depthwise.top, tuning),
        plan(pointwise, pointwise.bottom, pointwise.top, tuning),
    )
    channels, filters, size = schedule.channels, schedule.product.filters, depthwise.top[2:]
    decline_if(tuning.bf16 and channels % 2 > 0, "an odd number of channels; bfloat16 has pairs")
    decline_if(
        channels > MOST_CHANNELS or min(channels, filters) < tuning.width or not min(schedule.rows),
        f"images of {size}, {channels} channels to {filters}; separable convolution takes "
        f"a row or more for each thread, up to {MOST_CHANNELS} channels, and {tuning.width} or "
        "more on both sides",
    )
    pixels = schedule.rows[0] * size[1]
    rereads = tuning.threads > 1 and channels * filters * FLOAT > pixels * MOST_FILTERS
    decline_if(
        (rereads or tuning.imbalance(sum(schedule.rows)) > MOST_WASTE)
        and "separable" not in tuning.always,
        f"images of {size} for {tuning.threads} threads; separable convolution pays where the rows "
        "divide well, and each thread has pixels enough for the filters",
    )
    return schedule


class SeparableFields(structs.Struct):
    """A depthwise convolution and a pointwise one."""

    depthwise: DepthwiseFields
    """The first; its output is the threads' buffers."""
    product: IgemmFields
    """The second, of all images; its input is the buffers."""
    multiply: Word
    """The kernel of the second."""
    buffer_bytes: Word
    """Bytes of each thread's buffer."""
    parts: Word
    """Parts of the rows of outputs of all images."""
    blocks: Word
    """Blocks of each part."""
    overlap: Word
    """Rows of the input that two consecutive rows of outputs share."""


class TiledFields(SeparableFields):
    """The same with the product by AMX."""

    product: AmxFields  # type: ignore[assignment]


@SeparableFields.kernel("separable")
def _kernel(k: Kernel, s: SeparableFields, code: WindowCode, y_size: int) -> None:
    _write(k, s, code, y_size, prefetches=True)


@TiledFields.kernel("separable_tiles")
def _tiled_kernel(k: Kernel, s: TiledFields, code: WindowCode, y_size: int, *, fills: bool) -> None:
    _write(k, s, code, y_size, fills=fills)


def _write(
    k: Kernel, s: SeparableFields, code: WindowCode, y_size: int, *, prefetches: bool = False,
    fills: bool = False,
) -> None:  # fmt: skip
    """Write the kernel of outputs of ``y_size`` bytes.

    It ``prefetches`` what the next block reads, or ``fills`` the last tile of a pixel up.
    """
    each, product = s.depthwise, s.product
    thread, threads = k.thread()
    buffer = each.y.at + thread * s.buffer_bytes
    row_bytes, y_row_bytes = each.y.row_stride * code.sizes[1], product.y.row_stride * y_size
    low, high = chunk(s.parts, thread, threads)  # one each, unless there are fewer threads
    with k.loop(high, low) as part, k.loop(s.blocks) as block:
        first, last = chunk(each.x.images * each.y.rows, part.i, s.parts)
        begin, end = (first + place for place in chunk(last - first, block.i, s.blocks))
        pixels = (end - begin) * each.y.columns
        if fills:
            _fill_pixels(k, each, buffer, pixels)
        with k.loop(end, begin, words=[buffer]) as row:
            image, line = row.i // each.y.rows, row.i % each.y.rows
            write_row(k, each, code, image, line, (k.word(0), each.vectors), row.words[0])
            row.words = [row.words[0] + row_bytes]
        changes = {
            "y.images": k.word(1),
            "x.at": buffer,
            "y.at": product.y.at + begin * y_row_bytes,
            "y.rows": end - begin,
            "added": product.added + begin * y_row_bytes,
        }
        if prefetches:
            unseen = end % each.y.rows * each.step_down - each.top + s.overlap
            changes["ahead"] = each.x.row(end // each.y.rows, unseen, code.sizes[0])
        k.call_at(s.multiply, product.store(k, changes), 0, 1)


def _fill_pixels(k: Kernel, each: DepthwiseFields, buffer: Word, pixels: Word) -> None:
    """Write zeros behind the channels of each pixel, up to a tile of them.

    More of them may follow, in the place of the next pixel's channels, which are written later.
    """
    with k.loop(pixels, words=[buffer]) as pixel:
        [at] = pixel.words
        k.store(k.constant(0.0), at + each.x.channels * HALF)
        pixel.words = [at + each.y.column_stride * HALF]


class SeparableConvolution:
    """A depthwise convolution and a pointwise one, offsets after each, and perhaps epilogues.

    With ``adds``, another image is added to the sums of the second convolution.

    Attributes:
        scratch_size: Elements of scratch memory for a call.
        depthwise: The operands of the first convolution, which take its weights.
        filters: The filters of the second, in implicit GEMM's panels.

    Raises:
        ValueError: Channels are not contiguous, or the output cannot be written so.
    """

    def __init__(
        self, schedule: SeparableSchedule, x: Images, y: Images,
        then: tuple[Rectifier, Rectifier] = (NOTHING, NOTHING), *, adds: bool = False,
    ) -> None:  # fmt: skip
        self.schedule, self._adds, first = schedule, adds, schedule.depthwise
        if not y.is_rows:
            message = (
                f"{y} was given for outputs; give images whose pixels follow evenly, with all "
                "channels"
            )
            raise ValueError(message)
        tuning, op, between = first.tuning, first.op, schedule.between
        rows = schedule.block_rows
        self.depthwise = DepthwiseOperands(first, x, between, then[0])
        buffered: dict[str, Any] = {
            "tuning": replace(tuning, threads=1),
            "buffered": tuple(rows * first.y[3] for rows in set(rows)),
        }
        code = first.code_with(then[0])._replace(sizes=(x.element_bytes, between.element_bytes))
        fields: type[SeparableFields] = SeparableFields
        self._buffer = max(rows) * between.row_stride * between.element_bytes // FLOAT
        self._product: ImplicitGemm | AmxConvolution
        if isinstance(schedule.product, AmxSchedule):
            product = replace(schedule.product, **buffered)
            self._product = AmxConvolution(product, between, y, then[1], adds=adds)
            whole = product.steps.fills(schedule.channels)
            self._kernel = _tiled_kernel(first.width, code, y.element_bytes, fills=not whole)
            fields = TiledFields
            self._buffer += LINE_FLOATS
            self.filters = self._product.filters
        else:
            self._product = ImplicitGemm(
                replace(schedule.product, **buffered), between, y, then[1], adds=adds,
                ahead_bytes=max(rows) * op.stride[0] * x.row_stride * x.element_bytes,
            )  # fmt: skip
            self._kernel = _kernel(first.width, code, y.element_bytes)
            self.filters = aligned(self._product.size)
        self.scratch_size = tuning.threads * self._buffer
        self._arguments = structs.Arguments(
            fields.values(
                depthwise=self.depthwise.values,
                product=self._product.values,
                multiply=self._product.kernel,
                buffer_bytes=self._buffer * FLOAT,
                parts=tuning.threads,
                blocks=schedule.count,
                overlap=(op.kernel[0] - 1) * op.dilation[0] + 1 - op.stride[0],
            )
        )

    def update(self, weights: np.ndarray) -> None:
        """Take new weights of the pointwise convolution, in C order."""
        if isinstance(self._product, AmxConvolution):
            self._product.update(weights)
            return
        shape = self.schedule.product.filters, self.schedule.channels, 1
        self._product.pack(weights[: math.prod(shape)].reshape(shape), self.filters)

    @property
    def nbytes(self) -> int:
        """Bytes of the filters of both convolutions."""
        return self.filters.nbytes + self.depthwise.nbytes

    def __call__(self, source: np.ndarray, target: np.ndarray, *more: np.ndarray) -> None:
        """Convolve.

        ``more`` are one offset for each channel of the first convolution's output, and of the
        second's; the other image if there is one, in another memory like the output's; and scratch
        memory.

        Raises:
            TypeError: An image is given where none is added, or none where one is.
        """
        before, after, *other, scratch = more
        if self._adds != bool(other):
            message = f"{'an' if other else 'no'} image to add was given; see ``adds``"
            raise TypeError(message)
        each = {
            "depthwise.x.at": source,
            "depthwise.y.at": scratch,
            "product.x.at": scratch,
            "product.y.at": target,
            "product.scratch": scratch,
            "product.filters": self.filters,
            "product.added": other[0] if other else None,
            "depthwise.offsets": before,
            "product.offsets": after,
        }
        self._arguments.run(self._kernel, self.schedule.depthwise.tuning.threads, each)
