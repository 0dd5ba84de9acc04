"""``expand_param``: a larger canvas in the colour of the mean, the image somewhere in it.

Not compared with the original.

Source: SSD, ``src/caffe/data_transformer.cpp`` (``ExpandImage``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ConfigError, ShapeError
from demitasse.io.data.images.levels import rounded
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.data.transform.boxes import WHOLE, Region
from demitasse.io.proto import ExpansionParameter

__all__ = ["Expand"]

MOST = 100
"""How many times as wide and high as the image a canvas can be."""


class Expand:
    """Puts images on a larger canvas.

    Args:
        param: How large, and how often.
        mean: Colour of the canvas: one value, one for each channel, or none for black.

    Raises:
        ConfigError: The canvas would be smaller than the image.
    """

    def __init__(self, param: ExpansionParameter, mean: Sequence[float]) -> None:
        self._probability, self._most = param.prob, param.max_expand_ratio
        if not 1 <= self._most <= MOST:
            message = f"expand_param.max_expand_ratio is {self._most:g}; it must be 1 to {MOST}"
            raise ConfigError(message)
        self._color = rounded(np.array(mean or [0.0]))

    @property
    def changes_size(self) -> bool:
        """Whether images may become larger."""
        return self._probability > 0 and self._most - 1 >= 1e-2

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return an image on a canvas, or the same one.

        Args:
            image: Shape: (C, H, W), uint8.
            draws: The record's random numbers.

        Returns:
            Shape: (C, H * ratio, W * ratio), rounded down; uint8.

        Raises:
            ShapeError: There are other numbers of mean values than one and C.
        """
        if not self._happens(draws):
            return image
        C, H, W = image.shape
        if len(self._color) not in {1, C}:
            message = f"mean_value is given {len(self._color)} times for {C} channels"
            raise ShapeError(message)
        height, width, top, left = self._canvas(H, W, draws)
        canvas = np.empty((C, height, width), np.uint8)
        canvas[...] = self._color.reshape(-1, 1, 1)
        canvas[:, top : top + H, left : left + W] = image
        return canvas

    def region(self, size: tuple[int, int], draws: Draws) -> Region:
        """Return what the canvas shows, in units of an image of that height and width."""
        if not self._happens(draws):
            return WHOLE
        H, W = size
        height, width, top, left = self._canvas(H, W, draws)
        return -left / W, -top / H, (width - left) / W, (height - top) / H

    def _happens(self, draws: Draws) -> bool:
        return self.changes_size and draws.happens(Choice.EXPAND, self._probability)

    def _canvas(self, H: int, W: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return height and width of the canvas, and where on it the image begins: top, left."""
        ratio = draws.between(Choice.EXPAND_RATIO, 1, self._most)
        height, width = int(H * ratio), int(W * ratio)
        top = int(draws.between(Choice.EXPAND_TOP, 0, height - H))
        left = int(draws.between(Choice.EXPAND_LEFT, 0, width - W))
        return height, width, top, left
