"""Image encoding: arrays to JPEG, PNG and other files, with the settings of OpenCV's ``imencode``.

Source: OpenCV, ``modules/imgcodecs/src`` (defaults of ``imencode``).
"""

from __future__ import annotations

import io

import numpy as np

from demitasse.errors import ConfigError, DataError, ErrorCode

__all__ = ["encode_image", "need_encoder"]

FORMATS = {
    "bmp": "BMP",
    "jpeg": "JPEG",
    "jpe": "JPEG",
    "jpg": "JPEG",
    "png": "PNG",
    "tif": "TIFF",
    "tiff": "TIFF",
    "webp": "WEBP",
}
"""File name extension -> Pillow's format name."""

OPTIONS: dict[str, dict[str, int]] = {
    "JPEG": {"quality": 95},
    "PNG": {"compress_level": 1},
    "WEBP": {"lossless": 1},
}


def encode_image(image: np.ndarray, ending: str) -> bytes:
    """Return the bytes of an image file.

    Args:
        image: Pixels, uint8, gray or BGR. Shape: (C, H, W).
        ending: File name extension without the dot: jpg, png, ...

    Raises:
        ConfigError: The format is unknown.
        DataError: Pillow is not installed, or cannot encode the image.
    """
    need_encoder(ending)
    try:
        import PIL.Image
    except ImportError:
        message = "encoding images needs Pillow; run: pip install 'demitasse[image]'"
        raise DataError(message, code=ErrorCode.UNAVAILABLE, extra="image") from None
    kind = FORMATS[ending.lower()]
    pixels = image[0] if len(image) == 1 else image[::-1].transpose(1, 2, 0)
    file = io.BytesIO()
    try:
        picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
        picture.save(file, kind, **OPTIONS.get(kind, {}))
    except (OSError, ValueError) as error:
        message = f"cannot be encoded as {kind}: {error}"
        raise DataError(message, code=ErrorCode.UNSUPPORTED, kind=kind) from error
    return file.getvalue()


def need_encoder(ending: str) -> None:
    """Refuse an unknown image format.

    Raises:
        ConfigError: The format is unknown; the message lists the known formats.
    """
    if ending.lower() not in FORMATS:
        message = f"images cannot be encoded as {ending!r}; expected one of {', '.join(FORMATS)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="encode_type", got=ending)
