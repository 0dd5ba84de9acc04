"""Preprocess images, map results back to them, and read preprocessing from training nets."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from demitasse.core.paths import reason_of
from demitasse.errors import ConfigError, DataError, ErrorCode
from demitasse.graph import filter_phase
from demitasse.inference.cards.card import CHANNELS, COMPLETED, MAX_AREA, MAX_SIDE, Preprocess
from demitasse.io.data.images.colors import bgr_to_gray, bgr_to_lab, bgr_to_luma
from demitasse.io.data.images.resize import resize_bicubic, resize_image
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.proto import ResizeParameter, read_net
from demitasse.io.weights.npz import read_npy


@dataclass(frozen=True)
class View:
    """Part of an image in the net's input. All sizes are (height, width), in pixels.

    Attributes:
        image: Size of the original image.
        resized: Size of the resized image.
        corner: Offset of the net's input in the resized image: rows from the top, columns from the
            left.
        input: Size of the net's input.
        pixels: Pixels of the image, uint8, BGR, if the net's input lacks colors. Shape: (3, H, W).
    """

    image: tuple[int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    input: tuple[int, int]
    pixels: np.ndarray | None = field(default=None, repr=False, compare=False)

    def boxes_in_image(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes in pixels of the image, clipped to its edges.

        Shape: (K, 4): xmin, ymin, xmax, ymax in units of the input's width and height.
        """
        height, width = self.image
        scaled = boxes.astype(np.float64)
        for axis, side, limit in ((0, 1, width), (1, 0, height)):
            resized = scaled[:, axis::2] * self.input[side] + self.corner[side]
            scaled[:, axis::2] = (resized * (limit / self.resized[side])).clip(0, limit)
        return scaled

    def mask_in_image(self, mask: np.ndarray) -> np.ndarray:
        """Return a class map in the image's size, by nearest neighbour; 0 outside of the view.

        Shapes: (h, w) -> the image's.
        """
        rows, columns = (self._nearest(side, mask.shape[side]) for side in (0, 1))
        enlarged = mask[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
        enlarged[rows < 0], enlarged[:, columns < 0] = 0, 0
        return np.asarray(enlarged)

    def _nearest(self, side: int, count: int) -> np.ndarray:
        """Return the map's index for each pixel of the image along an axis; -1 outside."""
        pixels = (np.arange(self.image[side]) + 0.5) * (self.resized[side] / self.image[side])
        position = (pixels - self.corner[side]) * (count / self.input[side])
        index = np.floor(position).astype(np.intp)
        return np.where((index >= 0) & (index < count), index, -1)


@dataclass(frozen=True)
class PreparedImage:
    """Values of a preprocessed image, float32, (C, H, W); and their position in the image."""

    values: np.ndarray
    view: View


class Preprocessor:
    """Preprocesses images by a card, for the channels, height and width of the net's input."""

    def __init__(self, preprocess: Preprocess, shape: tuple[int, int, int]) -> None:
        self._parameters = preprocess
        channels = CHANNELS[preprocess.channels]
        if shape[0] != channels:
            message = (
                f'[preprocess] channels = "{preprocess.channels}" means {channels}, but the '
                f"net's input has {shape[0]}"
            )
            code, expected = ErrorCode.SHAPE_MISMATCH, shape[0]
            raise ConfigError(message, code=code, field="channels", got=channels, expected=expected)
        self._size = preprocess.size or shape[1:]
        self._mean = _mean(preprocess)
        self._scale = np.array(preprocess.scale, np.float32)[:, None, None]

    def __call__(self, image: np.ndarray) -> PreparedImage:
        """Preprocess the pixels of an image, uint8, BGR or gray. Shape: (C, H, W)."""
        original = (image.shape[1], image.shape[2])
        ordered = self._in_order(image)
        resized = self._resized(ordered)
        size = (resized.shape[1], resized.shape[2])
        top, left, height, width = 0, 0, *size
        if self._parameters.crop:
            height, width = self._parameters.crop
            top, left = (size[0] - height) // 2, (size[1] - width) // 2
        if min(top, left) < 0:
            message = (
                f"the image is {size[0]} x {size[1]} pixels (height x width) before it is cropped "
                f"to {height} x {width}; it must not be smaller"
            )
            code, expected = ErrorCode.SHAPE_MISMATCH, (height, width)
            raise DataError(message, code=code, got=size, expected=expected)
        part = resized[:, top : top + height, left : left + width]
        if self._parameters.channels == "y":
            values = bgr_to_luma(part)[None]
        elif self._parameters.channels == "l":
            values = bgr_to_lab(part)[:1]
        else:
            values = part.astype(np.float32)
        if self._mean is not None:
            values -= self._mean_at(size, top, left, height, width)
        values *= self._scale
        pixels = ordered if self._parameters.channels in COMPLETED.values() else None
        return PreparedImage(values, View(original, size, (top, left), (height, width), pixels))

    def _in_order(self, image: np.ndarray) -> np.ndarray:
        """Return the channels in the net's order; BGR for luma and lightness."""
        channels = self._parameters.channels
        if channels == "gray":
            return image if len(image) == 1 else bgr_to_gray(image)[None]
        if len(image) == 1:
            return np.repeat(image, 3, axis=0)
        return image[::-1] if channels == "rgb" else image

    def _resized(self, image: np.ndarray) -> np.ndarray:
        _, height, width = image.shape
        if self._parameters.resize == "warp":
            return resize_image(image, *self._size)
        by_factor = self._parameters.resize == "factor"
        if by_factor or self._parameters.resize == "short side":
            factor = self._size[0] / (1 if by_factor else min(height, width))
            wanted = [max(1, round(side * factor)) for side in (height, width)]
            if max(wanted) > MAX_SIDE or wanted[0] * wanted[1] > MAX_AREA:
                message = (
                    f"the image is {height} x {width} pixels (height x width), which would become "
                    f"{wanted[0]} x {wanted[1]}; sides have at most {MAX_SIDE}, and images at most "
                    f"{MAX_AREA} pixels"
                )
                raise DataError(message, code=ErrorCode.LIMIT, got=tuple(wanted))
            return (resize_bicubic if by_factor else resize_image)(image, *wanted)
        return image

    def _mean_at(self, size: tuple[int, int], top: int, left: int, h: int, w: int) -> np.ndarray:
        """Return the mean of a crop; a mean image is cropped like the image."""
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
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="mean", got=shape)


