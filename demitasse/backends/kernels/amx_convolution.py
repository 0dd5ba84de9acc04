"""Convolution in bfloat16 by AMX: every tap of a window is a product of tiles.

A strip of the images is copied to a buffer, rounded to bfloat16 and with zeros around. Windows of
consecutive outputs then lie at equal distances in the buffer, also from the end of a row to the
next, so a tap of the windows is a tile in place. Outputs between the rows are computed in vain.

Source: E. Georganas et al., *Anatomy of High-Performance Deep Learning Convolutions on SIMD
Architectures*, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import amx
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier, rectifying
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields
from demitasse.backends.kernels.language import structs
from demitasse.backends.kernels.language.kernel import Kernel
from demitasse.backends.kernels.language.values import (
    FLOAT,
    HALF,
    INT,
    LINE_BYTES,
    Word,
    choose,
    chunk,
    minimum,
)
from demitasse.backends.kernels.products import tile_rows
from demitasse.backends.kernels.tuning import TunedKernel, Tuning
from demitasse.backends.step import decline_if
from demitasse.backends.storage import narrowed

STRIP_BYTES = 768 << 10
"""Bytes of a strip at most; the second cache holds it, and a panel of filters."""

NEAR_BYTES = 256 << 10
"""Bytes of filters up to which the second cache holds them."""

SAME_SETS = 512
"""Distances of pixels that are a multiple of so many bytes: their channels compete for the same
lines of the cache."""

AXES = 2
"""Spatial axes of images."""

MOST_GROUPS = 32


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


@dataclass(frozen=True)
class AmxSchedule(TunedKernel):
    """A convolution over two axes. Threads divide strips of outputs, or the filters.

    Attributes:
        op: The convolution.
        x: The images' shape, (N, C, H, W).
        y: The outputs' shape, (N, M, OH, OW).
        buffered: Numbers of pixels of products whose pixels lie in a core's own buffer, in
            bfloat16, with zeros behind the channels; none for images.
    """

    kernel = "amx"

    op: ops.Conv
    x: tuple[int, ...]
    y: tuple[int, ...]
    tuning: Tuning
    buffered: tuple[int, ...] = ()

    @property
    def code(self) -> str:
        return f"{self.kernel} llvm:{self.tuning.product_instructions}"

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

    def places(self, rows: int) -> np.ndarray:
        """Return the bytes from a window to the channels of each step."""
        steps, op = self.steps, self.op
        (down, right), gaps = op.stride, op.dilation
        places = []
        for tap in np.ndindex(op.kernel[0], 1 if steps.folded else op.kernel[1]):
            row, column = (at * gap for at, gap in zip(tap, gaps, strict=True))
            phase = 0
            if not self.by_row:
                phase = row % down * self.phases[1] + column % right
                row, column = row // down, column // right
            plane = self.image_bytes(rows) // math.prod(self.phases)
            at = phase * plane + row * self.row_bytes + column * steps.pixel * HALF
            places += [at + i * steps.width * HALF for i in range(steps.each)]
        return np.array(places, np.int64)

    @property
    def is_pointwise(self) -> bool:
        """True if windows are pixels that follow each other."""
        op = self.op
        return {*op.kernel, *op.stride} == {1} and not any(op.pad)

    def reads_pixels(self, x: Images) -> bool:
        """Return whether tiles are read from the images themselves."""
        whole = self.channels % amx.WIDTH == 0 or bool(self.buffered)
        return self.is_pointwise and x.bf16 and x.is_rows and whole

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


STEP_COST, WRITE_COST = 70, 300
"""Cycles of a step of products, and to write the sums of all steps."""

READ_COST = 0.08
"""Cycles to read a byte of filters from the shared cache."""

PIXEL_COST, COPY_COST = 8, 4
"""Cycles to copy a pixel, and for each 32 of its channels."""


def plan_amx(op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning) -> AmxSchedule:
    """Return the schedule of a convolution; shapes are (N, C, H, W).

    Raises:
        Declined: It is unsupported.
    """
    decline_if(not tuning.amx, "no products of tiles")
    tuning.require("amx")
    decline_if(not op.kernel or op.after is not None, "other pads after the axes than before")
    fits = len(op.kernel) == AXES and op.group <= MOST_GROUPS
    decline_if(not fits, f"tiles are convolved over {AXES} axes, in up to {MOST_GROUPS} groups")
    schedule = AmxSchedule(op, x, y, tuning)
    message = f"{schedule.filters} filters of a group; a tile has {amx.HEIGHT}"
    decline_if(schedule.filters < amx.HEIGHT, message)
    return schedule


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


class AmxFields(structs.Struct):
    """A convolution."""

    x: ImageFields
    """The input; ``y`` is the output. The channels of all groups lie side by side."""
    y: OutputFields
    zeros: structs.Address
    """Zeros in place of a pixel outside."""
    groups: Word
    channels: Word
    """Channels of the input of a group."""
    filters: structs.Address
    filter_count: Word
    """Filters of a group."""
    panels: Word
    """Panels of a group."""
    whole: Word
    """Number of panels without padding."""
    panel_bytes: Word
    steps: Word
    places: structs.Address
    """Bytes from a window to the channels of each step."""
    offsets: structs.Address
    """One offset for each channel of the output."""
    added: structs.OptionalAddress
    """Images that are added before the epilogue, in the layout of the output."""
    rectifier: structs.Address
    """Numbers of the epilogue: slopes of negative sums, one for each channel, or the limits."""
    scratch: structs.Scratch
    scratch_bytes: Word
    """Bytes of scratch memory for each thread: the buffer, and the outputs of its windows."""
    buffer_bytes: Word
    strip_images: Word
    """Images of a strip at most, and rows of their outputs."""
    strip_rows: Word
    row_strips: Word
    """Strips of an image."""
    strips: Word
    filter_parts: Word
    top: Word
    """Rows of zeros above the images, and columns on their left."""
    left: Word
    phases_down: Word
    phases_right: Word
    plane_bytes: Word
    """Bytes of a phase in the buffer."""
    image_bytes: Word
    row_bytes: Word
    pixel_bytes: Word
    columns: Word
    """Pixels of a row in the buffer."""
    row_factor: Word
    """Rows of a phase for each row of outputs, and how many more it has."""
    row_addend: Word
    row_step: Word
    """Rows of the input from one row of a phase to the next, and columns."""
    column_step: Word
    down: Word
    """Rows of the input from one row of outputs to the next."""
    window_bytes: Word
    """Bytes from one window to the next."""
    run_bytes: Word
    """Bytes from one run of an image's windows to the next; 0 if it has one."""
    run_outputs: Word
    """Outputs that are listed for each run."""

    @property
    def pixels(self) -> Word:
        """Pixels of all outputs."""
        return self.y.images * self.y.rows * self.y.columns


