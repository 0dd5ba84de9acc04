"""Pieces of HTML for notebooks: tables, SVG charts, PNG images; all text is escaped."""

import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from demitasse.blob import Blob
from demitasse.memory import Head
from demitasse.pages.page import html_table, html_text, number_columns

STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8").replace("\n", "")
"""Style sheet; colours are inherited from the light or dark notebook."""


def framed(*parts: str) -> str:
    """Return parts in a frame with the style sheet."""
    return f'<div class="demitasse"><style>{STYLE}</style>{"".join(parts)}</div>'


def heading(value: str) -> str:
    """Return a heading."""
    return f"<h4>{html_text(value)}</h4>"


def note(value: str) -> str:
    """Return a line in pale text."""
    return f'<div class="note">{html_text(value)}</div>'


def folded(title: str, content: str, *, is_open: bool) -> str:
    """Return content that a click on its title unfolds."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{html_text(title)}</summary>{content}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with right-aligned numbers; None is an empty cell."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    return html_table(header, cells, numbers=number_columns(rows))


def _cell(cell: object) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return str(cell)
        case float():
            return f"{cell:.4g}"
        case int():
            return f"{cell:,}"
    return str(cell)


CURVE_COLORS = ("#3b82c4", "#d9661f", "#1f9e78", "#b8609a", "#b58900", "#5b6bc0")
"""Colours for light and dark ground."""

WIDTH, HEIGHT = 420, 160
LEFT, TOP, BOTTOM = 58, 22, 18
"""Margins for the labels of the axes."""

MOST_POINTS = 400
"""Limit of points of a curve; longer curves keep every n-th point and the last."""

Point = tuple[float, float]


def histogram(counts: Sequence[int], low: float, high: float, about: str) -> str:
    """Return a histogram from ``low`` to ``high``."""
    width, height, most = 260, 90, max(counts)
    step = width / len(counts)
    bars = "".join(
        f'<rect x="{i * step:.2f}" y="{height - size:.2f}" width="{max(step - 1, 0.5):.2f}" '
        f'height="{size:.2f}"/>'
        for i, size in enumerate(height * count / most for count in counts)
    )
    return (
        f'<svg role="img" aria-label="{html_text(about)}" width="{width}" height="{height + 18}" '
        f'viewBox="0 0 {width} {height + 18}" font-size="11" fill="currentColor">'
        f'<g fill="{CURVE_COLORS[0]}">{bars}</g>'
        f'<path d="M0 {height}H{width}" stroke="currentColor"/>'
        f'<text x="0" y="{height + 14}">{low:.4g}</text>'
        f'<text x="{width}" y="{height + 14}" text-anchor="end">{high:.4g}</text></svg>'
    )


def curves(series: Mapping[str, Sequence[Point]], label: str) -> str:
    """Return curves over iterations, with a legend; an empty text without finite values.

    The scale is logarithmic for positive values of a wide range.
    """
    drawn = {}
    for name, points in series.items():
        step = max(1, math.ceil(len(points) / MOST_POINTS))
        kept = [*points[::step], *(points[-1:] if step > 1 else ())]
        if finite := [(x, y) for x, y in kept if math.isfinite(y)]:
            drawn[name] = finite
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    log = min(ys) > 0 and max(ys) > 30 * min(ys)
    scale = math.log10 if log else float
    left, right = min(xs), max(*xs, min(xs) + 1)
    low, high = scale(min(ys)), scale(max(ys))
    high = high if high > low else low + (abs(low) or 1.0)

    def at(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 6) * (x - left) / (right - left)
        down = TOP + (HEIGHT - BOTTOM - TOP) * (high - scale(y)) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for number, (name, points) in enumerate(drawn.items()):
        color = CURVE_COLORS[number % len(CURVE_COLORS)]
        line = " ".join(at(x, y) for x, y in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            if len(points) > 1
            else '<circle cx="{}" cy="{}" r="2.5" fill="{}"/>'.format(*line.split(","), color)
        )
        parts.append(
            f'<text x="{LEFT + 4}" y="{HEIGHT + 16 + 14 * number}" fill="{color}">'
            f"{html_text(name)}: {points[-1][1]:.4g}</text>"
        )
    ends = (10**low, 10**high) if log else (low, high)
    height = HEIGHT + 10 + 14 * len(drawn)
    return (
        f'<svg role="img" aria-label="{html_text(label)}" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-size="11" fill="currentColor">'
        f'<path d="M{LEFT} {TOP - 2}V{HEIGHT - BOTTOM}H{WIDTH}" fill="none" stroke="currentColor"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 6}" text-anchor="end">{ends[1]:.4g}</text>'
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">{ends[0]:.4g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">{left:g}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">iteration {max(xs):g}</text>'
        f'<text x="{WIDTH / 2}" y="12" text-anchor="middle">{html_text(label)}'
        f"{', log scale' if log else ''}</text>"
        f"{''.join(parts)}</svg>"
    )


MOST_TILES = 64
LARGEST_TILE = 128
"""Limit of a tile's height and width, in pixels; larger tiles are subsampled."""

