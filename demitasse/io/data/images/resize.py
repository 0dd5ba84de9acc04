"""Resizing as by OpenCV's ``cv::resize``: bilinear in 11-bit fixed point, and five other modes.

Unlike Pillow, shrinking does not average the pixels between samples; published nets were trained
on such images. Modes of ``interp_mode`` agree with OpenCV within one level, LINEAR exactly.

Source: OpenCV, ``modules/imgproc/src/resize.cpp``.
"""

from functools import lru_cache

import numpy as np

from demitasse.backends.kernels.language import has_kernels
from demitasse.core.extras import needs_extra
from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.images.colors import to_uint8
from demitasse.io.data.images.samples import ONE, samples, shares


def resize_image(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Resize an image of bytes or fractions bilinearly. Shapes: (C, H, W) -> (C, height, width).

    ``step`` is the number of old pixels per new pixel, in both directions; None: from the sizes.

    Raises:
        ShapeError: The image does not have three axes, or a size is 0.
    """
    if image.ndim != 3 or min(*image.shape[1:], height, width) < 1:
        message = f"cannot resize an image (C, H, W) of {image.shape} to {height} x {width} pixels"
        raise ShapeError(message, code=ErrorCode.INVALID, got=image.shape, expected=(height, width))
    if image.shape[1:] == (height, width):
        return image
    if image.dtype.kind == "f":
        return resize_values(image, height, width, step)
    if image.dtype == np.uint8 and has_kernels():
        from demitasse.io.data.images.resize_kernel import resized

        return resized(image, height, width, step)
    return portable(image, height, width, step)


def portable(image: np.ndarray, height: int, width: int, step: float | None = None) -> np.ndarray:
    """Resize an image in numpy, with the same bits as the kernel of ``resize_image``."""
    _, H, W = image.shape
    rows, columns = shares(H, height, step, clamp=False), shares(W, width, step)
    needed, place = np.unique(np.concatenate([rows.first, rows.second]), return_inverse=True)
    # numpy is slow on the memory layout of decoded images.
    planes = np.ascontiguousarray(image if len(needed) == H else image[:, needed])
    squeezed = planes.take(columns.first, axis=2) * (ONE - columns.share)
    squeezed += planes.take(columns.second, axis=2) * columns.share
    squeezed >>= 4
    total = (squeezed.take(place[:height], axis=1) * (ONE - rows.share)[:, None]) >> 16
    total += (squeezed.take(place[height:], axis=1) * rows.share[:, None]) >> 16
    total += 2
    total >>= 2
    return np.asarray(np.clip(total, 0, 255), np.uint8)


def resize_values(
    image: np.ndarray, height: int, width: int, step: float | None = None
) -> np.ndarray:
    """Resize an image of fractions as ``resize_image``. Shapes: (C, H, W) -> (C, height, width)."""
    _, H, W = image.shape
    left, right, across = samples(W, width, step)
    rows = image[:, :, left] * (1 - across) + image[:, :, right] * across
    above, below, down = samples(H, height, step, clamp=False)
    return np.asarray(rows[:, above] * (1 - down)[:, None] + rows[:, below] * down[:, None])


def resize_bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize by Pillow's bicubic kernel, which is MATLAB's. Shapes: (3, H, W), uint8."""
    if image.shape[1:] == (height, width):
        return image
    with needs_extra(DataError, "bicubic resizing", "Pillow", "image"):
        import PIL.Image
    picture = PIL.Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    resized = picture.resize((width, height), PIL.Image.Resampling.BICUBIC)
    return np.asarray(resized).transpose(2, 0, 1)


MODES = ("LINEAR", "AREA", "NEAREST", "CUBIC", "LANCZOS4")  # values of ``interp_mode``
SHARPNESS = -0.75  # derivative parameter of the bicubic kernel


def interpolate(image: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    """Resize an image in one of ``MODES``. Shapes: (C, H, W) -> (C, height, width), uint8."""
    H, W = image.shape[1:]
    if (height, width) == (H, W):
        return image
    if mode == "LINEAR":
        return resize_image(image, height, width)
    if mode == "NEAREST":
        return image[:, _nearest(H, height)][:, :, _nearest(W, width)]
    if mode == "AREA" and (height > H or width > W):
        mode = "SPREAD"  # no area to average
    rows, columns = _weights(H, height, mode), _weights(W, width, mode)
    result = np.matmul(np.matmul(rows, image.astype(np.float32)), columns.T)
    return to_uint8(result)


def _nearest(size: int, wanted: int) -> np.ndarray:
    """Return the source pixel of each new pixel. Shape: (wanted,)."""
    scale = 1.0 / (wanted / size)  # OpenCV's rounding
    return np.asarray(np.minimum(np.arange(wanted) * scale, size - 1), np.intp)


@lru_cache(64)
def _weights(size: int, wanted: int, mode: str) -> np.ndarray:
    """Return the weight of each old pixel in each new pixel. Shape: (wanted, size), float32."""
    scale = 1.0 / (wanted / size)
    new = np.arange(wanted)
    if mode == "AREA":  # overlap of each old pixel with each new pixel
        begin, old = new[:, None] * scale, np.arange(size)
        under = np.minimum(begin + scale, old + 1) - np.maximum(begin, old)
        return np.asarray(np.clip(under, 0, 1) / scale, np.float32)
    if mode == "SPREAD":  # linear where a new pixel overlaps two old pixels
        first = np.floor(new * scale).astype(np.intp)
        share = ((new + 1) - (first + 1) * (wanted / size)).astype(np.float32)
        share = np.maximum(share, 0) % 1
        taps = np.stack([1 - share, share], 1)
        return _spread(first, taps, 0, size)
    place = (new + 0.5) * scale - 0.5
    first = np.floor(place).astype(np.intp)
    taps = (_cubic if mode == "CUBIC" else _lanczos)(place - first)
    return _spread(first, taps, taps.shape[1] // 2 - 1, size)


def _spread(first: np.ndarray, taps: np.ndarray, before: int, size: int) -> np.ndarray:
    """Scatter taps, (wanted, n), from ``before`` pixels before ``first`` on; edge pixels repeat."""
    weights = np.zeros((len(first), size))
    place = np.clip(first[:, None] - before + np.arange(taps.shape[1]), 0, size - 1)
    np.add.at(weights, (np.arange(len(first))[:, None], place), taps)
    return weights.astype(np.float32)


def _cubic(share: np.ndarray) -> np.ndarray:
    """Return the weights of four neighbours. Shapes: (n,) -> (n, 4)."""
    t = np.abs(share[:, None] - np.arange(-1, 3))
    near = ((SHARPNESS + 2) * t - (SHARPNESS + 3)) * t * t + 1
    far = ((SHARPNESS * t - 5 * SHARPNESS) * t + 8 * SHARPNESS) * t - 4 * SHARPNESS
    return np.where(t <= 1, near, far)


def _lanczos(share: np.ndarray) -> np.ndarray:
    """Return the weights of eight neighbours, normalized to 1. Shapes: (n,) -> (n, 8)."""
    t = share[:, None] - np.arange(-3, 5)
    taps: np.ndarray = np.sinc(t) * np.sinc(t / 4)
    taps /= taps.sum(1, keepdims=True)
    return taps