def read_mean_array(path: Path) -> np.ndarray:
    """Return the mean in a file ``.npy`` or ``.binaryproto``. Shape: (C, H, W) or (C,)."""
    return read_npy(path) if path.suffix == ".npy" else read_mean(path)


def _mean(preprocess: Preprocess) -> np.ndarray | None:
    """Return the mean, float32. Shape: (C, H, W), (C, 1, 1) or (1, 1, 1)."""
    mean, channels = preprocess.mean, CHANNELS[preprocess.channels]
    if not isinstance(mean, Path):
        return np.array(mean, np.float32)[:, None, None] if mean else None
    try:
        values = read_mean_array(mean)
    except (OSError, ValueError) as error:
        message = f"the mean cannot be read: {reason_of(error, mean)}"
        raise ConfigError(message, code=ErrorCode.UNREADABLE, field="mean").at(str(mean)) from None
    except DataError as error:
        raise ConfigError(str(error), code=error.code, field="mean") from None
    values = values.reshape(-1, 1, 1) if values.ndim == 1 else values
    if values.ndim != 3 or len(values) != channels:
        message = f"the mean is {values.shape}; images have {channels} channels: (C, H, W) or (C,)"
        raise ConfigError(message, code=ErrorCode.SHAPE_MISMATCH, field="mean").at(str(mean))
    return values.astype(np.float32)


@dataclass(frozen=True)
class TrainingPreprocess:
    """Preprocessing in the data layer of a training net; empty where unspecified.

    ``crop`` and ``size`` are height and width in pixels; ``channels`` is "gray" for gray images.
    """

    mean: tuple[float, ...] = ()
    mean_file: str = ""
    scale: float = 1.0
    crop: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    channels: str = ""


def training_preprocess(net: Path) -> TrainingPreprocess | None:
    """Return the preprocessing of a net's data layer, preferably of phase TEST, or None.

    Raises:
        ConfigError: The layer resizes images as no card does.
    """
    message = read_net(net).message
    tested, _ = filter_phase(message, "TEST", message.state.level, ())
    for layer in (*tested.layer, *message.layer):
        dense = layer.type == "DenseImageData"
        if layer.bottom or not (dense or layer.HasField("transform_param")):
            continue
        p, pairs = layer.transform_param, layer.dense_image_data_param
        images = pairs if dense else layer.image_data_param
        size: tuple[int, ...] = (images.new_height, images.new_width)
        if p.HasField("resize_param"):
            size = (p.resize_param.height, p.resize_param.width)
            mode = ResizeParameter.Resize_mode.Name(p.resize_param.resize_mode)
            if mode != "WARP":
                text = f"resize_mode {mode} of layer {layer.name!r} has no equal in a card"
                raise ConfigError(text, code=ErrorCode.UNSUPPORTED, field="resize_mode")
        crops = ((pairs.crop_height, pairs.crop_width), (p.crop_h, p.crop_w))
        crop = next(filter(all, crops), (p.crop_size, p.crop_size))
        return TrainingPreprocess(
            mean=tuple(map(_as_written, p.mean_value)), mean_file=p.mean_file,
            scale=_as_written(p.scale), crop=crop if all(crop) else (),
            size=size if all(size) else (), channels="gray" if p.force_gray else "",
        )  # fmt: skip
    return None


def _as_written(value: float) -> float:
    """Return a number of a prototxt without the further digits of float32."""
    return float(f"{value:.7g}")
