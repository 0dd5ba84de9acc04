"""``resize_param``: to one size, or within or around it with the aspect kept.

``height_scale`` and ``width_scale`` are read and change nothing: in SSD they say of which part of a
image that FIT_SMALL_SIZE made boxes are given in units.
``prob`` below 1 leaves some images as they are; SSD reads it and does not look at it.

Not compared with the original; ``interpolate`` is compared with OpenCV.

Source: SSD, ``src/caffe/util/im_transforms.cpp`` (``ApplyResize``).
"""

from __future__ import annotations

import numpy as np

from demitasse.errors import ConfigError, ShapeError
from demitasse.io.data.images.interpolate import interpolate
from demitasse.io.data.images.levels import rounded
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.data.transform.boxes import WHOLE, Region
from demitasse.io.proto import ResizeParameter

__all__ = ["Resize"]

FLOAT = np.float32  # what SSD computes aspects in, which decides where sizes are rounded

Size = tuple[int, int]
"""Height and width, in pixels."""


class Resize:
    """Resizes images.

    Args:
        param: To what, and how.

    Raises:
        ConfigError: There is no size.
    """

    def __init__(self, param: ResizeParameter) -> None:
        self._param = param
        self.size: Size = (param.height, param.width)
        self._mode = ResizeParameter.Resize_mode.Name(param.resize_mode)
        self._ways = [ResizeParameter.Interp_mode.Name(way) for way in param.interp_mode]
        if not min(self.size):
            message = (
                "resize_param needs height and width above 0, they are "
                f"{param.height} and {param.width}"
            )
            raise ConfigError(message)

    @property
    def always(self) -> bool:
        """Whether every image is resized."""
        return self._param.prob >= 1

    @property
    def to_one_size(self) -> bool:
        """Whether all images come out in the same size."""
        return self.always and self._mode != "FIT_SMALL_SIZE"

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return an image in another size, or the same one.

        Args:
            image: Shape: (C, H, W), uint8.
            draws: The record's random numbers.

        Returns:
            Shape: (C, height, width), uint8; with ``FIT_SMALL_SIZE`` one of the two may be larger.

        Raises:
            ShapeError: There are other numbers of ``pad_value`` than one and C, or an image is so
                narrow that nothing would be left of it.
        """
        if not draws.happens(Choice.RESIZE, self._param.prob):
            return image
        way = "LINEAR"
        if self._ways:
            way = self._ways[draws.one_of(Choice.INTERPOLATION, len(self._ways))]
        height, width = self._fitted(image.shape[1], image.shape[2])
        image = interpolate(image, height, width, way)
        return self._padded(image) if self._mode == "FIT_LARGE_SIZE_AND_PAD" else image

    def region(self, size: Size, draws: Draws) -> Region:
        """Return what the result shows, in units of an image of that height and width."""
        if self._mode != "FIT_LARGE_SIZE_AND_PAD" or not draws.happens(
            Choice.RESIZE, self._param.prob
        ):
            return WHOLE
        (height, width), (H, W) = self.size, self._fitted(*size)
        above, beside = (height - H) // 2, (width - W) // 2
        return -beside / W, -above / H, (width - beside) / W, (height - above) / H

    def _fitted(self, H: int, W: int) -> Size:
        """Return the size an image is resized to, without what is padded."""
        height, width = self.size
        if self._mode == "WARP":
            return height, width
        aspect, wanted = FLOAT(W) / FLOAT(H), FLOAT(width) / FLOAT(height)
        covers = self._mode == "FIT_SMALL_SIZE"
        if (aspect < wanted) if covers else (aspect > wanted):
            height = int(FLOAT(width) / aspect)
        else:
            width = int(aspect * FLOAT(height))
        if not min(height, width):
            message = f"an image of {H} x {W} pixels is too narrow for resize_param {self.size}"
            raise ShapeError(message)
        return height, width

    def _padded(self, image: np.ndarray) -> np.ndarray:
        """Return an image with what it lacks added on both sides."""
        C, H, W = image.shape
        height, width = self.size
        above, beside = (height - H) // 2, (width - W) // 2
        pad = ((0, 0), (above, height - H - above), (beside, width - W - beside))
        mode = ResizeParameter.Pad_mode.Name(self._param.pad_mode)
        if mode == "REPEAT_NEAREST":
            return np.pad(image, pad, "edge")
        if mode == "MIRRORED":
            return np.pad(image, pad, "reflect" if min(H, W) > 1 else "edge")
        values = self._param.pad_value or [0.0]
        if len(values) not in {1, C}:
            message = f"resize_param.pad_value is given {len(values)} times for {C} channels"
            raise ShapeError(message)
        padded = np.empty((C, height, width), np.uint8)
        padded[...] = rounded(np.array(values)).reshape(-1, 1, 1)
        padded[:, above : above + H, beside : beside + W] = image
        return padded