class AmxCode(NamedTuple):
    """Properties that the code of the kernel depends on.

    Attributes:
        rows: Rows of a product.
        steps: Channels of a tap or row of a window, and of a step.
        panel: Filters of a panel, and of the last if it has others; 0 if not.
        channels: Channels of the input of a group.
        by_tile: Whether all panels are multiplied with a tile before the next tile; else all tiles
            with a panel.
        reads: Whether tiles are read from the images themselves.
        x_bf16: Whether the images are in bfloat16; the others, the outputs.
        adds: Whether images are added, before limits or ReLU.
    """

    rows: int
    steps: Steps
    panel: tuple[int, int]
    channels: int
    by_tile: bool
    reads: bool
    x_bf16: bool
    y_bf16: bool
    adds: bool
    limited: bool
    relu: bool

    @property
    def rest(self) -> int:
        """Channels of a pixel behind its whole lines."""
        return self.channels % amx.WIDTH

    @property
    def y_bytes(self) -> int:
        """Bytes of an element of the output."""
        return HALF if self.y_bf16 else FLOAT

    @property
    def step_bytes(self) -> int:
        """Bytes of the filters of a step."""
        return math.ceil(self.panel[0] / amx.HEIGHT) * amx.TILE_BYTES

    def __str__(self) -> str:
        flags = [name for name in self._fields[4:] if getattr(self, name)]
        own = 0 if self.reads else self.steps.width * self.steps.each
        some = f"{own}of{self.rest}" + "l" * (self.channels >= amx.WIDTH) + "f" * self.steps.folded
        copied = "" if self.reads else some
        name = f"{self.rows}x{self.steps.width}_{copied}_{self.panel[0]}of{self.panel[1]}"
        return "_".join([name, *flags])


