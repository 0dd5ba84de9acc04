"""From images to what a net was trained on, and from places in its input back to the image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.errors import ConfigError, DataError
from demitasse.inference.cards.card import CHANNELS, MOST_PIXELS, Preprocess
from demitasse.io.data.images.colors import bgr_to_gray
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.weights.npy import read_npy

__all__ = ["Prepared", "Preparer", "View"]


@dataclass(frozen=True)
class View:
    """Which part of an image the net sees. All sizes are (height, width), in pixels.

    Attributes:
        image: The image as it was.
        resized: The size that it was brought to.
        corner: Where in that the net's input begins: rows from the top, columns from the left.
        input: The net's input.
    """

    image: tuple[int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    input: tuple[int, int]

    def boxes_in_image(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes in pixels of the image, cut off at its edges.

        Args:
            boxes: xmin, ymin, xmax, ymax in units of the input's width and height. Shape: (K, 4).
        """
        height, width = self.image
        placed = boxes.astype(np.float64)
        for axis, side, limit in ((0, 1, width), (1, 0, height)):
            inside = placed[:, axis::2] * self.input[side] + self.corner[side]
            placed[:, axis::2] = (inside * (limit / self.resized[side])).clip(0, limit)
        return placed

    def mask_in_image(self, mask: np.ndarray) -> np.ndarray:
        """Return a map of classes in the image's size, by the nearest pixel; 0 around the view.

        Shapes: (h, w) -> the image's.
        """
        rows, columns = (self._nearest(side, mask.shape[side]) for side in (0, 1))
        spread = mask[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
        spread[rows < 0], spread[:, columns < 0] = 0, 0
        return np.asarray(spread)

    def _nearest(self, side: int, count: int) -> np.ndarray:
        """Return the place in a map for each pixel of the image along an axis; -1 outside."""
        pixels = (np.arange(self.image[side]) + 0.5) * (self.resized[side] / self.image[side])
        place = (pixels - self.corner[side]) * (count / self.input[side])
        index = np.floor(place).astype(np.intp)
        return np.where((index >= 0) & (index < count), index, -1)


@dataclass(frozen=True)
class Prepared:
    """An image as the net wants it.

    Attributes:
        values: float32. Shape: (C, H, W).
        view: Where that lies in the image.
    """

    values: np.ndarray
    view: View


class Preparer:
    """Prepares images as a card says.

    Args:
        preprocess: What the card says.
        shape: Channels, height and width of the net's input.

    Raises:
        ConfigError: The net has another number of channels, or a mean image does not fit.
    """

    def __init__(self, preprocess: Preprocess, shape: tuple[int, int, int]) -> None:
        self._how = preprocess
        channels = CHANNELS[preprocess.channels]
        if shape[0] != channels:
            message = (
                f'[preprocess] channels = "{preprocess.channels}" means {channels}, but the '
                f"net's input has {shape[0]}"
            )
            raise ConfigError(message)
        self._size = preprocess.size or shape[1:]
        self._mean = _mean(preprocess)
        self._scale = np.array(preprocess.scale, np.float32)[:, None, None]

    def __call__(self, image: np.ndarray) -> Prepared:
        """Prepare an image.

        Args:
            image: Its pixels, uint8, blue, green, red or brightness alone. Shape: (C, H, W).

        Raises:
            DataError: It is smaller than what is cut out of it.
        """
        original = (image.shape[1], image.shape[2])
        resized = self._resized(self._in_order(image))
        size = (resized.shape[1], resized.shape[2])
        top, left, height, width = 0, 0, *size
        if self._how.crop:
            height, width = self._how.crop
            top, left = (size[0] - height) // 2, (size[1] - width) // 2
        if min(top, left) < 0:
            message = (
                f"the image is {size[0]} x {size[1]} pixels (height x width) when it is to be "
                f"cropped to {height} x {width}; it must not be smaller"
            )
            raise DataError(message)
        part = resized[:, top : top + height, left : left + width]
        values = part.astype(np.float32)
        if self._mean is not None:
            values -= self._mean_at(size, top, left, height, width)
        values *= self._scale
        return Prepared(values, View(original, size, (top, left), (height, width)))

    def _in_order(self, image: np.ndarray) -> np.ndarray:
        """Return the channels that the net has, in its order."""
        channels = self._how.channels
        if channels == "gray":
            return image if len(image) == 1 else bgr_to_gray(image)[None]
        if len(image) == 1:
            return np.repeat(image, 3, axis=0)
        return image[::-1] if channels == "rgb" else image

    def _resized(self, image: np.ndarray) -> np.ndarray:
        _, height, width = image.shape
        if self._how.resize == "warp":
            return resize_image(image, *self._size)
        if self._how.resize == "short side":
            factor = self._size[0] / min(height, width)
            wanted = [max(1, round(side * factor)) for side in (height, width)]
            if max(wanted) > MOST_PIXELS:
                message = (
                    f"the image is {height} x {width} pixels (height x width), which would become "
                    f"{wanted[0]} x {wanted[1]}; sides have at most {MOST_PIXELS}"
                )
                raise DataError(message)
            return resize_image(image, *wanted)
        return image

    def _mean_at(self, size: tuple[int, int], top: int, left: int, h: int, w: int) -> np.ndarray:
        """Return what is subtracted from a part of an image; a mean image is cropped like it."""
        assert self._mean is not None
        shape = self._mean.shape[1:]
        if shape in {(1, 1), (h, w)}:
            return self._mean
        if shape == size:
            return self._mean[:, top : top + h, left : left + w]
        message = (
            f"the mean image is {shape[0]} x {shape[1]} pixels (height x width); it must have the "
            f"size of images before they are cropped, {size[0]} x {size[1]}, or after, {h} x {w}"
        )
        raise ConfigError(message)


def _mean(preprocess: Preprocess) -> np.ndarray | None:
    """Return what is subtracted, float32. Shape: (C, H, W), (C, 1, 1) or (1, 1, 1)."""
    mean, channels = preprocess.mean, CHANNELS[preprocess.channels]
    if not isinstance(mean, Path):
        return np.array(mean, np.float32)[:, None, None] if mean else None
    try:
        values = read_npy(mean) if mean.suffix == ".npy" else read_mean(mean)
    except (OSError, ValueError) as error:
        message = f"the mean cannot be read: {error}"
        raise ConfigError(message).at(str(mean)) from None
    except DataError as error:
        raise ConfigError(str(error)) from None
    values = values.reshape(-1, 1, 1) if values.ndim == 1 else values
    if values.ndim != 3 or len(values) != channels:
        message = f"the mean is {values.shape}; images have {channels} channels: (C, H, W) or (C,)"
        raise ConfigError(message).at(str(mean))
    return values.astype(np.float32)
