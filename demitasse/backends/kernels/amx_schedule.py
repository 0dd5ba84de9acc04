"""Schedules of convolutions in bfloat16 by AMX: steps of products, strips, and the buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels import amx
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language.values import HALF, INT, LINE_BYTES
from demitasse.backends.kernels.tuning import ConvSchedule, Tuning
from demitasse.backends.step import decline_if
from demitasse.backends.windows import ConvGeometry

STRIP_BYTES = 768 << 10
"""Bytes of a strip at most; the second cache holds it, and a panel of filters."""

SAME_SETS = 512
"""Distances of pixels that are a multiple of so many bytes: their channels compete for the same
lines of the cache."""

PLANES = 2, 4
"""Channels of a pixel in the buffer that may be read from images in C order."""

AXES = 2
"""Spatial axes of images."""

MOST_GROUPS = 32
"""Groups at most of products in bfloat16."""

STEP_COST, WRITE_COST = 70, 300
"""Cycles of a step of products, and to write the sums of all steps."""

READ_COST = 0.08
"""Cycles to read a byte of filters from the shared cache."""

PIXEL_COST, COPY_COST = 8, 4
"""Cycles to copy a pixel, and for each 32 of its channels."""


@dataclass(frozen=True)
class Steps:
    """Division of a window's channels into steps of products.

    Attributes:
        folded: Whether the channels of all pixels of a window's row are one row of channels.
        pixel: Channels from one pixel of the buffer to the next.
        width: Channels of a step.
        each: Steps of a tap, or of a window's row if ``folded``.
        taps: Number of taps or rows.
    """

    folded: bool
    pixel: int
    width: int
    each: int
    taps: int

    @property
    def count(self) -> int:
        """Number of steps."""
        return self.taps * self.each

    def fills(self, channels: int) -> bool:
        """Return whether so many channels of a pixel fill its steps."""
        return self.each * self.width == channels


def _divided(channels: int) -> tuple[int, int]:
    """Return the least number of equal steps of an even number of channels, and the channels.

    They are whole tiles, zeros behind the channels included, if there is no such number.
    """
    fewest = math.ceil(channels / amx.WIDTH)
    for count in range(fewest, 2 * fewest):
        width, rest = divmod(channels, count)
        if not rest and width % 2 == 0 and width <= amx.WIDTH:
            return count, width
    return fewest, amx.WIDTH


def plan_steps(op: ops.Conv, channels: int) -> Steps:
    """Return the division of a window's channels that takes the fewest steps."""
    rows, columns = op.kernel
    even = channels + channels % 2
    each, width = _divided(even)
    own = each * width
    line = amx.WIDTH * (own * HALF % SAME_SETS == 0)
    separate = Steps(False, own + line, width, each, rows * columns)
    if columns == 1 or op.dilation[1] > 1:
        return separate
    each, width = _divided(columns * even)
    folded = Steps(True, even, width, each, rows)
    exact = each * width == columns * even  # else a row would reach into the next pixel
    return folded if exact and folded.count < separate.count else separate


class Division(NamedTuple):
    """Division of a convolution among threads.

    Attributes:
        images: Images of a strip at most.
        rows: Rows of outputs of a strip at most; fewer than all for one image.
        strips: Number of strips.
        filter_parts: In how many parts the panels are divided.
    """

    images: int
    rows: int
    strips: int
    filter_parts: int


class Buffer(NamedTuple):
    """Sizes of a thread's scratch memory.

    Attributes:
        image_bytes: Bytes of the images, and of what is read and written behind them.
        window_bytes: Bytes from one window to the next.
        run_outputs: Outputs that are listed for each run of windows, whole tiles.
        nbytes: Bytes of all.
    """

    image_bytes: int
    window_bytes: int
    run_outputs: int
    nbytes: int


