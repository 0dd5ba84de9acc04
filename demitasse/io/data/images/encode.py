"""Images as the bytes of JPEG, PNG and other files, with the settings of OpenCV's ``imencode``.

Source: OpenCV, ``modules/imgcodecs/src`` (defaults of ``imencode``).
"""

from __future__ import annotations

import io

import numpy as np

from demitasse.errors import ConfigError, DataError

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
"""End of a file's name -> Pillow's name of the format."""

OPTIONS: dict[str, dict[str, int]] = {
    "JPEG": {"quality": 95},
    "PNG": {"compress_level": 1},
    "WEBP": {"lossless": 1},
}


def encode_image(image: np.ndarray, ending: str) -> bytes:
    """Return the bytes of an image file.

    Args:
        image: Its pixels, uint8, one channel or blue, green, red. Shape: (C, H, W).
        ending: How the names of such files end, without the dot: jpg, png, ...

    Raises:
        ConfigError: There is no such format.
        DataError: Pillow is not installed, or cannot encode this.
    """
    need_encoder(ending)
    try:
        import PIL.Image
    except ImportError:
        message = "encoding images needs Pillow; run: pip install 'demitasse[image]'"
        raise DataError(message) from None
    kind = FORMATS[ending.lower()]
    pixels = image[0] if len(image) == 1 else image[::-1].transpose(1, 2, 0)
    file = io.BytesIO()
    try:
        picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
        picture.save(file, kind, **OPTIONS.get(kind, {}))
    except (OSError, ValueError) as error:
        message = f"cannot be encoded as {kind}: {error}"
        raise DataError(message) from error
    return file.getvalue()


def need_encoder(ending: str) -> None:
    """Refuse a format that there is no encoder for.

    Raises:
        ConfigError: There is none; names those there are.
    """
    if ending.lower() not in FORMATS:
        message = f"images cannot be encoded as {ending!r}; known are {', '.join(FORMATS)}"
        raise ConfigError(message)