class _Windows(NamedTuple):
    """Windows of a strip, and their outputs.

    Attributes:
        at: Address of the first.
        images: Images, each of ``runs`` of ``length`` windows.
        outputs: Addresses of the outputs, 0 for none; or of the first, where tiles are read from
            the images.
    """

    at: Word
    images: Word
    runs: Word
    length: Word
    outputs: Word


@AmxFields.kernel("amx")
def _kernel(k: Kernel, f: AmxFields, code: AmxCode) -> None:
    amx.configure(k, code.rows, code.steps.width)
    thread, threads = k.thread()
    begin, end = chunk(f.strips * f.groups * f.filter_parts, thread, threads)
    with k.loop(end, begin) as part:
        of_strip = f.groups * f.filter_parts
        strip, place = part.i // of_strip, part.i % of_strip
        group = place // f.filter_parts
        panels = chunk(f.panels, place % f.filter_parts, f.filter_parts)
        if code.reads:
            windows = _pixels(k, f, strip, group, code)
        else:
            windows = _copied(k, f, strip, group, code, f.scratch + thread * f.scratch_bytes)
        _multiply(k, f, code, windows, group, panels)
    amx.release(k)


def _pixels(k: Kernel, f: AmxFields, strip: Word, group: Word, code: AmxCode) -> _Windows:
    """Return the pixels of a strip, which are windows, in the images themselves."""
    begin, end = chunk(f.pixels, strip, f.strips)
    x = f.x.at + group * f.channels * HALF + begin * f.window_bytes
    y = f.y.at + begin * (f.y.column_stride * code.y_bytes)
    return _Windows(x, k.word(1), k.word(1), end - begin, y)


def _copied(
    k: Kernel, f: AmxFields, strip: Word, group: Word, code: AmxCode, buffer: Word
) -> _Windows:
    """Copy a strip of images to the buffer, and list its outputs behind it."""
    first = strip // f.row_strips * f.strip_images
    images = minimum(f.x.images - first, f.strip_images)
    top = strip % f.row_strips * f.strip_rows
    rows = minimum(f.y.rows - top, f.strip_rows)
    each = HALF if code.x_bf16 else FLOAT
    x_bytes = f.x.column_stride * each
    x = f.x.at + (first * f.x.image_stride + group * f.channels) * each
    counts = images, f.phases_down, f.phases_right
    with k.loop(counts[0]) as image, k.loop(counts[1]) as down, k.loop(counts[2]) as right:
        phase = buffer + image.i * f.image_bytes
        phase = phase + (down.i * f.phases_right + right.i) * f.plane_bytes
        of_image = x + image.i * f.x.image_stride * each
        above, beside = top * f.down + down.i - f.top, right.i - f.left
        with k.loop(rows * f.row_factor + f.row_addend, words=[phase, above]) as row:
            into, line = row.words
            there = (line > -1) & (line < f.x.rows)
            source = of_image + line * f.x.row_stride * each
            with k.loop(f.columns, words=[into, beside]) as column:
                target, place = column.words
                inside = there & (place > -1) & (place < f.x.columns)
                pixel = choose(inside, source + place * x_bytes, f.zeros)
                _copy_pixel(k, f, code, pixel, target)
                column.words = [target + f.pixel_bytes, place + f.column_step]
            row.words = [into + f.row_bytes, line + f.row_step]
    outputs, by_row = buffer + f.buffer_bytes, f.run_bytes > 0
    runs = choose(by_row, rows, 1)
    with k.loop(images * runs * f.run_outputs * INT, 0, k.vector_bytes) as some:
        k.store(k.constant(0.0), outputs + some.i)
    image_bytes, row_bytes = f.y.image_stride * code.y_bytes, f.y.row_stride * code.y_bytes
    y = f.y.at + first * image_bytes + top * row_bytes
    with k.loop(images) as image, k.loop(rows) as row:
        place = image.i * runs * f.run_outputs
        place = place + row.i * choose(by_row, f.run_outputs, f.columns)
        pixel = y + image.i * image_bytes + row.i * row_bytes
        with k.loop(f.y.columns, words=[pixel]) as column:
            k.store_word(column.words[0], outputs + (place + column.i) * INT)
            column.words = [column.words[0] + f.y.column_stride * code.y_bytes]
    length = choose(by_row, f.y.columns, (rows - 1) * f.columns + f.y.columns)
    return _Windows(buffer, images, runs, length, outputs)


