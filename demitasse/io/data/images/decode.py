"""Images: JPEG, PNG and other files, decoded to the arrays OpenCV would give Caffe.

Pillow does the decoding; it is imported when the first image is met. A JPEG decoder is free to
round as it likes, so single grey levels can differ from what another one gives.

Source: Caffe, ``src/caffe/util/io.cpp`` (``DecodeDatumToCVMat``) and OpenCV's ``imdecode``.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from demitasse.core.paths import read_bytes
from demitasse.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Color", "decode_frames", "decode_image", "opened", "read_image"]

FORMATS = ("BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "SUN", "TIFF", "WEBP")
"""What OpenCV reads. Pillow knows more, among them EPS, for which it would start Ghostscript."""

ROOM, GROWTH = 1 << 26, 256
"""An image may take so many bytes, and where its file is large so many for each of its bytes."""

Color = Literal["native", "color", "gray", "indices"]
"""Channels to decode to: those of the file, always BGR, always one, or the numbers of a palette's
colours, which is how label images are stored (one channel where there is no palette).
"""


def decode_image(content: bytes | memoryview, color: Color = "native") -> np.ndarray:
    """Decode the bytes of an image file.

    Images in colour come in the order blue, green, red (and alpha, where a file has it and
    ``color`` is native). Unless it is native, the image is turned upright as its EXIF says.

    Args:
        content: The file's bytes.
        color: Which channels are wanted.

    Returns:
        The pixels, uint8. Shape: (C, H, W).

    Raises:
        DataError: Pillow is not installed, or this is not an image it can decode, or one far
            larger than its file.
    """
    with opened(content) as image:
        if color == "gray":
            # A JPEG stores brightness as a channel of its own; other files ignore this.
            image.draft("L", image.size)
        return _decoded(image, color)


def decode_frames(content: bytes | memoryview, color: Color = "color") -> Iterator[np.ndarray]:
    """Yield every frame of an animation or page of a file, or the one image of any other file.

    Args:
        content: The file's bytes.
        color: Which channels are wanted; see ``decode_image``.

    Yields:
        The pixels, uint8. Shape: (C, H, W).

    Raises:
        DataError: As for ``decode_image``.
    """
    with opened(content) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            _need_room(image, len(content))  # pages may differ in size
            image.load()  # what a frame adds to those before decides on its channels
            yield _decoded(image, color)


def _decoded(image: Image, color: Color) -> np.ndarray:
    """Return the pixels of an opened image, turned upright unless ``color`` is native."""
    upright = image
    if color != "native" and "exif" in image.info:
        import PIL.ImageOps

        upright = PIL.ImageOps.exif_transpose(image)
    mode = _mode(upright, color)
    return _planes(upright if upright.mode == mode else upright.convert(mode))


@contextmanager
def opened(content: bytes | memoryview) -> Iterator[Image]:
    """Open the bytes of an image file with Pillow; what then fails in the block is told, too.

    Raises:
        DataError: As for ``decode_image``.
    """
    try:
        import PIL.Image
    except ImportError:
        message = "decoding images needs Pillow; run: pip install 'demitasse[image]'"
        raise DataError(message) from None
    try:
        PIL.Image.init()
        known = [name for name in FORMATS if name in PIL.Image.OPEN]
        with PIL.Image.open(io.BytesIO(content), formats=known) as image:
            _need_room(image, len(content))
            yield image
    except (*DAMAGE, PIL.Image.DecompressionBombError) as error:
        message = f"cannot be decoded as an image: {error}"
        raise DataError(message) from error


def read_image(path: Path, color: Color = "native") -> np.ndarray:
    """Decode an image file; see ``decode_image``. Shape: (C, H, W), uint8.

    Raises:
        DataError: It cannot be read or decoded.
    """
    try:
        return decode_image(read_bytes(path), color)
    except OSError as error:
        raise DataError(error.strerror or str(error), str(path)) from error
    except DataError as error:
        raise DataError(error.message, str(path)) from error


DAMAGE = (OSError, EOFError, ValueError, SyntaxError, TypeError, LookupError, struct.error, Warning)
"""What Pillow raises for damaged files; warnings only where Python is told to raise them."""


def _need_room(image: Image, size: int) -> None:
    """Refuse an image that a file of so many bytes cannot hold, before it is decoded."""
    most = max(ROOM, GROWTH * size) // 4
    if image.width * image.height > most:
        message = (
            f"{image.width} x {image.height} pixels in {size} bytes cannot be; of a file of that "
            f"size at most {most} pixels are decoded"
        )
        raise ValueError(message)


def _mode(image: Image, color: Color) -> str:
    """Return the Pillow mode whose channels OpenCV would give."""
    if color == "gray":
        return "L"
    if color == "color":
        return "RGB"
    if image.mode.startswith(("I", "F")):
        message = f"an image of type {image.mode} has no 8-bit pixels; only those can be used"
        raise ValueError(message)
    if color == "indices" and image.mode == "P":
        return "P"
    if color == "indices" or image.mode in {"1", "L"}:
        return "L"
    has_alpha = image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info
    return "RGBA" if has_alpha else "RGB"


def _planes(image: Image) -> np.ndarray:
    pixels = _pixels(image)
    if pixels.ndim == 2:
        return pixels[None]
    pixels = pixels[:, :, [2, 1, 0, 3]] if pixels.shape[2] == 4 else pixels[:, :, ::-1]
    return pixels.transpose(2, 0, 1)  # (C, H, W)


def _pixels(image: Image) -> np.ndarray:
    """Return the pixels of an image. Shape: (H, W) or (H, W, C), uint8.

    They are packed in one piece. ``np.asarray`` lets Pillow pack 64 KB at a time and join them,
    which takes as long as decoding does.
    """
    from PIL.Image import _getencoder

    image.load()
    width, height = image.size
    shape = (height, width, len(image.mode)) if len(image.mode) > 1 else (height, width)
    packer = _getencoder(image.mode, "raw", (image.mode,))
    packer.setimage(image.im, (0, 0, width, height))
    packed = packer.encode(math.prod(shape))[2]
    if len(packed) != math.prod(shape):
        return np.asarray(image)
    return np.frombuffer(packed, np.uint8).reshape(shape)
