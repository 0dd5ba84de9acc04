"""``expand_param``: the image at a random position of a larger canvas, filled with the mean.

Not compared with the original.

Source: SSD, ``src/caffe/data_transformer.cpp`` (``ExpandImage``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.images.levels import rounded
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.data.transform.boxes import WHOLE, Region
from demitasse.io.proto import ExpansionParameter

__all__ = ["Expand"]

MOST = 100
"""Largest ratio of the canvas to the image, per side."""


class Expand:
    """Places images on a larger canvas.

    Args:
        param: Probability and largest ratio.
        mean: Colour of the canvas: one value, one per channel, or none for black.

    Raises:
        ConfigError: The ratio is out of range.
    """

    def __init__(self, param: ExpansionParameter, mean: Sequence[float]) -> None:
        self._probability, self._most = param.prob, param.max_expand_ratio
        if not 1 <= self._most <= MOST:
            message = f"got expand_param.max_expand_ratio {self._most:g}, expected 1 to {MOST}"
            raise ConfigError(
                message,
                code=ErrorCode.OUT_OF_RANGE,
                field="expand_param.max_expand_ratio",
                got=self._most,
            )
        self._color = rounded(np.array(mean or [0.0]))

    @property
    def changes_size(self) -> bool:
        """Return True if images may become larger."""
        return self._probability > 0 and self._most - 1 >= 1e-2

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return the image on a canvas, or the unchanged image.

        Args:
            image: Shape: (C, H, W), uint8.
            draws: Random numbers of the record.

        Returns:
            Shape: (C, H * ratio, W * ratio), rounded down; uint8.

        Raises:
            ShapeError: The number of mean values is neither 1 nor C.
        """
        if not self._happens(draws):
            return image
        C, H, W = image.shape
        if len(self._color) not in {1, C}:
            message = f"got {len(self._color)} mean_value, expected 1 or {C} (channels)"
            raise ShapeError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                field="mean_value",
                got=len(self._color),
                expected=C,
            )
        height, width, top, left = self._canvas(H, W, draws)
        canvas = np.empty((C, height, width), np.uint8)
        canvas[...] = self._color.reshape(-1, 1, 1)
        canvas[:, top : top + H, left : left + W] = image
        return canvas

    def region(self, size: tuple[int, int], draws: Draws) -> Region:
        """Return the region of the canvas, relative to an image of this height and width."""
        if not self._happens(draws):
            return WHOLE
        H, W = size
        height, width, top, left = self._canvas(H, W, draws)
        return -left / W, -top / H, (width - left) / W, (height - top) / H

    def _happens(self, draws: Draws) -> bool:
        return self.changes_size and draws.happens(Choice.EXPAND, self._probability)

    def _canvas(self, H: int, W: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return height and width of the canvas, and the offset of the image: top, left."""
        ratio = draws.between(Choice.EXPAND_RATIO, 1, self._most)
        height, width = int(H * ratio), int(W * ratio)
        top = int(draws.between(Choice.EXPAND_TOP, 0, height - H))
        left = int(draws.between(Choice.EXPAND_LEFT, 0, width - W))
        return height, width, top, left