WIDEST = 420
"""Width up to which a picture is enlarged, in pixels."""


def picture(blob: Blob) -> tuple[str, str]:
    """Return an image and its description; empty texts for blobs without an image.

    A blob (N, C, H, W) with one or three channels has a tile for each item, with blue first; other
    blobs have a tile for each channel of the first item. Only the shown values are copied from a
    device.
    """
    if blob.num_axes != 4 or not blob.count or blob.data_memory.cleared or min(blob.shape[2:]) < 2:
        return "", ""
    items, channels, height, width = blob.shape
    step = math.ceil(max(height, width) / LARGEST_TILE)
    colored = channels == 3
    if channels in {1, 3}:
        tiles = _read_part(blob, (slice(min(items, MOST_TILES)), slice(None)), step)
        tiles = tiles[:, ::-1] if colored else tiles
        total, what = items, "items"
    else:
        tiles = _read_part(blob, (slice(1), slice(min(channels, MOST_TILES))), step)
        tiles = np.swapaxes(tiles, 0, 1)
        total, what = channels, "channels of the first item"
    shown = len(tiles)
    about = f"{shown} {what}" if shown == total else f"the first {shown} of {total} {what}"
    finite = tiles[np.isfinite(tiles)]  # from 0 to 255; NaN and infinities are 0
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(tiles, nan=low, posinf=low, neginf=low) - low) / (high - low or 1.0)
    pixels = _mosaic(np.asarray(np.round(255 * scaled), dtype=np.uint8))
    height, width, _ = pixels.shape
    scale = max(1, min(12, WIDEST // max(width, height)))
    image = (
        f'<img class="pixels" alt="{about}" width="{width * scale}" height="{height * scale}" '
        f'src="data:image/png;base64,{b64encode(_png(pixels)).decode("ascii")}">'
    )
    return image, about


def _read_part(blob: Blob, which: tuple[slice, slice], step: int) -> np.ndarray:
    """Return a part of the values on the host. Shape: (items, channels, height, width)."""
    part = (*which, slice(None, None, step), slice(None, None, step))
    if blob.device.shares_host or blob.data_memory.head is Head.HEAD_AT_CPU:
        return blob.cpu_data()[part].astype(np.float64)
    with blob.device.backend.device_scope():
        return blob.device.backend.to_host(blob.gpu_data()[part]).astype(np.float64)


def _mosaic(tiles: np.ndarray) -> np.ndarray:
    """Return an image (height, width, channels) of tiles (N, channels, height, width)."""
    count, channels, height, width = tiles.shape
    columns = math.ceil(math.sqrt(count * height / width))
    rows = math.ceil(count / columns)
    image = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        image[top : top + height, left : left + width] = np.moveaxis(tile, 0, -1)
    return image


def _png(pixels: np.ndarray) -> bytes:
    """Return an image (height, width, 1 or 3) as a PNG file."""
    height, width, channels = pixels.shape
    # each line starts with its filter type, 0
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))
    kind = {1: 0, 3: 2}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n"
    for name, content in (b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""):
        check = struct.pack(">I", zlib.crc32(name + content))
        file += struct.pack(">I", len(content)) + name + content + check
    return file
