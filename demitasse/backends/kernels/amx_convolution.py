"""Convolution in bfloat16 by AMX: every tap of a window is a product of tiles.

A strip of the images is copied to a buffer, rounded to bfloat16 and with zeros around. Windows of
consecutive outputs then lie at equal distances in the buffer, also from the end of a row to the
next. A tap of these windows is a tile in place. Outputs between the rows are computed in vain.

Source: E. Georganas et al., *Anatomy of High-Performance Deep Learning Convolutions on SIMD
Architectures*, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import amx
from demitasse.backends.kernels.amx_schedule import (
    AmxSchedule,
    Buffer,
    Division,
    Phase,
    Steps,
)
from demitasse.backends.kernels.bound import BoundKernel
from demitasse.backends.kernels.epilogue import NOTHING, Kind, Rectifier, rectifying
from demitasse.backends.kernels.images import ImageFields, Images, OutputFields
from demitasse.backends.kernels.language import structs
from demitasse.backends.kernels.language.kernel import FEWEST_TILES, Kernel
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
from demitasse.backends.kernels.products import column_masks, for_each_panel, tile_rows
from demitasse.backends.storage import narrowed

NEAR_BYTES = 1024 << 10
"""Bytes of filters up to which the second cache holds them."""


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
    step_offsets: structs.Address
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
        x_lines, added_lines: Lines of the next tile that a step prefetches, of the images and those
            that are added.
        reads: Whether tiles are read from the images themselves.
        planes: Whether few channels of the images are in C order.
        x_bf16: Whether the images are in bfloat16; the others, the outputs.
        adds: Whether images are added, before a rectifier.
    """

    rows: int
    steps: Steps
    panel: tuple[int, int]
    channels: int
    by_tile: bool
    x_lines: int
    added_lines: int
    reads: bool
    planes: bool
    x_bf16: bool
    y_bf16: bool
    adds: bool
    rectifies: bool
    kind: Kind

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
        flags = [name for name in self._fields[7:-1] if getattr(self, name)]
        flags += [self.kind] if self.kind else []
        flags += [f"{self.x_lines}ahead{self.added_lines}"] * self.by_tile
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
    """Copy a strip of images to the buffer, and list the strip's outputs behind the images."""
    first = strip // f.row_strips * f.strip_images
    images = minimum(f.x.images - first, f.strip_images)
    top = strip % f.row_strips * f.strip_rows
    rows = minimum(f.y.rows - top, f.strip_rows)
    each = HALF if code.x_bf16 else FLOAT
    x_bytes = f.x.column_stride * each
    of_group = group * f.channels * f.x.channel_stride
    x = f.x.at + (first * f.x.image_stride + of_group) * each
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
            if code.planes:
                _copy_planes(k, f, code, source, choose(there, f.x.columns, 0), into)
            else:
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
        if left == amx.WIDTH and not code.x_bf16:
            k.store_bfloats(k.load(source), k.load(source + k.vector_bytes), into)
            return
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


def _copy_planes(
    k: Kernel, f: AmxFields, code: AmxCode, source: Word, columns: Word, into: Word
) -> None:
    """Copy so many pixels of a row, of few channels in C order, and zeros around."""
    pixel_bytes = code.steps.pixel * HALF
    with k.loop(f.left * pixel_bytes, 0, k.vector_bytes) as some:
        k.store(k.constant(0.0), into + some.i)
    nothing = k.constant(0.0)
    with k.loop(f.columns - f.left, 0, k.width, words=[into + f.left * pixel_bytes]) as some:
        mask, at = k.lane_mask(columns - some.i), source + some.i * FLOAT
        strides = (f.x.channel_stride * (FLOAT * i) for i in range(code.channels))
        values = [k.load(at + stride, mask) for stride in strides]
        values += [nothing] * (code.steps.pixel - len(values))
        k.store_interleaved(values, some.words[0])
        some.words = [some.words[0] + k.width * pixel_bytes]


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
    sums = k.scratch(code.rows * amx.MOST_VECTORS)
    counts = [count for count in code.panel if count]
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

    def write_tile(run: Word, tile: Word, panel: Word, count: int) -> None:
        at = place(run, tile, panel)
        _write_tile(k, f, code, at, sums, count, _next_tile(f, code, at, panel - panels[0]))

    if code.by_tile:
        with k.loop(runs) as run, k.loop(tiles) as tile:
            write = partial(write_tile, run.i, tile.i)
            for_each_panel(k, panels, f.whole, counts, write)
        return

    def write_panel(panel: Word, count: int) -> None:
        fetched = filters_at + (panel + 1) * f.panel_bytes
        ahead_bytes = k.prefetch_step(code.step_bytes, runs * tiles)
        with k.loop(runs, words=[fetched]) as run:
            with k.loop(tiles, words=run.words) as tile:
                at = place(run.i, tile.i, panel)
                lines = code.step_bytes // (FEWEST_TILES * LINE_BYTES)
                ahead = [amx.Ahead(tile.words[0], ahead_bytes, lines)]
                tile.words = _write_tile(k, f, code, at, sums, count, ahead)
            run.words = tile.words

    for_each_panel(k, panels, f.whole, counts, write_panel)