@dataclass(frozen=True)
class AmxSchedule(ConvSchedule):
    """A convolution over two axes. Threads divide strips of outputs, or the filters.

    Attributes:
        buffered: Numbers of pixels of products whose pixels lie in a core's own buffer, in
            bfloat16, with zeros behind the channels; none for images.
    """

    kernel, rounds = "amx", True

    buffered: tuple[int, ...] = ()

    @property
    def channels(self) -> int:
        """Channels of the input of a group."""
        return self.x[1] // self.op.group

    @property
    def filters(self) -> int:
        """Filters of a group."""
        return self.y[1] // self.op.group

    @property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        return min(amx.MOST_VECTORS, math.ceil(self.filters / self.width))

    @property
    def panel(self) -> int:
        """Filters of a panel."""
        return self.vectors * self.width

    @property
    def panels(self) -> int:
        """Panels of a group, the last of which may be padded."""
        return math.ceil(self.filters / self.panel)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.steps.count * self.vectors * amx.TILE_BYTES

    @cached_property
    def steps(self) -> Steps:
        """The steps of the products."""
        return plan_steps(self.op, self.channels)

    @property
    def by_row(self) -> bool:
        """True if each row of outputs is a run of its own, as windows are a stride apart."""
        return self.steps.folded and set(self.op.stride) != {1}

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first tap to the last."""
        op = self.op
        return op.dilation[0] * (op.kernel[0] - 1), op.dilation[1] * (op.kernel[1] - 1)

    @property
    def phases(self) -> tuple[int, int]:
        """Rows and columns of the strides that taps read; each has a part of the buffer."""
        if self.by_row:
            return 1, 1
        (down, right), reach = self.op.stride, self.reach
        return min(down, reach[0] + 1), min(right, reach[1] + 1)

    @property
    def columns(self) -> int:
        """Pixels of a row of the buffer."""
        step, width = self.op.stride[1], self.y[3]
        if self.by_row:
            return (width - 1) * step + self.reach[1] + 1
        return width + self.reach[1] // step

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the buffer."""
        return self.columns * self.steps.pixel * HALF

    @property
    def row_counts(self) -> tuple[int, int]:
        """Rows of a phase for each row of outputs, and how many more it has."""
        step = self.op.stride[0]
        return (step, self.reach[0] + 1 - step) if self.by_row else (1, self.reach[0] // step)

    def image_bytes(self, rows: int) -> int:
        """Return the bytes of an image in the buffer, with so many rows of outputs."""
        factor, addend = self.row_counts
        return math.prod(self.phases) * (rows * factor + addend) * self.row_bytes

    def run(self, rows: int) -> int:
        """Return the windows of a run, of strips of so many rows."""
        return self.y[3] if self.by_row else (rows - 1) * self.columns + self.y[3]

    def buffer(self, one: Division, rows: int) -> Buffer:
        """Return the sizes of the scratch memory for tiles of so many ``rows``."""
        window_bytes = self.steps.pixel * HALF * (self.op.stride[1] if self.by_row else 1)
        images = one.images * self.image_bytes(one.rows) + rows * window_bytes + 2 * LINE_BYTES
        images = math.ceil(images / LINE_BYTES) * LINE_BYTES
        outputs = math.ceil(self.run(one.rows) / rows) * rows
        runs = one.images * (one.rows if self.by_row else 1)
        listed = math.ceil(runs * outputs * INT / LINE_BYTES) * LINE_BYTES
        return Buffer(images, window_bytes, outputs, images + listed)

    def step_offsets(self, rows: int) -> np.ndarray:
        """Return the bytes from a window to the channels of each step."""
        steps, op = self.steps, self.op
        (down, right), gaps = op.stride, op.dilation
        step_offsets = []
        for tap in np.ndindex(op.kernel[0], 1 if steps.folded else op.kernel[1]):
            row, column = (at * gap for at, gap in zip(tap, gaps, strict=True))
            phase = 0
            if not self.by_row:
                phase = row % down * self.phases[1] + column % right
                row, column = row // down, column // right
            plane = self.image_bytes(rows) // math.prod(self.phases)
            at = phase * plane + row * self.row_bytes + column * steps.pixel * HALF
            step_offsets += [at + i * steps.width * HALF for i in range(steps.each)]
        return np.array(step_offsets, np.int64)

    @property
    def pixels(self) -> int:
        """Pixels of all outputs."""
        return self.y[0] * math.prod(self.y[2:])

    @property
    def is_pointwise(self) -> bool:
        """True if windows are pixels that follow each other."""
        return ConvGeometry.of(self.op).window.is_pointwise

    def reads_pixels(self, x: Images) -> bool:
        """Return whether tiles are read from the images themselves."""
        whole = self.steps.fills(self.channels) or bool(self.buffered)
        return self.is_pointwise and x.bf16 and x.is_rows and whole

    @property
    def reads_planes(self) -> bool:
        """True if the kernel reads images in C order."""
        return self.steps.folded and self.steps.pixel in PLANES and self.op.group == 1

    def division(self, *, reads: bool) -> Division:
        """Return the division of about equal work that takes the least time."""
        if self.buffered:
            return Division(1, 1, 1, 1)
        return min(self._divisions(reads=reads), key=partial(self._cost, reads=reads))

    def _divisions(self, *, reads: bool) -> Iterator[Division]:
        n, _, height, width = self.y
        threads = self.tuning.threads
        parts = range(1, min(threads, self.panels) + 1)
        if reads:
            pixels = n * height * width
            fewest = math.ceil(pixels * self.channels * HALF / STRIP_BYTES)
            for strips in range(fewest, min(fewest + threads, pixels) + 1):
                yield from (Division(1, 1, strips, by) for by in parts)
            return
        images = STRIP_BYTES // self.image_bytes(height)
        fewest = 1
        if not images:
            fitting = (rows for rows in range(1, height) if self.image_bytes(rows) <= STRIP_BYTES)
            fewest = math.ceil(height / max(fitting, default=1))
        for count in range(fewest, min(fewest + threads, height) + 1):
            rows = math.ceil(height / count)
            for each in {1, min(images, math.ceil(n / threads)), min(images, n)}:
                if each == 1 or (each > 1 == count):
                    strips = math.ceil(n / each) * math.ceil(height / rows)
                    yield from (Division(each, rows, strips, by) for by in parts)

    def _cost(self, one: Division, *, reads: bool) -> float:
        """Return about how many cycles the thread with the most work takes."""
        n, _, height, width = self.y
        windows, pixels = n * height * width / one.strips, 0
        if not reads:
            windows = one.images * self.run(one.rows) * (one.rows if self.by_row else 1)
            pixels = one.images * self.image_bytes(one.rows) // (self.steps.pixel * HALF)
        panels = math.ceil(self.panels / one.filter_parts)
        tiles = math.ceil(windows / amx.MOST_ROWS)
        product = panels * tiles * (self.steps.count * STEP_COST + WRITE_COST)
        filters = panels * self.panel_bytes * READ_COST
        copied = pixels * (PIXEL_COST + self.steps.each * COPY_COST)
        turns = math.ceil(one.strips * self.op.group * one.filter_parts / self.tuning.threads)
        return turns * (product + filters + copied)


def plan_amx(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> AmxSchedule:
    """Return the schedule of a convolution; shapes are (N, C, H, W).

    Raises:
        Declined: It is unsupported.
    """
    decline_if(not tuning.amx, "no products of tiles")
    fits = len(op.kernel) == AXES and op.group <= MOST_GROUPS
    decline_if(not fits, f"tiles are convolved over {AXES} axes, in up to {MOST_GROUPS} groups")
    schedule = AmxSchedule(op, x, y, tuning)
    message = f"{schedule.filters} filters of a group; a tile has {amx.HEIGHT}"
    decline_if(schedule.filters < amx.HEIGHT, message)
    return schedule


class Phase(NamedTuple):
    """Pixels of the input that are a stride apart; their gradients are a convolution.

    Attributes:
        schedule: The convolution, from the gradients of the outputs.
        first: Row and column of the first pixel.
        taps: Rows and columns of the taps that reach the pixels, in the convolution's order.
    """

    schedule: AmxSchedule
    first: tuple[int, int]
    taps: tuple[range, range]


def plan_phases(schedule: AmxSchedule) -> list[Phase]:
    """Return the phases of the gradient of the input.

    Raises:
        Declined: No tap reaches some pixels, taps are dilated, or channels are few.
    """
    op, (n, channels, *size) = schedule.op, schedule.x
    whole = all(taps >= step for taps, step in zip(op.kernel, op.stride, strict=True))
    fits = whole and set(op.dilation) == {1} and schedule.channels >= amx.HEIGHT
    decline_if(not fits, "tiles give gradients of dense windows without gaps, of many channels")
    phases = []
    for first in np.ndindex(*(min(step, end) for step, end in zip(op.stride, size, strict=True))):
        axes = list(zip(first, op.pad, op.stride, op.kernel, strict=True))
        reached = [range((at + pad) % step, taps, step) for at, pad, step, taps in axes]
        pads = [
            (taps[-1] - at - pad) // step
            for taps, (at, pad, step, _) in zip(reached, axes, strict=True)
        ]
        ends = zip(size, first, op.stride, strict=True)
        y = (n, channels, *(math.ceil((end - at) / step) for end, at, step in ends))
        turned = ops.Conv(
            dtype=op.dtype, bottom=schedule.y, top=y, axis=1, kernel=tuple(map(len, reached)),
            stride=(1, 1), pad=tuple(pads), dilation=(1, 1), group=op.group, bias=op.bias,
        )  # fmt: skip
        of_phase = AmxSchedule(turned, schedule.y, y, schedule.tuning)
        down, right = (taps[::-1] for taps in reached)
        phases.append(Phase(of_phase, (first[0], first[1]), (down, right)))
    return phases


def plan_amx_product(rows: int, length: int, outputs: int, tuning: Tuning) -> AmxSchedule:
    """Return the schedule of a product: rows are those of an image of one column.

    Raises:
        Declined: It is unsupported.
    """
    x, y = (1, length, rows, 1), (1, outputs, rows, 1)
    one, none = (1, 1), (0, 0)
    op = ops.Conv(
        dtype="float32", bottom=x, top=y, axis=1, kernel=one, stride=one, pad=none, dilation=one,
        group=1, bias=True,
    )  # fmt: skip
    return plan_amx(op, x, y, tuning)
