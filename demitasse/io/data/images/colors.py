"""Colour spaces and histograms of 8-bit images, rounded as by OpenCV.

Agrees with OpenCV within one level, ``equalize`` exactly, Lab within half a unit (OpenCV
interpolates in a table).

Source: OpenCV, ``modules/imgproc/src/color_hsv``, ``color_yuv`` and ``color_lab``, 8-bit pixels;
``histogram.cpp`` (``equalizeHist``) and ``clahe.cpp``.
"""

from __future__ import annotations

import numpy as np


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Round values and clip them to 0 to 255. Shapes: any, the same, uint8."""
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


BITS = 14
GRAY = (1868, 9617, 4899)  # luma weights of blue, green and red, in units of 1 / 16384

HUES = 180
"""Number of hues; OpenCV halves degrees."""

PER_VALUE = np.rint((255 << 12) / np.maximum(np.arange(256), 1)).astype(np.int32)
PER_SPREAD = np.rint((HUES << 12) / (6 * np.maximum(np.arange(256), 1))).astype(np.int32)
"""Saturation per level of value, and hue per level of spread, in units of 1 / 4096."""

FROM_TURN = (np.arange(256) * (6 / HUES) + np.array([[1], [3], [5]])) % 6
LACK = np.clip(np.minimum(FROM_TURN, 4 - FROM_TURN), 0, 1).astype(np.float32)
"""Share of the spread that blue, green and red lack, per hue. Shape: (3, 256)."""

XYZ = np.array(
    [
        [0.180423, 0.357580, 0.412453],
        [0.072169, 0.715160, 0.212671],
        [0.950227, 0.119193, 0.019334],
    ],
    np.float32,
)
"""XYZ of blue, green and red (sRGB, white D65)."""

WHITE = np.array([0.950456, 1.0, 1.088754], np.float32)


def bgr_to_gray(image: np.ndarray) -> np.ndarray:
    """Return the luma. Shapes: (3, H, W) uint8 -> (H, W) uint8."""
    return _shifted(np.tensordot(np.array(GRAY, np.int32), image.astype(np.int32), 1))


def bgr_to_ycrcb(image: np.ndarray) -> np.ndarray:
    """Return luma Y and the chroma Cr and Cb. Shapes: (3, H, W), uint8."""
    blue, _, red = image.astype(np.int32)
    gray = bgr_to_gray(image).astype(np.int32)
    middle = 128 << BITS
    more_red, more_blue = (red - gray) * 11682 + middle, (blue - gray) * 9241 + middle
    return np.stack([gray.astype(np.uint8), _shifted(more_red), _shifted(more_blue)])


def ycrcb_to_bgr(image: np.ndarray) -> np.ndarray:
    """Invert ``bgr_to_ycrcb``. Shapes: (3, H, W), uint8."""
    gray, red, blue = image.astype(np.int32)
    red, blue, gray = red - 128, blue - 128, gray << BITS
    planes = (29049 * blue, -5636 * blue - 11698 * red, 22987 * red)
    return np.stack([_shifted(gray + plane) for plane in planes])


def bgr_to_hsv(image: np.ndarray) -> np.ndarray:
    """Return hue (0 to 179), saturation and value. Shapes: (3, H, W), uint8."""
    blue, green, red = image.astype(np.int32)
    value = np.maximum(np.maximum(blue, green), red)
    spread = value - np.minimum(np.minimum(blue, green), red)
    saturation = (spread * np.take(PER_VALUE, value) + (1 << 11)) >> 12
    sixths = red - green + 4 * spread
    np.copyto(sixths, blue - red + 2 * spread, where=value == green)
    np.copyto(sixths, green - blue, where=value == red)
    hue = (sixths * np.take(PER_SPREAD, spread) + (1 << 11)) >> 12
    hue += HUES * (hue < 0)
    return np.stack([hue, saturation, value]).astype(np.uint8)


def hsv_to_bgr(image: np.ndarray) -> np.ndarray:
    """Invert ``bgr_to_hsv``; hues from 180 on wrap around. Shapes: (3, H, W), uint8."""
    hue, saturation, value = image
    most = value.astype(np.float32)
    spread = most * saturation / np.float32(255)
    return to_uint8(np.stack([most - spread * np.take(row, hue) for row in LACK]))


def bgr_to_lab(image: np.ndarray) -> np.ndarray:
    """Return L (0 to 100), a and b of CIE 1976. Shapes: (3, H, W), uint8 -> float32."""
    part = image.astype(np.float32) / np.float32(255)
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    x, y, z = np.tensordot(XYZ / WHITE[[0, 1, 2], None], light.astype(np.float32), 1)
    fx, fy, fz = (np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116) for t in (x, y, z))
    lightness = np.where(y > 0.008856, 116 * fy - 16, 903.3 * y)
    return np.stack([lightness, 500 * (fx - fy), 200 * (fy - fz)]).astype(np.float32)


def lab_to_bgr(image: np.ndarray) -> np.ndarray:
    """Invert ``bgr_to_lab``, clipped to sRGB. Shapes: (3, H, W) float32 -> uint8."""
    lightness, a, b = image.astype(np.float32)
    dark = lightness <= 903.3 * 0.008856
    y = np.where(dark, lightness / np.float32(903.3), ((lightness + 16) / 116) ** 3)
    fy = np.where(dark, 7.787 * y + 16 / 116, (lightness + 16) / 116)
    fx, fz = fy + a / 500, fy - b / 200
    x, z = (np.where(f**3 > 0.008856, f**3, (f - 16 / 116) / 7.787) for f in (fx, fz))
    light = np.tensordot(np.linalg.inv(XYZ), np.stack([x, y, z]) * WHITE[:, None, None], 1)
    light = light.clip(0, 1)
    part = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return to_uint8(255 * part)


LUMA = np.array([24.966, 128.553, 65.481], np.float32) / np.float32(255)
"""Weights of blue, green and red in the luma of BT.601 for video, from 16 to 235."""

CONTRAST = np.float32(255 / 219)  # levels of blue, green and red per level of this luma


def bgr_to_luma(image: np.ndarray) -> np.ndarray:
    """Return the luma of BT.601 for video, as MATLAB. Shapes: (3, H, W) uint8 -> (H, W) float32."""
    return np.tensordot(LUMA, image.astype(np.float32), 1) + np.float32(16)


def with_luma(image: np.ndarray, luma: np.ndarray) -> np.ndarray:
    """Replace the luma (H, W), float32, of an image (3, H, W), uint8, and keep the chroma."""
    return to_uint8(image + CONTRAST * (luma - bgr_to_luma(image)))


def _shifted(values: np.ndarray) -> np.ndarray:
    """Convert values in units of 1 / 16384 to pixels."""
    return to_uint8((values + (1 << (BITS - 1))) >> BITS)


LEVELS = 256
PARTS = 8  # tiles per direction


def equalize(image: np.ndarray) -> np.ndarray:
    """Equalise the histogram of an image. Shapes: (H, W), uint8."""
    counts = np.bincount(image.ravel(), minlength=LEVELS)
    darkest = int(np.flatnonzero(counts)[0])
    brighter = image.size - counts[darkest]
    if not brighter:
        return image
    counts[darkest] = 0
    scale = np.float32(LEVELS - 1) / np.float32(brighter)
    table = np.cumsum(counts).astype(np.float32) * scale
    return np.take(to_uint8(table), image)


def equalize_parts(image: np.ndarray, limit: float) -> np.ndarray:
    """Equalise the histograms of 8 x 8 tiles, and interpolate between tiles (CLAHE).

    Shapes: (H, W), uint8. ``limit`` is the largest count of a level, relative to the mean count.
    """
    H, W = image.shape
    uneven = H % PARTS or W % PARTS
    pad = (PARTS - H % PARTS, PARTS - W % PARTS) if uneven else (0, 0)
    padded = np.pad(image, ((0, pad[0]), (0, pad[1])), "reflect" if min(H, W) > 1 else "edge")
    h, w = padded.shape[0] // PARTS, padded.shape[1] // PARTS
    parts = padded.reshape(PARTS, h, PARTS, w).swapaxes(1, 2).reshape(PARTS * PARTS, h * w)
    tables = np.stack([_table(part, limit) for part in parts]).reshape(PARTS, PARTS, LEVELS)
    above, below, down = _neighbours(H, h)
    left, right, along = _neighbours(W, w)
    down = down[:, None]
    over = tables[above[:, None], left, image] * (1 - along)
    over += tables[above[:, None], right, image] * along
    under = tables[below[:, None], left, image] * (1 - along)
    under += tables[below[:, None], right, image] * along
    result = over * (1 - down) + under * down
    return to_uint8(result)


def _table(part: np.ndarray, limit: float) -> np.ndarray:
    """Return the new level of each old level of a tile. Shapes: (n,) -> (256,), float32."""
    counts = np.bincount(part, minlength=LEVELS)
    most = max(int(limit * part.size / LEVELS), 1)
    beyond = int(np.maximum(counts - most, 0).sum())
    counts = np.minimum(counts, most) + beyond // LEVELS
    rest = beyond % LEVELS
    if rest:
        counts[: rest * max(LEVELS // rest, 1) : max(LEVELS // rest, 1)] += 1
    scale = np.float32(LEVELS - 1) / np.float32(part.size)
    table = np.cumsum(counts).astype(np.float32) * scale
    return np.asarray(to_uint8(table), np.float32)


def _neighbours(size: int, part: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return per pixel the two neighbouring tiles and the weight of the second."""
    place = np.arange(size, dtype=np.float32) * np.float32(1 / part) - np.float32(0.5)
    first = np.floor(place).astype(np.intp)
    share = place - first.astype(np.float32)
    return np.clip(first, 0, PARTS - 1), np.clip(first + 1, 0, PARTS - 1), share