def _next_tile(f: AmxFields, code: AmxCode, at: _Place, panel: Word) -> list[amx.Ahead]:
    """Return the memory of the next tile that the ``panel`` of this one prefetches.

    Processors do not learn from tiles, whose rows are read side by side.
    """
    found, steps = [], panel * f.steps
    if code.x_lines:
        step_bytes = code.x_lines * LINE_BYTES
        next_row = at.left + f.window_bytes * code.rows
        found.append(amx.Ahead(next_row + steps * step_bytes, step_bytes, code.x_lines))
    if code.added_lines:
        step_bytes = code.added_lines * LINE_BYTES
        next_row = at.outputs + f.y.column_stride * (code.y_bytes * code.rows)
        next_row = next_row + (f.added - f.y.at)
        found.append(amx.Ahead(next_row + steps * step_bytes, step_bytes, code.added_lines))
    return found


def _write_tile(
    k: Kernel, f: AmxFields, code: AmxCode, place: _Place, sums: Word, count: int,
    ahead: Sequence[amx.Ahead] = (),
) -> list[Word]:  # fmt: skip
    """Write the outputs of a tile, of a panel of ``count`` filters."""
    filters = f.filters + (place.group * f.panels + place.panel) * f.panel_bytes
    masks = column_masks(k, count)
    vectors = range(len(masks))
    fetched = amx.product_sums(
        k, f.steps, f.step_offsets, place.left, code.rows, f.window_bytes, filters, code.step_bytes,
        len(masks), sums, ahead,
    )  # fmt: skip
    channel = place.group * f.filter_count + place.panel * code.panel[0]
    ats = [channel * FLOAT + k.vector_bytes * j for j in vectors]
    offsets = [k.load(f.offsets + at, mask) for at, mask in zip(ats, masks, strict=True)]
    then = [rectifying(k, f.rectifier, at, code.kind) for at in ats] if code.rectifies else []
    load, store = k.access(code.y_bytes)

    def write(row: Word, target: Word) -> None:
        target, values = target + channel * code.y_bytes, []
        for j in vectors:
            some = [] if masks[j] is None else [masks[j]]
            value = k.load(sums + row * (len(masks) * k.vector_bytes) + k.vector_bytes * j)
            value += offsets[j]
            at = target + k.width * code.y_bytes * j
            if code.adds:
                value += load(at + (f.added - f.y.at), *some)
            values.append(then[j](value) if then else value)
        if code.y_bf16 and len(values) > 1:
            k.store_bfloats(values[0], values[1], target)
            return
        for j, value in enumerate(values):
            some = [] if masks[j] is None else [masks[j]]
            store(value, target + k.width * code.y_bytes * j, *some)

    with k.loop(code.rows) as row:
        if code.reads:
            write(row.i, place.outputs + row.i * f.y.column_stride * code.y_bytes)
        else:
            output = k.load_word(place.outputs + row.i * INT)
            with k.when(output > 0):
                write(row.i, output)
    return fetched


def _strip_values(schedule: AmxSchedule, one: Division, buffer: Buffer) -> dict[str, int]:
    """Return the values of the fields of strips and of the buffer."""
    op, phases, image_bytes = schedule.op, schedule.phases, schedule.image_bytes(one.rows)
    (factor, addend), by_row = schedule.row_counts, schedule.by_row
    row_step, column_step = (1, 1) if by_row else op.stride
    return {
        "buffer_bytes": buffer.image_bytes,
        "strip_images": one.images,
        "strip_rows": one.rows,
        "row_strips": math.ceil(schedule.y[2] / one.rows),
        "strips": one.strips,
        "filter_parts": one.filter_parts,
        "top": op.pad[0],
        "left": op.pad[1],
        "phases_down": phases[0],
        "phases_right": phases[1],
        "plane_bytes": image_bytes // math.prod(phases),
        "image_bytes": image_bytes,
        "row_bytes": schedule.row_bytes,
        "pixel_bytes": schedule.steps.pixel * HALF,
        "columns": schedule.columns,
        "row_factor": factor,
        "row_addend": addend,
        "row_step": row_step,
        "column_step": column_step,
        "down": op.stride[0],
        "run_bytes": op.stride[0] * schedule.row_bytes if by_row else 0,
        "run_outputs": buffer.run_outputs,
    }


