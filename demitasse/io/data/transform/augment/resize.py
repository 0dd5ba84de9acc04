"""``resize_param``: resizing to one size, or within or around it with the aspect kept.

``height_scale`` and ``width_scale`` are read and ignored: in SSD they scale the boxes of
FIT_SMALL_SIZE. ``prob`` below 1 keeps some images unchanged; SSD reads ``prob`` without using it.

Not compared with the original; ``interpolate`` is compared with OpenCV.

Source: SSD, ``src/caffe/util/im_transforms.cpp`` (``ApplyResize``).
"""

from __future__ import annotations

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.images.interpolate import interpolate
from demitasse.io.data.images.levels import rounded
from demitasse.io.data.transform.augment.draws import Choice, Draws
from demitasse.io.data.transform.boxes import WHOLE, Region
from demitasse.io.proto import ResizeParameter

__all__ = ["Resize"]

FLOAT = np.float32  # SSD's precision of aspects, which decides the rounding of sizes

Size = tuple[int, int]
"""Height and width, in pixels."""


class Resize:
    """Resizes images.

    Args:
        param: Size, mode and interpolation.

    Raises:
        ConfigError: The size is missing.
    """

    def __init__(self, param: ResizeParameter) -> None:
        self._param = param
        self.size: Size = (param.height, param.width)
        self._mode = ResizeParameter.Resize_mode.Name(param.resize_mode)
        self._ways = [ResizeParameter.Interp_mode.Name(way) for way in param.interp_mode]
        if not min(self.size):
            message = (
                f"got resize_param height {param.height} and width {param.width}, "
                "expected both above 0"
            )
            raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="resize_param.height")

    @property
    def always(self) -> bool:
        """Return True if every image is resized."""
        return self._param.prob >= 1

    @property
    def to_one_size(self) -> bool:
        """Return True if all results have the same size."""
        return self.always and self._mode != "FIT_SMALL_SIZE"

    def __call__(self, image: np.ndarray, draws: Draws) -> np.ndarray:
        """Return a resized image, or the unchanged image.

        Args:
            image: Shape: (C, H, W), uint8.
            draws: Random numbers of the record.

        Returns:
            Shape: (C, height, width), uint8; with ``FIT_SMALL_SIZE`` one side may be larger.

        Raises:
            ShapeError: The number of ``pad_value`` is neither 1 nor C, or a side of a narrow image
                would become 0.
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
        """Return the region of the result, relative to an image of this height and width."""
        if self._mode != "FIT_LARGE_SIZE_AND_PAD" or not draws.happens(
            Choice.RESIZE, self._param.prob
        ):
            return WHOLE
        (height, width), (H, W) = self.size, self._fitted(*size)
        above, beside = (height - H) // 2, (width - W) // 2
        return -beside / W, -above / H, (width - beside) / W, (height - above) / H

    def _fitted(self, H: int, W: int) -> Size:
        """Return the size of the resized image, without padding."""
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
            raise ShapeError(
                message,
                code=ErrorCode.OUT_OF_RANGE,
                field="resize_param",
                got=(H, W),
                expected=self.size,
            )
        return height, width

    def _padded(self, image: np.ndarray) -> np.ndarray:
        """Pad an image on both sides to the full size."""
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
            message = f"got {len(values)} resize_param.pad_value, expected 1 or {C} (channels)"
            raise ShapeError(
                message,
                code=ErrorCode.COUNT_MISMATCH,
                field="resize_param.pad_value",
                got=len(values),
                expected=C,
            )
        padded = np.empty((C, height, width), np.uint8)
        padded[...] = rounded(np.array(values)).reshape(-1, 1, 1)
        padded[:, above : above + H, beside : beside + W] = image
        return padded
