"""Image files: decoding, encoding and listing, with the arrays and settings of OpenCV.

Pillow decodes; it is imported at the first image. JPEG decoders may round differently, so single
levels can differ between libraries.

Source: Caffe, ``src/caffe/util/io.cpp`` (``DecodeDatumToCVMat``); OpenCV, ``imdecode`` and the
defaults of ``imencode``.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from demitasse.core.extras import needs_extra
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.io.data.bad_records import located, read_file

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "SUN", "TIFF", "WEBP")
"""Formats of OpenCV. Pillow reads more, among them EPS, for which it would start Ghostscript."""

ROOM, GROWTH = 1 << 26, 50
"""Largest image in bytes; for large files, largest number of bytes per byte of the file."""

Color = Literal["native", "color", "gray", "indices"]
"""Channels to decode to: those of the file, always BGR, always gray, or palette indices.

Label images store classes as palette indices; files without a palette decode to gray.
"""


def decode_image(content: bytes | memoryview, color: Color = "native") -> np.ndarray:
    """Decode the bytes of an image file. Shape: (C, H, W), uint8.

    Colour images are BGR (BGRA for ``native``, if the file has alpha). Unless ``color`` is
    ``native``, the image is rotated according to EXIF.

    Raises:
        DataError: Pillow is not installed, the image cannot be decoded, or is far larger than its
            file.
    """
    with opened(content) as image:
        if color == "gray":
            # JPEG stores luma separately; other formats ignore draft mode.
            image.draft("L", image.size)
        return pixels_of(image, color)


def decode_frames(content: bytes | memoryview, color: Color = "color") -> Iterator[np.ndarray]:
    """Yield each frame of an animation, or page; see ``decode_image``. Shape: (C, H, W), uint8."""
    with opened(content) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            _check_size(image, len(content))  # pages may differ in size
            image.load()  # a frame may change the channels of the composed image
            yield pixels_of(image, color)


def pixels_of(image: Image, color: Color) -> np.ndarray:
    """Return the pixels of an image of Pillow, as ``decode_image``. Shape: (C, H, W), uint8."""
    upright = _as_opencv(image, color)
    if color != "native" and "exif" in image.info:
        import PIL.ImageOps

        upright = PIL.ImageOps.exif_transpose(upright)
    mode = _mode(upright, color)
    return _planes(upright if upright.mode == mode else upright.convert(mode))


def _as_opencv(image: Image, color: Color) -> Image:
    """Return an image in a mode of 8 bits, with OpenCV's values."""
    import PIL.Image

    most = image.info.get(MAXIMUM, 255)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in {"PNG", "PPM"}):
        if color not in {"color", "gray"}:
            message = "a gray image of 16 bits has no 8-bit pixels; convert it to 8 bits"
            raise ValueError(message)
        values = np.asarray(image).astype(np.int64)
        if most not in {255, SIXTEEN_BITS}:  # Pillow has scaled the values
            values = (values * most + SIXTEEN_BITS // 2) // SIXTEEN_BITS
        if _tiff_tag(image, PHOTOMETRIC) == WHITE_IS_ZERO:
            values = SIXTEEN_BITS - values
        return _with_info(PIL.Image.fromarray((values >> 8).astype(np.uint8)), image)
    if image.mode in {"F", "I", "LAB"} or 255 < most < SIXTEEN_BITS:
        message = f"an image of mode {image.mode} has no 8-bit pixels; convert it to 8 bits"
        raise ValueError(message)
    if most < 255 and image.mode in {"L", "RGB"}:  # Pillow has scaled the values
        return image.point([(value * most + 127) // 255 for value in range(256)] * len(image.mode))
    if image.mode == "YCbCr" and image.format == "TIFF" and color == "gray":
        return image.convert("RGB")
    if image.format == "TIFF" and image.mode == "LA":
        return image.convert("L")
    if image.mode == "RGBA" and _tiff_tag(image, EXTRA_SAMPLES) == UNASSOCIATED:
        pixels = np.asarray(image).astype(np.uint16)
        pixels[:, :, :3] = (pixels[:, :, :3] * pixels[:, :, 3:] + 127) // 255
        return _with_info(PIL.Image.fromarray(pixels.astype(np.uint8)), image)
    return image


def _with_info(made: Image, image: Image) -> Image:
    """Return ``made`` with the orientation of ``image``."""
    made.info = image.info
    made.getexif().update(image.getexif())
    return made


MAXIMUM, SIXTEEN_BITS = "maximum", 65535
"""Key of ``Image.info`` for the largest value of a PNM file; the largest value of 16 bits."""

PHOTOMETRIC, WHITE_IS_ZERO = 262, 0
EXTRA_SAMPLES, UNASSOCIATED = 338, 2  # tags of TIFF and their values


def _tiff_tag(image: Image, tag: int) -> int | None:
    """Return the number in a tag of a TIFF file, or None."""
    found: Any = getattr(image, "tag_v2", {}).get(tag)
    return found[0] if isinstance(found, tuple) and found else found  # type: ignore[no-any-return]


def _pnm_maximum(image: Image) -> int:
    """Return the largest value of the pixels that a PNM file declares; 255 for other files."""
    tiles: Any = getattr(image, "tile", None)
    if image.format != "PPM" or not tiles:
        return 255
    args = tiles[0][3]
    found = args[-1] if isinstance(args, tuple) else args
    return found if isinstance(found, int) and found > 0 else 255


@contextmanager
def opened(content: bytes | memoryview) -> Iterator[Image]:
    """Open an image with Pillow; failures inside the block become DataErrors."""
    with needs_extra(DataError, "decoding images", "Pillow", "image"):
        import PIL.Image
    try:
        PIL.Image.init()
        known = [name for name in FORMATS if name in PIL.Image.OPEN]
        with PIL.Image.open(io.BytesIO(content), formats=known) as image:
            _check_size(image, len(content))
            image.info[MAXIMUM] = _pnm_maximum(image)
            yield image
    except PIL.UnidentifiedImageError as error:  # its message names our buffer, not the file
        message = f"cannot be decoded as an image: got none of the formats {', '.join(known)}"
        raise DataError(message, code=ErrorCode.UNREADABLE) from error
    except (*DAMAGE, PIL.Image.DecompressionBombError) as error:
        message = f"cannot be decoded as an image: {error}"
        raise DataError(message, code=ErrorCode.UNREADABLE) from error


def read_image(path: Path, color: Color = "native") -> np.ndarray:
    """Decode an image file, or raise DataError; see ``decode_image``. Shape: (C, H, W), uint8."""
    content = read_file(path)
    try:
        return decode_image(content, color)
    except DataError as error:
        raise located(error, str(path)) from error


DAMAGE = (OSError, EOFError, ValueError, SyntaxError, TypeError, LookupError, struct.error, Warning)
"""Exceptions of Pillow for damaged files; warnings only if Python raises them as errors."""


def _check_size(image: Image, size: int) -> None:
    """Refuse an image that is too large for its file, before decoding."""
    most = max(ROOM, GROWTH * size) // 4
    if image.width * image.height > most:
        got = f"got {image.width} x {image.height} pixels in {size} bytes"
        message = f"{got}, expected at most {most} pixels for a file of this size"
        raise ValueError(message)


def _mode(image: Image, color: Color) -> str:
    """Return the Pillow mode with OpenCV's channels."""
    if color == "gray":
        return "L"
    if color == "color":
        return "RGB"
    if color == "indices" and image.mode == "P":
        return "P"
    if color not in get_args(Color):
        message = f"got color {color!r}, expected one of {', '.join(get_args(Color))}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="color", got=color)
    if color == "indices" or image.mode in {"1", "L"}:
        return "L"
    has_alpha = image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info
    return "RGBA" if has_alpha else "RGB"


def _planes(image: Image) -> np.ndarray:
    """Return the pixels of an image. Shape: (C, H, W), uint8.

    One call packs all pixels. ``np.asarray`` packs 64 KB at a time and joins the parts, which takes
    as long as decoding.
    """
    from PIL.Image import _getencoder

    image.load()
    (width, height), channels = image.size, len(image.mode)
    packer = _getencoder(image.mode, "raw", (image.mode,))
    packer.setimage(image.im, (0, 0, width, height))
    packed = packer.encode(height * width * channels)[2]
    whole = len(packed) == height * width * channels
    pixels = np.frombuffer(packed, np.uint8) if whole else np.asarray(image)
    pixels = pixels.reshape(height, width, channels)
    if channels > 1:
        pixels = pixels[:, :, [2, 1, 0, 3]] if channels == 4 else pixels[:, :, ::-1]
    return pixels.transpose(2, 0, 1)


ENCODERS = {
    "bmp": "BMP", "jpeg": "JPEG", "jpe": "JPEG", "jpg": "JPEG", "png": "PNG", "tif": "TIFF",
    "tiff": "TIFF", "webp": "WEBP",
}  # fmt: skip
"""File name extension -> Pillow's format name."""

ENCODER_OPTIONS: dict[str, dict[str, int]] = {
    "JPEG": {"quality": 95},
    "PNG": {"compress_level": 1},
    "WEBP": {"lossless": 1},
}


def encode_image(image: np.ndarray, ending: str, **options: int) -> bytes:
    """Return an image file with an extension such as jpg, of gray or BGR (C, H, W), uint8.

    ``options`` of Pillow, such as quality, replace those of OpenCV.
    """
    need_encoder(ending)
    with needs_extra(DataError, "encoding images", "Pillow", "image"):
        import PIL.Image
    kind = ENCODERS[ending.lower()]
    pixels = image[0] if len(image) == 1 else image[::-1].transpose(1, 2, 0)
    file = io.BytesIO()
    try:
        picture = PIL.Image.fromarray(np.ascontiguousarray(pixels))
        picture.save(file, kind, **(ENCODER_OPTIONS.get(kind, {}) | options))
    except (OSError, ValueError) as error:
        message = f"cannot be encoded as {kind}: {error}"
        raise DataError(message, code=ErrorCode.UNSUPPORTED, kind=kind) from error
    return file.getvalue()


def need_encoder(ending: str) -> None:
    """Refuse an unknown image format."""
    if ending.lower() not in ENCODERS:
        message = f"images cannot be encoded as {ending!r}; expected one of {', '.join(ENCODERS)}"
        raise ConfigError(message, code=ErrorCode.UNKNOWN, field="encode_type", got=ending)


IMAGES = {
    *(".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".jp2", ".pbm", ".pgm", ".png"),
    *(".pnm", ".ppm", ".ras", ".sr", ".tif", ".tiff", ".webp"),
}
VIDEOS = {
    *(".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv")
}
"""File name extensions, in lower case."""


def files_in(folder: Path, endings: Collection[str]) -> Iterator[Path]:
    """Yield files with ``endings`` below a folder, in order; none hidden or in linked folders."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if not path.is_symlink():
                yield from files_in(path, endings)
        elif path.suffix.lower() in endings:
            yield path