class AmxConvolution:
    """y = filters * windows of x + offset, perhaps plus other images, then a rectifier.

    Args:
        adds: Whether other images are added.
        slopes: Whether factors of negative sums are taken.

    Attributes:
        kernel: Address of the kernel, which runs with ``values``.
        filters: The packed filters.
        nbytes: Bytes of the filters.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(
        self, schedule: AmxSchedule, x: Images, y: Images, then: Rectifier = NOTHING, *,
        adds: bool = False, slopes: bool = False,
    ) -> None:  # fmt: skip
        self.schedule, reads = schedule, schedule.reads_pixels(x) and y.is_rows
        one, steps, op = schedule.division(reads=reads), schedule.steps, schedule.op
        fewest = min(schedule.buffered, default=schedule.pixels // one.strips)
        rows = tile_rows(fewest if reads else schedule.run(one.rows), amx.MOST_ROWS)
        filters, panel = schedule.filters, schedule.panel
        by_tile, ahead = schedule.panels * schedule.panel_bytes <= NEAR_BYTES, [0, 0]
        if by_tile and reads:
            each = steps.count * schedule.panels * LINE_BYTES
            ahead = [
                math.ceil(rows * one.column_stride * one.element_bytes / each) for one in (x, y)
            ]
        code = AmxCode(
            rows, steps, (panel, filters % panel), schedule.channels, by_tile, ahead[0],
            ahead[1] * adds, reads, x.channel_stride > 1, x.bf16, y.bf16, adds,
            slopes or then != NOTHING, then.kind,
        )  # fmt: skip
        self.kernel = _kernel(schedule.width, code)
        buffer = schedule.buffer(one, rows)
        size = 0 if reads else buffer.nbytes
        self.scratch_size = size * schedule.tuning.threads // FLOAT
        self.filters = aligned(op.group * schedule.panels * schedule.panel_bytes // FLOAT)
        self.nbytes = self.filters.nbytes
        count = op.group * filters
        self._none = aligned(count)
        numbers = then.numbers(count + panel)  # whole vectors are read
        self._slopes = numbers[:count]
        self.values = AmxFields.values(
            **_strip_values(schedule, one, buffer),
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
            step_offsets=schedule.step_offsets(one.rows),
            rectifier=numbers,
            scratch_bytes=size,
            window_bytes=x.column_stride * HALF if reads else buffer.window_bytes,
        )
        self._run = BoundKernel(schedule.kernel, self.kernel, self.values, schedule.tuning)

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
        self._run(source, target, self.filters, offsets, added, given)


class AmxInputGradient:
    """The gradient of the input ``x``, by a convolution of that of ``y`` for each phase.

    Attributes:
        nbytes: Bytes of the filters.
        scratch_size: Elements of scratch memory for a call.
    """

    def __init__(self, op: ops.Conv, phases: Sequence[Phase], x: Images, y: Images) -> None:
        self._op, self._phases = op, phases
        self._convolutions, self._firsts = list[AmxConvolution](), list[int]()
        for one in self._phases:
            (rows, columns), (down, right) = one.schedule.y[2:], op.stride
            pixels = x.every((down, right, 1), (rows, columns, 1))
            self._convolutions.append(AmxConvolution(one.schedule, y, pixels))
            place = one.first[0] * x.row_stride + one.first[1] * x.column_stride
            self._firsts.append(place * x.element_bytes // FLOAT)
        self.nbytes = sum(one.nbytes for one in self._convolutions)
        self.scratch_size = max(one.scratch_size for one in self._convolutions)

    def update(self, weights: np.ndarray) -> None:
        """Pack new weights of the convolution, in C order: (G, M / G, C / G, *kernel)."""
        op = self._op
        g, m, c = op.group, op.top[1] // op.group, op.bottom[1] // op.group
        given = weights[: g * m * c * math.prod(op.kernel)].reshape(g, m, c, *op.kernel)
        for phase, convolution in zip(self._phases, self._convolutions, strict=True):
            rows, columns = phase.taps
            own = given[:, :, :, rows][..., columns].swapaxes(1, 2)
            convolution.update(np.ascontiguousarray(own).reshape(-1))

    def __call__(
        self, source: np.ndarray, target: np.ndarray, offsets: np.ndarray | None,
        scratch: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the gradient, with one offset for each channel of the input; None for zeros."""
        for convolution, first in zip(self._convolutions, self._firsts, strict=True):
            convolution(source, target[first:], offsets, None, scratch)
