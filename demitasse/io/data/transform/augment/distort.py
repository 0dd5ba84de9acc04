"""``distort_param``: random brightness, contrast, saturation, hue and channel order.

Half of the images change contrast right after brightness, the others last. Each step rounds to
whole levels. SSD then recompresses the image as JPEG, which is omitted here.

Not compared with the original.

Source: SSD, ``src/caffe/util/im_transforms.cpp`` (``ApplyDistort``).
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.images.colors import bgr_to_hsv, hsv_to_bgr
from demitasse.io.data.images.levels import rounded
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.proto import DistortionParameter

__all__ = ["Distort"]

ORDERS = list(permutations(range(3)))
HUE, SATURATION = 0, 1


class Distort:
    """Distorts colours.

    Args:
        param: The ranges and probabilities.

    Raises:
        ConfigError: A range is empty or has negative numbers.
    """

    def __init__(self, param: DistortionParameter) -> None:
        self._param = param
        for name in ("brightness_delta", "hue_delta"):
            delta = getattr(param, name)
            if delta < 0:
                message = f"got distort_param.{name} {delta:g}, expected 0 or more"
                raise ConfigError(
                    message, code=ErrorCode.OUT_OF_RANGE, field=f"distort_param.{name}", got=delta
                )
        for name in ("contrast", "saturation"):
            low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
            if not 0 <= low <= high:
                message = (
                    f"got distort_param.{name}_lower {low:g} and {name}_upper {high:g}; "
                    "expected 0 <= lower <= upper"
                )
                raise ConfigError(
                    message, code=ErrorCode.OUT_OF_RANGE, field=f"distort_param.{name}_lower"
                )
        self._needs_color = max(param.saturation_prob, param.hue_prob, param.random_order_prob) > 0

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return an image with distorted colours.

        Args:
            image: Shape: (C, H, W), uint8.
            draws: Random numbers of the record.

        Raises:
            ShapeError: Saturation, hue or channel order may change, but there are not 3 channels.
        """
        if self._needs_color and len(image) != 3:
            message = (
                f"got {len(image)} channels, expected 3 for saturation, hue or channel order; "
                "set force_color, or remove those fields"
            )
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, got=len(image), expected=3)
        contrast_first = draws.share(Choice.ORDER) > 0.5
        image = self._brightness(image, draws)
        if contrast_first:
            image = self._contrast(image, draws)
        image = self._saturation(image, draws)
        image = self._hue(image, draws)
        if not contrast_first:
            image = self._contrast(image, draws)
        if draws.happens(Choice.CHANNELS, self._param.random_order_prob):
            order = ORDERS[draws.one_of(Choice.CHANNELS_ORDER, len(ORDERS))]
            image = image[list(order)]
        return image

    def _brightness(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        p = self._param
        if not draws.happens(Choice.BRIGHTNESS, p.brightness_prob):
            return image
        delta = draws.between(Choice.BRIGHTNESS_DELTA, -p.brightness_delta, p.brightness_delta)
        return _levels(image, 1, delta)

    def _contrast(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        p = self._param
        if not draws.happens(Choice.CONTRAST, p.contrast_prob):
            return image
        factor = draws.between(Choice.CONTRAST_FACTOR, p.contrast_lower, p.contrast_upper)
        return _levels(image, factor, 0) if abs(factor - 1) > 1e-3 else image

    def _saturation(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        p = self._param
        if not draws.happens(Choice.SATURATION, p.saturation_prob):
            return image
        factor = draws.between(Choice.SATURATION_FACTOR, p.saturation_lower, p.saturation_upper)
        hsv = bgr_to_hsv(image)
        hsv[SATURATION] = _levels(hsv[SATURATION], factor, 0)
        return hsv_to_bgr(hsv)

    def _hue(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        p = self._param
        if not draws.happens(Choice.HUE, p.hue_prob):
            return image
        delta = draws.between(Choice.HUE_DELTA, -p.hue_delta, p.hue_delta)
        hsv = bgr_to_hsv(image)
        hsv[HUE] = _levels(hsv[HUE], 1, delta)  # clipped at 0, as in SSD
        return hsv_to_bgr(hsv)


def _levels(image: np.ndarray, factor: float, more: float) -> np.ndarray:
    """Return level * factor + more of every pixel, by a lookup table. uint8, any shape."""
    table = np.arange(256, dtype=np.float32) * np.float32(factor) + np.float32(more)
    return np.take(rounded(table), image)
