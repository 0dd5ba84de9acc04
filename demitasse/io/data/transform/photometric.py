"""Photometric augmentation: ``distort_param`` and ``noise_param``.

``distort_param``: half of the images change contrast right after brightness, the others last. Each
step rounds to whole levels. SSD then recompresses the image as JPEG, which is omitted here.

``noise_param``: degradations in SSD's order. ``prob`` is the probability of all steps. SSD reads
``prob`` without using it, so without ``prob`` every image is degraded. ``convert_to_lab`` returns
the values of L, a and b; SSD reinterpreted the bytes of these floats as pixels.

Not compared with the original; the single operations are compared with OpenCV.

Source: SSD, ``src/caffe/util/im_transforms.cpp`` (``ApplyDistort``, ``ApplyNoise``).
"""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.images import colors
from demitasse.io.data.images.codecs import decode_image, encode_image
from demitasse.io.data.transform.mean import check_channel_values
from demitasse.io.data.transform.random import Choice, Draws
from demitasse.io.proto import DistortionParameter, NoiseParameter

ORDERS = list(permutations(range(3)))
HUE, SATURATION = 0, 1


class Distort:
    """Distorts colours."""

    def __init__(self, param: DistortionParameter) -> None:
        self._param = param
        code = ErrorCode.OUT_OF_RANGE
        for name in ("brightness_delta", "hue_delta"):
            delta, field = getattr(param, name), f"distort_param.{name}"
            if delta < 0:
                message = f"got {field} {delta:g}, expected 0 or more"
                raise ConfigError(message, code=code, field=field, got=delta)
        for name in ("contrast", "saturation"):
            low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
            field = f"distort_param.{name}_lower"
            if not 0 <= low <= high:
                limits = f"{low:g} and {name}_upper {high:g}"
                message = f"got {field} {limits}; expected 0 <= lower <= upper"
                raise ConfigError(message, code=code, field=field)
        self._needs_color = max(param.saturation_prob, param.hue_prob, param.random_order_prob) > 0

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return an image with distorted colours. Shapes: (C, H, W), uint8."""
        if self._needs_color and len(image) != 3:
            message = (
                f"got {len(image)} channels, expected 3 for saturation, hue or channel order; "
                "set force_color, or remove those fields"
            )
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, got=len(image), expected=3)
        p, between = self._param, draws.between
        contrast_first = draws.share(Choice.ORDER) > 0.5
        if draws.happens(Choice.BRIGHTNESS, p.brightness_prob):
            delta = between(Choice.BRIGHTNESS_DELTA, -p.brightness_delta, p.brightness_delta)
            image = _levels(image, 1, delta)
        if contrast_first:
            image = self._contrast(image, draws)
        if draws.happens(Choice.SATURATION, p.saturation_prob):
            factor = between(Choice.SATURATION_FACTOR, p.saturation_lower, p.saturation_upper)
            image = _hsv_levels(image, SATURATION, factor, 0)
        if draws.happens(Choice.HUE, p.hue_prob):
            delta = between(Choice.HUE_DELTA, -p.hue_delta, p.hue_delta)
            image = _hsv_levels(image, HUE, 1, delta)  # clipped at 0, as in SSD
        if not contrast_first:
            image = self._contrast(image, draws)
        if draws.happens(Choice.CHANNELS, p.random_order_prob):
            order = ORDERS[draws.one_of(Choice.CHANNELS_ORDER, len(ORDERS))]
            image = image[list(order)]
        return image

    def _contrast(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        p = self._param
        if not draws.happens(Choice.CONTRAST, p.contrast_prob):
            return image
        factor = draws.between(Choice.CONTRAST_FACTOR, p.contrast_lower, p.contrast_upper)
        return _levels(image, factor, 0) if abs(factor - 1) > 1e-3 else image


def _levels(image: np.ndarray, factor: float, more: float) -> np.ndarray:
    """Return level * factor + more of every pixel, by a lookup table. uint8, any shape."""
    table = np.arange(256, dtype=np.float32) * np.float32(factor) + np.float32(more)
    return np.take(colors.to_uint8(table), image)


def _hsv_levels(image: np.ndarray, channel: int, factor: float, more: float) -> np.ndarray:
    """Change the levels of one channel of HSV. Shapes: (3, H, W), uint8."""
    hsv = colors.bgr_to_hsv(image)
    hsv[channel] = _levels(hsv[channel], factor, more)
    return colors.hsv_to_bgr(hsv)


CLIP_LIMIT = 4.0
POSTERIZE_STEP = 64  # distance of the levels left by ``posterize``

BLUR_SIZE, BLUR_SIGMA = 7, 1.5


class Noise:
    """Degrades images."""

    def __init__(self, param: NoiseParameter) -> None:
        self._param = param
        self._probability = param.prob if param.HasField("prob") else 1.0
        dots = param.saltpepper_param
        if param.saltpepper and not (dots.value and 0 <= dots.fraction <= 1):
            message = (
                "noise_param.saltpepper needs a saltpepper_param with a value and a fraction from "
                f"0 to 1; got {len(dots.value)} values and the fraction {dots.fraction:g}"
            )
            raise ConfigError(message, code=ErrorCode.INVALID, field="noise_param.saltpepper")
        if param.convert_to_hsv and param.convert_to_lab:
            message = "noise_param.convert_to_hsv and convert_to_lab are both set; set one of them"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="noise_param.convert_to_hsv")

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the image, perhaps degraded. Shapes: (1 or 3, H, W), uint8, or float32 for Lab."""
        p = self._param
        if not draws.happens(Choice.NOISE, self._probability):
            return image
        if p.decolorize and len(image) == 3:
            image = np.repeat(colors.bgr_to_gray(image)[None], 3, 0)
        if p.gauss_blur:
            image = blur(image)
        if p.hist_eq:
            image = _of_brightness(image, colors.equalize)
        if p.clahe:
            image = _of_brightness(image, lambda plane: colors.equalize_parts(plane, CLIP_LIMIT))
        if p.jpeg > 0:
            image = recompress(image, max(1, int(min(p.jpeg, 100))))
        if p.erode:
            image = erode(image)
        if p.posterize:
            image = image // POSTERIZE_STEP * POSTERIZE_STEP + POSTERIZE_STEP // 2
        if p.inverse:
            image = ~image
        if p.saltpepper:
            image = self._salted(image, draws)
        if (p.convert_to_hsv or p.convert_to_lab) and len(image) != 3:
            message = (
                f"got {len(image)} channels, expected 3 for another colour space; set force_color"
            )
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, got=len(image), expected=3)
        if p.convert_to_hsv:
            return colors.bgr_to_hsv(image)
        return colors.bgr_to_lab(image) if p.convert_to_lab else image

    def _salted(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Overwrite random pixels."""
        dots = self._param.saltpepper_param
        C, H, W = image.shape
        check_channel_values("saltpepper_param.value", len(dots.value), C)
        values = np.clip(np.array(dots.value), 0, 255).astype(np.uint8)
        places = draws.indices(Choice.PIXELS, math.floor(dots.fraction * H * W), H * W)
        salted = image.reshape(C, H * W).copy()
        salted[:, places] = values[:, None]
        return salted.reshape(C, H, W)


def blur(image: np.ndarray) -> np.ndarray:
    """Apply a Gaussian blur: 7 x 7 pixels, sigma 1.5 pixels. Shapes: (C, H, W), uint8."""
    reach = BLUR_SIZE // 2
    bell = np.exp(-((np.arange(BLUR_SIZE) - reach) ** 2) / (2 * BLUR_SIGMA**2))
    bell = (bell / bell.sum()).astype(np.float32)
    blurred = image.astype(np.float32)
    for axis in (1, 2):
        size = blurred.shape[axis]
        pad = [(0, 0), (0, 0), (0, 0)]
        pad[axis] = (reach, reach)
        padded = np.pad(blurred, pad, "reflect" if size > 1 else "edge")
        views = np.lib.stride_tricks.sliding_window_view(padded, BLUR_SIZE, axis)
        blurred = views @ bell
    return colors.to_uint8(blurred)


def erode(image: np.ndarray) -> np.ndarray:
    """Return the minimum of each pixel and its four neighbours. Shapes: (C, H, W), uint8."""
    eroded = image.copy()
    np.minimum(eroded[:, 1:], image[:, :-1], out=eroded[:, 1:])
    np.minimum(eroded[:, :-1], image[:, 1:], out=eroded[:, :-1])
    np.minimum(eroded[:, :, 1:], image[:, :, :-1], out=eroded[:, :, 1:])
    np.minimum(eroded[:, :, :-1], image[:, :, 1:], out=eroded[:, :, :-1])
    return eroded


def recompress(image: np.ndarray, quality: int) -> np.ndarray:
    """Encode an image as JPEG, quality 1 to 100, and decode it. Shapes: (1 or 3, H, W), uint8."""
    content = encode_image(image, "jpg", quality=quality)
    return decode_image(content, "gray" if len(image) == 1 else "color")


def _of_brightness(image: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply a function to the luma of an image."""
    if len(image) == 1:
        return change(image[0])[None]
    brightness, red, blue = colors.bgr_to_ycrcb(image)
    return colors.ycrcb_to_bgr(np.stack([change(brightness), red, blue]))
