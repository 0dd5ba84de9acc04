"""Winograd's convolution: which ones have a kernel, and their schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from demitasse.backends import ops
from demitasse.backends.kernels.language.values import FLOAT, LINE_FLOATS
from demitasse.backends.kernels.products import split_columns
from demitasse.backends.kernels.tuning import FLAT, Depth, TunedKernel, Tuning
from demitasse.backends.kernels.winograd.matrices import (
    MOST_PARTS,
    Filtering,
    filtering,
    has_filtering,
)
from demitasse.backends.step import decline_if

WIDE = 128
"""Elements of a row from which on rows are kept from competing for cache lines."""

SHARING_COST = 7.0
"""Cost of an element that another thread transformed, in operations of the products."""

MOST_DIVIDED = 1 << 24
"""Bytes of filters that are divided into parts, at most; transformed, they take about four times as
many."""

FEWEST_SHARED = 1 << 20
"""Multiplications for which it pays that threads wait for each other twice more."""


class Panel(NamedTuple):
    """Some filters of a part: of a group, or of a phase of the output.

    Attributes:
        first: Index of the first filter in the part.
        start: Elements from the beginning of a position's filters to the panel's.
    """

    part: int
    first: int
    vectors: int
    start: int


@dataclass(frozen=True)
class WinogradSchedule(TunedKernel):
    """The tiles of a batch of images: parts of the input that overlap, parts of the output.

    A row of tiles of one image is a strip, and the strips that are worked on at a time are a block.
    Threads divide the strips: each has its chunk of them, and computes one block after the other
    from input to output. So no core reads what another one wrote, which takes several times as long
    where they do not share a cache. Where the filters are many, all threads share each block: they
    divide its transforms, and then the positions, in successive calls of the kernel.

    A dilated window has pixels of one phase: of every few rows and columns. Phases are images. A
    window of a stride has pixels of all phases. Phases are channels. So are the parts of a large
    window, which see the image from other rows and columns on.

    Attributes:
        images: Phases of the images of the output, which dilated windows share.
        channels: Channels of the input, in all planes of a window, for all filters of a window.
        size, output: Rows and columns of the input and of the output, or of their largest phases.
        filters: Channels of the output; of the input's gradient, in all phases of the strides.
        pad: Zeros above and left of the input.
        margin: Zeros above and left of the output whose phases are channels.
        dilation: Rows and columns from one of a phase to the next.
        computes: The result: the output; the input's gradient, by flipped filters; or the filters'
            gradient.
    """

    filtering: Filtering
    images: int
    channels: int
    size: tuple[int, int]
    filters: int
    groups: int
    pad: tuple[int, int]
    output: tuple[int, int]
    tuning: Tuning
    dilation: tuple[int, int] = (1, 1)
    margin: tuple[int, int] = (0, 0)
    computes: Literal["output", "input", "filters"] = "output"
    depth: Depth = FLAT

    @property
    def code(self) -> str:
        """Name of the code, with the outputs of a tile and the processor's instructions."""
        down, across = self.filtering
        return f"winograd {down.outputs}x{across.outputs} llvm:{self.tuning.instructions}"

    @cached_property
    def positions(self) -> int:
        """Transform positions: products per output tile."""
        return self.filtering.positions

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles of one image."""
        down, across = self.filtering
        return -(-self.output[0] // down.outputs), -(-self.output[1] // across.outputs)

    @cached_property
    def strips(self) -> int:
        """Rows of tiles of all images."""
        return self.images * self.grid[0]

    @cached_property
    def backward(self) -> WinogradSchedule:
        """The convolution that is the gradient of the input."""
        down, across = self.filtering
        pad = (down.window - 1 - self.pad[0], across.window - 1 - self.pad[1])
        depth, windows, margin = self.depth.backward, self.filtering.window, (0, 0)
        if self.filtering.phases > 1:
            pad, margin = (down.taps - 1, across.taps - 1), self.pad
        whole = self.filtering.parts == 1
        of = filtering(windows, self.size, self.filtering.stride, whole=whole)
        return replace(
            self, images=self.images // depth.size * depth.output, filtering=of,
            channels=self.filters * depth.taps * of.parts,
            filters=self.channels // depth.taps // self.filtering.parts,
            size=self.output, pad=pad, margin=margin, output=self.size, computes="input",
            depth=depth,
        )  # fmt: skip

    @cached_property
    def filter_gradient(self) -> WinogradSchedule:
        return replace(self, computes="filters")

    # -- filters -------------------------------------------------------------------------------

    @cached_property
    def phases(self) -> int:
        """Phases of the strides that are channels of the output."""
        return self.filtering.phases if self.computes == "input" else 1

    @cached_property
    def panels(self) -> list[Panel]:
        """Panels of all groups' filters, or of all phases'.

        The filters of a panel lie side by side, channel after channel: products read them from
        beginning to end.
        """
        parts = self.groups * self.phases
        inputs, outputs = self.channels // self.groups, self.filters // parts
        return [
            Panel(part, first, vectors, inputs * (part * self._vectors(outputs) + first))
            for part in range(parts)
            for vectors, first in split_columns(outputs, self.width)
        ]

    @cached_property
    def filter_position_stride(self) -> int:
        """Elements from one position's values of the filters to the next's."""
        outputs = self.filters // self.groups // self.phases
        return odd_lines(self.channels * self.phases * self._vectors(outputs))

    @cached_property
    def filter_size(self) -> int:
        """Elements of the filters at all positions."""
        return self.positions * self.filter_position_stride

    @cached_property
    def shared(self) -> bool:
        """True if all threads work on the same tiles."""
        large = self.filter_size * FLOAT > self.tuning.shared_filter_bytes
        return large or self._uneven

    @cached_property
    def _uneven(self) -> bool:
        """True if a thread would have more strips than others by so much that it costs time.

        This happens for few strips, as of a single image. Threads then divide the positions.
        """
        if self.computes == "filters":
            return False
        products = self.positions * self.strips * self.grid[1] * self.channels * self.filters
        large = products > FEWEST_SHARED * self.groups
        cost = SHARING_COST * (1 / self.channels + 1 / self.filters)
        return large and self.tuning.imbalance(self.strips) > 1 + cost

    # -- tiles ---------------------------------------------------------------------------------

    @cached_property
    def tile_stride(self) -> int:
        """Elements from one tile of the input to the next, at a position."""
        return _apart(self.channels)

    @cached_property
    def sum_stride(self) -> int:
        """Elements from one tile of the output to the next, at a position; the last panel fits."""
        part = self.filters // self.groups // self.phases
        return _apart(self._vectors(self.filters - part + self._vectors(part)))

    @cached_property
    def strip_bytes(self) -> int:
        """Bytes of a strip's transformed input and output."""
        return self.positions * (self.tile_stride + self.sum_stride) * FLOAT * self.grid[1]

    @cached_property
    def chunks(self) -> int:
        """Parts of the strips, each with a stack of its own."""
        return 1 if self.shared else min(self.tuning.threads, self.strips)

    @cached_property
    def blocks(self) -> int:
        """Blocks of a chunk, of equal numbers of strips or one more."""
        tuning = self.tuning
        space = tuning.threads * tuning.shared_stack_bytes if self.shared else tuning.stack_bytes
        most = max(space // self.strip_bytes, -(-tuning.fewest_tiles // self.grid[1]))
        return max(1, round(self.strips / self.chunks / most))

    @cached_property
    def block_strips(self) -> int:
        """Strips of a block at most."""
        return -(-self.strips // (self.chunks * self.blocks))

    @cached_property
    def block_tiles(self) -> list[int]:
        """Numbers of tiles that blocks have."""
        fewest = self.strips // (self.chunks * self.blocks)
        return [strips * self.grid[1] for strips in {fewest, self.block_strips} if strips]

    @cached_property
    def tile_position_stride(self) -> int:
        """Elements from one position's values of the input to the next's."""
        return odd_lines(self.block_strips * self.grid[1] * self.tile_stride)

    @cached_property
    def sum_position_stride(self) -> int:
        """Elements from one position's values of the output to the next's."""
        return odd_lines(self.block_strips * self.grid[1] * self.sum_stride)

    def _vectors(self, count: int) -> int:
        """Return ``count`` rounded up to whole vectors."""
        return -(-count // self.width) * self.width


def odd_lines(count: int) -> int:
    """Return at least ``count`` elements, an odd number of cache lines.

    Transformed values of a tile are written together. Lines whose distance is a power of two
    would compete for a few places in the cache.
    """
    return LINE_FLOATS * (-(-count // LINE_FLOATS) | 1)


def _apart(count: int) -> int:
    """Return how many elements rows of ``count`` are apart, which are read several at once."""
    return count + LINE_FLOATS if count >= WIDE and count % (4 * LINE_FLOATS) == 0 else count


# Costs, in operations of the products of tiles and filters. With vectors wider than 8 floats, the
# overhead is more operations.
TRANSFORM_COST = 28.0
"""Cost of transforming an element of a tile."""

FILTER_COST, TRAINED_FILTER_COST = 30.0, 74.0
"""Cost of an element of a transformed filter: only read, from memory in a net of many weights; or
changing, so that two passes transform the filters and the third sums them."""

START_COST = 5e5
"""Overhead of a pass over direct convolution."""

DEFINITION_COST, FEW_CHANNELS_COST = 1.1, 5.0
"""Cost of an operation of the definition; and that divided by the number of channels is added."""

BF16_COST = 0.75
"""An operation of the definition in bfloat16, as a multiple of one in float32, which is dearer than
measured: filters of tiles are read from farther caches."""


def pays(schedule: WinogradSchedule, pixels: int, *, training: bool) -> bool:
    """Return whether transforms and products cost less than so many outputs by the definition.

    In training, filters change between passes.
    """
    tiles = schedule.images * math.prod(schedule.grid)
    weights = schedule.channels * schedule.filters / schedule.groups
    filter_cost = TRAINED_FILTER_COST if training else FILTER_COST
    tiled = (
        2 * tiles * schedule.positions * weights
        + TRANSFORM_COST * tiles * schedule.positions * (schedule.channels + schedule.filters)
        + filter_cost * schedule.positions * weights
        + schedule.width / 8 * START_COST
    )
    few = min(schedule.channels, schedule.filters) / schedule.groups
    each = (DEFINITION_COST + FEW_CHANNELS_COST / few) * (
        BF16_COST if schedule.tuning.bf16 else 1.0
    )
    of = schedule.filtering
    return tiled < 2 * each * pixels * math.prod(of.window) * weights / of.filters


def plan_winograd(
    op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning, depth: Depth = FLAT, *,
    training: bool,
) -> WinogradSchedule:  # fmt: skip
    """Return the schedule of a Winograd convolution; shapes are (N, C, H, W).

    Raises:
        Declined: The convolution is unsupported, or direct convolution costs less.
    """
    tuning.require("winograd")
    steps = [step if taps > 1 else 1 for step, taps in zip(op.dilation, op.kernel, strict=True)]
    pads = all(
        step and pad % step == 0 and pad // step < taps
        for pad, step, taps in zip(op.pad, steps, op.kernel, strict=True)
    )
    strided = {*op.stride} != {1}
    fits = not strided or {op.group, *steps} == {1}
    size = x[1] * depth.taps * y[1] * math.prod(op.kernel) * FLOAT
    whole = size > MOST_DIVIDED or {op.group, *steps} != {1}
    decline_if(
        not (fits and pads and has_filtering(op.kernel, op.stride, whole=whole)),
        "winograd takes up to 5 rows and columns, or 7, of each phase of a stride, which is 1 for "
        "dilated filters and those of groups, and a padding that the dilation divides; up to "
        f"{MOST_PARTS} parts of as many, of filters of at most {MOST_DIVIDED} bytes",
    )
    (down, across), (rows, columns) = steps, op.stride
    top, left = (op.pad[0], op.pad[1]) if strided else (0, 0)
    output = -(-y[2] // down), -(-y[3] // across)
    decline_if(
        min(x[1], y[1]) < tuning.width,
        f"{x[1]} and {y[1]} channels; winograd takes {tuning.width} or more",
    )
    of = filtering(op.kernel, output, op.stride, whole=whole)
    schedule = WinogradSchedule(
        filtering=of,
        images=y[0] * down * across,
        channels=x[1] * depth.taps * of.filters,
        size=(
            -(-(x[2] + top) // (down * rows)),
            -(-(x[3] + left) // (across * columns)),
        ),
        filters=y[1],
        groups=op.group,
        pad=(op.pad[0] // down, op.pad[1] // across),
        output=output,
        tuning=tuning,
        dilation=(down, across),
        depth=depth,
    )
    decline_if(
        "winograd" not in tuning.always
        and not pays(schedule, y[0] * y[2] * y[3], training=training),
        "winograd would cost more than the definition in this shape",
    )
    return schedule