def _copy_pixel(k: Kernel, f: AmxFields, code: AmxCode, pixel: Word, target: Word) -> None:
    """Copy the channels of a pixel, rounded to bfloat16, and zeros behind them.

    What is written further belongs to the next pixel, which is copied later.
    """
    source_bytes = amx.WIDTH * (HALF if code.x_bf16 else FLOAT)
    floats = 1 if code.x_bf16 else 2  # vectors of a line
    whole = f.channels // amx.WIDTH

    def copy(source: Word, into: Word, left: int) -> None:
        for vector in range(floats):
            count = (left // 2 if code.x_bf16 else left) - k.width * vector
            mask = k.lane_mask(count) if count < k.width else None
            if code.x_bf16:
                k.store(k.load(source, mask), into)
            elif count > 0:
                value = k.load(source + k.vector_bytes * vector, mask)
                k.store_bfloat(value, into + k.vector_bytes // 2 * vector)
            elif not code.steps.folded and code.steps.width == amx.WIDTH:
                k.store_bfloat(k.constant(0.0), into + k.vector_bytes // 2 * vector)

    if code.channels >= amx.WIDTH:
        with k.loop(whole, words=[pixel, target]) as line:
            source, into = line.words
            copy(source, into, amx.WIDTH)
            line.words = [source + source_bytes, into + LINE_BYTES]
    if code.rest:
        copy(pixel + whole * source_bytes, target + whole * LINE_BYTES, code.rest)


class _Place(NamedTuple):
    """Windows of a product, and their panel of filters.

    Attributes:
        left: Address of the first window.
        outputs: Address of the list of outputs; or of the first output, where tiles are read from
            the images.
        group, panel: Numbers of the group and the panel.
    """

    left: Word
    outputs: Word
    group: Word
    panel: Word


def _multiply(
    k: Kernel, f: AmxFields, code: AmxCode, windows: _Windows, group: Word,
    panels: tuple[Word, Word],
) -> None:  # fmt: skip
    """Write the outputs of a strip, of some panels of a group."""
    begin, end = panels
    sums = k.scratch(code.rows * amx.MOST_VECTORS)
    most, rest = code.panel
    tiles = (windows.length + (code.rows - 1)) // code.rows
    runs = windows.images * windows.runs
    filters_at = f.filters + group * f.panels * f.panel_bytes

    def place(run: Word, tile: Word, panel: Word) -> _Place:
        image, own = run // windows.runs, run % windows.runs
        at = windows.at + image * f.image_bytes + own * f.run_bytes
        first = tile * code.rows
        if code.reads:
            first = minimum(first, windows.length - code.rows)
            outputs = windows.outputs + first * f.y.column_stride * code.y_bytes
        else:
            outputs = windows.outputs + (run * f.run_outputs + first) * INT
        return _Place(at + first * f.window_bytes, outputs, group, panel)

    if code.by_tile:
        with k.loop(runs) as run, k.loop(tiles) as tile:
            with k.loop(minimum(end, f.whole) if rest else end, begin) as panel:
                _write_tile(k, f, code, place(run.i, tile.i, panel.i), sums, most)
            if rest:
                with k.when(end > f.whole):
                    _write_tile(k, f, code, place(run.i, tile.i, f.whole), sums, rest)
        return

    def write_panel(panel: Word, count: int) -> None:
        fetched = filters_at + (panel + 1) * f.panel_bytes
        ahead_bytes = k.prefetch_step(code.step_bytes, runs * tiles)
        with k.loop(runs, words=[fetched]) as run:
            with k.loop(tiles, words=run.words) as tile:
                at = place(run.i, tile.i, panel)
                ahead = tile.words[0], ahead_bytes
                tile.words = [_write_tile(k, f, code, at, sums, count, ahead)]
            run.words = tile.words

    with k.loop(minimum(end, f.whole) if rest else end, begin) as panel:
        write_panel(panel.i, most)
    if rest:
        with k.when(end > f.whole):
            write_panel(f.whole, rest)


def _write_tile(
    k: Kernel, f: AmxFields, code: AmxCode, place: _Place, sums: Word, count: int,
    ahead: tuple[Word, Word] | None = None,
) -> Word:  # fmt: skip
    """Write the outputs of a tile, of a panel of ``count`` filters."""
    filters = f.filters + (place.group * f.panels + place.panel) * f.panel_bytes
    lefts = range(count, 0, -k.width)
    masks = [k.lane_mask(left) if left < k.width else None for left in lefts]
    vectors = range(len(masks))
    fetched = amx.product_sums(
        k, f.steps, f.places, place.left, code.rows, f.window_bytes, filters, code.step_bytes,
        len(masks), sums, ahead,
    )  # fmt: skip
    channel = place.group * f.filter_count + place.panel * code.panel[0]
    ats = [channel * FLOAT + k.vector_bytes * j for j in vectors]
    offsets = [k.load(f.offsets + at, mask) for at, mask in zip(ats, masks, strict=True)]
    how = {"limited": code.limited, "relu": code.relu}
    then = [rectifying(k, f.rectifier, at, **how) for at in ats]
    load, store = (k.load_bfloats, k.store_bfloat) if code.y_bf16 else (k.load, k.store)

    def write(row: Word, target: Word) -> None:
        for j in vectors:
            some = [] if masks[j] is None else [masks[j]]
            value = k.load(sums + row * (len(masks) * k.vector_bytes) + k.vector_bytes * j)
            value += offsets[j]
            at = target + channel * code.y_bytes + k.width * code.y_bytes * j
            if code.adds:
                value += load(at + (f.added - f.y.at), *some)
            store(then[j](value), at, *some)

    with k.loop(code.rows) as row:
        if code.reads:
            write(row.i, place.outputs + row.i * f.y.column_stride * code.y_bytes)
        else:
            output = k.load_word(place.outputs + row.i * INT)
            with k.when(output > 0):
                write(row.i, output)
    return fetched


class AmxConvolution:
    """y = filters * windows of x + offset, perhaps plus other images, then a rectifier.

    Attributes:
        kernel: Address of the kernel, which runs with ``values``.
        filters: The packed filters.
        nbytes: Bytes of the filters.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(
        self, schedule: AmxSchedule, x: Images, y: Images, then: Rectifier = NOTHING, *,
        adds: bool = False,
    ) -> None:  # fmt: skip
        self.schedule, reads = schedule, schedule.reads_pixels(x)
        one, steps, op = schedule.division(reads=reads), schedule.steps, schedule.op
        counts = schedule.buffered or (math.prod((*schedule.y[:1], *schedule.y[2:])) // one.strips,)
        rows = tile_rows(min(counts) if reads else schedule.run(one.rows), amx.MOST_ROWS)
        filters, panel = schedule.filters, schedule.panel
        code = AmxCode(
            rows, steps, (panel, filters % panel), schedule.channels,
            schedule.panels * schedule.panel_bytes <= NEAR_BYTES, reads, x.bf16, y.bf16, adds,
            then.limited, then.relu,
        )  # fmt: skip
        self.kernel = _kernel(schedule.width, code)
        image_bytes = schedule.image_bytes(one.rows)
        pixel_bytes = steps.pixel * HALF
        window_bytes = pixel_bytes * (op.stride[1] if schedule.by_row else 1)
        if reads:
            window_bytes, buffer_bytes, outputs = x.column_stride * HALF, 0, 0
        else:
            windows = schedule.run(one.rows)
            run_outputs = math.ceil(windows / rows) * rows
            runs = one.images * (one.rows if schedule.by_row else 1)
            outputs = run_outputs
            buffer_bytes = one.images * image_bytes + rows * window_bytes + 2 * LINE_BYTES
            buffer_bytes = math.ceil(buffer_bytes / LINE_BYTES) * LINE_BYTES
        size = 0
        if not reads:
            size = buffer_bytes + math.ceil(runs * outputs * INT / LINE_BYTES) * LINE_BYTES
        self.scratch_size = size * schedule.tuning.threads // FLOAT
        self.filters = aligned(op.group * schedule.panels * schedule.panel_bytes // FLOAT)
        self.nbytes = self.filters.nbytes
        count = op.group * filters
        self._none = aligned(count)
        numbers = then.numbers(count + panel)  # whole vectors are read
        self._slopes = numbers[:count]
        down, right = op.stride if not schedule.by_row else (1, 1)
        factor, addend = schedule.row_counts
        self.values = AmxFields.values(
            x=ImageFields.of(x),
            y=OutputFields.of(y),
            zeros=aligned(schedule.channels + amx.WIDTH),
            groups=op.group,
            channels=schedule.channels,
            filter_count=filters,
            panels=schedule.panels,
            whole=filters // panel,
            panel_bytes=schedule.panel_bytes,
            steps=steps.count,
            places=schedule.places(one.rows),
            rectifier=numbers,
            scratch_bytes=size,
            buffer_bytes=buffer_bytes,
            strip_images=one.images,
            strip_rows=one.rows,
            row_strips=math.ceil(schedule.y[2] / one.rows),
            strips=one.strips,
            filter_parts=one.filter_parts,
            top=op.pad[0],
            left=op.pad[1],
            phases_down=schedule.phases[0],
            phases_right=schedule.phases[1],
            plane_bytes=image_bytes // math.prod(schedule.phases),
            image_bytes=image_bytes,
            row_bytes=schedule.row_bytes,
            pixel_bytes=pixel_bytes,
            columns=schedule.columns,
            row_factor=factor,
            row_addend=addend,
            row_step=down,
            column_step=right,
            down=op.stride[0],
            window_bytes=window_bytes,
            run_bytes=op.stride[0] * schedule.row_bytes if schedule.by_row else 0,
            run_outputs=outputs,
        )
        self._arguments = structs.Arguments(self.values)

    def update(self, weights: np.ndarray) -> None:
        """Pack new weights, in C order: (G, M / G, C / G, *kernel)."""
        one, steps = self.schedule, self.schedule.steps
        g, m, c, kernel = one.op.group, one.filters, one.channels, one.op.kernel
        given = weights[: g * m * c * math.prod(kernel)].reshape(g, m, c, *kernel)
        packed = self.filters.view(np.uint16).reshape(
            g, one.panels, steps.taps, steps.each, one.vectors, amx.HEIGHT, one.width, 2
        )
        own = steps.pixel if steps.folded else steps.each * steps.width
        for group, panel in np.ndindex(g, one.panels):
            some = given[group, panel * one.panel : (panel + 1) * one.panel]
            by_tap = np.zeros((one.panel, *kernel, own), np.float32)
            by_tap[: len(some), ..., :c] = some.transpose(0, 2, 3, 1)
            shape = one.vectors, one.width, steps.taps, steps.each, steps.width // 2, 2
            pairs = narrowed(by_tap, "bfloat16").reshape(shape).transpose(2, 3, 0, 4, 1, 5)
            packed[group, panel, :, :, :, : steps.width // 2] = pairs

    def take_slopes(self, slopes: np.ndarray) -> None:
        """Take factors of negative sums, one for each channel of the output."""
        self._slopes[...] = slopes[: len(self._slopes)]

    def __call__(
        self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None,
        added: np.ndarray | None, *scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Convolve, with one offset for each channel of the output; None for zeros.

        ``added``, in the layout of the target, is added before the rectifier; None for nothing.
        """
        offsets = self._none if offsets is None else offsets
        given = scratch[0] if scratch else self._none
        each: dict[str, np.ndarray | None] = {"x.at": source, "y.at": target, "scratch": given}
        each |= {"filters": self.filters, "offsets": offsets, "added": added}
        self._arguments.run(self.kernel, self.schedule.tuning.threads, each)
