"""Filters and feature maps as a picture: tiles side by side, a PNG within the HTML."""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode

import numpy as np

from demitasse.blob import Blob
from demitasse.memory import Head

__all__ = ["picture"]

MOST_TILES = 64
LARGEST = 128
"""Pixels of a tile's side; larger ones are drawn with every second pixel, every third, ..."""

WIDEST = 420
"""Pixels of the picture on the page, where tiles are enlarged."""


def picture(blob: Blob) -> tuple[str, str]:
    """Return an image for a page, and what it shows; empty texts where there is nothing to see.

    Of four axes (N, C, H, W) with one or three channels each item is a tile, in colours from blue,
    green, red; with other numbers of channels each channel of the first item. Only what is drawn
    comes from a device.
    """
    if blob.num_axes != 4 or blob.data_memory.cleared or min(blob.shape[2:]) < 2:
        return "", ""
    items, channels, height, width = blob.shape
    step = math.ceil(max(height, width) / LARGEST)
    colored = channels == 3
    if channels in {1, 3}:
        tiles = _host(blob, (slice(min(items, MOST_TILES)), slice(None)), step)
        tiles = tiles[:, ::-1] if colored else tiles
        total, what = items, "items"
    else:
        tiles = _host(blob, (slice(1), slice(min(channels, MOST_TILES))), step)
        tiles = np.swapaxes(tiles, 0, 1)
        total, what = channels, "channels of the first item"
    shown = len(tiles)
    about = f"{shown} {what}" if shown == total else f"the first {shown} of {total} {what}"
    return _image(_side_by_side(_bytes(tiles)), about), about


def _host(blob: Blob, which: tuple[slice, slice], step: int) -> np.ndarray:
    """Return some of the values on the host. Shape: (items, channels, height, width)."""
    part = (*which, slice(None, None, step), slice(None, None, step))
    if blob.device.shares_host or blob.data_memory.head is Head.HEAD_AT_CPU:
        return blob.cpu_data()[part].astype(np.float64)
    with blob.device.backend.here():
        return blob.device.backend.to_host(blob.gpu_data()[part]).astype(np.float64)


def _bytes(tiles: np.ndarray) -> np.ndarray:
    """Return values as bytes: the smallest black, the largest white; what is not finite black."""
    finite = tiles[np.isfinite(tiles)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(tiles, nan=low, posinf=low, neginf=low) - low) / (high - low or 1.0)
    return np.asarray(np.round(255 * scaled), dtype=np.uint8)


def _side_by_side(tiles: np.ndarray) -> np.ndarray:
    """Return one image (height, width, channels) of tiles (N, channels, height, width)."""
    count, channels, height, width = tiles.shape
    columns = math.ceil(math.sqrt(count * height / width))
    rows = math.ceil(count / columns)
    image = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for number, tile in enumerate(tiles):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        image[top : top + height, left : left + width] = np.moveaxis(tile, 0, -1)
    return image


def _image(pixels: np.ndarray, about: str) -> str:
    height, width, _ = pixels.shape
    scale = max(1, min(12, WIDEST // max(width, height)))
    content = b64encode(_png(pixels)).decode("ascii")
    return (
        f'<img class="pixels" alt="{about}" width="{width * scale}" height="{height * scale}" '
        f'src="data:image/png;base64,{content}">'
    )


def _png(pixels: np.ndarray) -> bytes:
    """Return an image (height, width, 1 or 3) as the contents of a PNG file."""
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, none
    lines[:, 1:] = pixels.reshape(height, -1)
    kind = {1: 0, 3: 2}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(name, content) for name, content in parts)


def _part(name: bytes, content: bytes) -> bytes:
    checked = name + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
