"""DataTransformer: what ``transform_param`` does to the records on their way into a net.

A record is cut out (anywhere in phase TRAIN, the centre in phase TEST), the mean is subtracted, the
result is scaled and, with ``mirror``, turned left to right in one case of two: in **both** phases,
as in Caffe.

Source: Caffe, ``src/caffe/data_transformer.cpp``. Which records are mirrored and where they are cut
is ours: see ``demitasse.data.random``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from demitasse.blob import Blob
from demitasse.data.datum import datum_to_array
from demitasse.data.image import Color
from demitasse.data.mean import read_mean
from demitasse.data.random import RecordRandom
from demitasse.errors import ConfigError, ShapeError
from demitasse.paths import resolve
from demitasse.proto import Datum, TransformationParameter

__all__ = ["DataTransformer", "Images", "RandomWords"]

Images = np.ndarray | Sequence[np.ndarray]
"""One array (N, C, H, W), or N arrays (C, H, W); uint8 or floating point."""


class RandomWords(Protocol):
    """Where the random numbers come from: ``demitasse.data.random.RecordRandom``."""

    def __call__(self, first: int, count: int, step: int = 1) -> np.ndarray:
        """Return the words of records first, first + step, ... Shape: (count, 4), uint32."""


class DataTransformer:
    """Crops, mirrors, centres and scales records.

    Args:
        param: The layer's ``transform_param``.
        phase: "TRAIN" or "TEST".
        base_dir: Folder of the prototxt, where the mean file is looked for too; or None.
        random: Random words by record.
        dtype: What to compute in.

    Attributes:
        color: The channels that encoded pictures are decoded to.

    Raises:
        ConfigError: Fields contradict each other.
        DataError: The mean file cannot be read.
    """

    def __init__(
        self,
        param: TransformationParameter,
        phase: str,
        base_dir: Path | None = None,
        random: RandomWords | None = None,
        *,
        dtype: str = "float32",
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.color = _color(param)
        self._random = random if random is not None else RecordRandom(0, "")
        self._seen = 0
        self._crop, self._mirror = param.crop_size, param.mirror
        self._crops_anywhere = param.crop_size > 0 and phase == "TRAIN"
        self._scale = self.dtype.type(param.scale)
        if param.mean_file and param.mean_value:
            message = "mean_file and mean_value are both given; give one of them"
            raise ConfigError(message)
        self._mean_file = param.mean_file
        self._mean: np.ndarray | None = None  # (C, H, W), (C, 1, 1) or (1, 1, 1)
        if param.mean_file:
            self._mean = read_mean(resolve(param.mean_file, base_dir)).astype(self.dtype)
        elif param.mean_value:
            self._mean = np.array(param.mean_value, self.dtype).reshape(-1, 1, 1)

    def infer_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return what a record of ``shape`` (C, H, W) becomes, after checking that it may.

        Raises:
            ShapeError: It is smaller than the crop, or does not fit the mean.
        """
        C, H, W = shape
        if min(shape) < 1:
            message = f"a record has (channels, height, width) {shape}; each must be above 0"
            raise ShapeError(message)
        if self._crop > min(H, W):
            message = f"crop_size {self._crop} is larger than a record of {H} x {W} pixels"
            raise ShapeError(message)
        if self._mean_file and self._mean is not None and self._mean.shape != shape:
            message = (
                f"mean_file {self._mean_file!r} is {self._mean.shape}, but a record is {shape} "
                "before it is cropped; they must be the same"
            )
            raise ShapeError(message)
        if not self._mean_file and self._mean is not None and len(self._mean) not in {1, C}:
            message = (
                f"mean_value is given {len(self._mean)} times, but a record has {C} channels; "
                "give it once, or once for each channel"
            )
            raise ShapeError(message)
        return (C, self._crop, self._crop) if self._crop else (C, H, W)

    def transform(
        self,
        images: Images | Datum | Sequence[Datum] | Blob,
        out: np.ndarray | None = None,
        *,
        first: int | None = None,
        step: int = 1,
    ) -> np.ndarray:
        """Transform some records at once.

        Args:
            images: An array (C, H, W) or (N, C, H, W), several arrays (C, H, W), which need one
                size only after cropping, one or several messages, or a blob (N, C, H, W).
            out: Where to put the result, or None for a new array.
            first: Number of the first record, which its random numbers depend on; by default the
                numbers go on from call to call.
            step: Distance from one record's number to the next one's.

        Returns:
            Shape: (N, C, h, w), where h and w are the crop size or H and W; (C, h, w) for one array
            (C, H, W) or one message.

        Raises:
            ShapeError: A record has a size that cannot be transformed, or ``out`` has another.
        """
        batch, single = _as_batch(images, self.color)
        shape = (len(batch), *self.infer_shape(batch[0].shape))
        if out is None:
            out = np.empty(shape[1:] if single else shape, self.dtype)
        target = out[None] if single else out
        _need_shape("the records become", shape, target.shape)
        if first is None:
            first, self._seen = self._seen, self._seen + step * len(batch)
        words = None
        if self._mirror or self._crops_anywhere:
            words = self._random(first, len(batch), step)
        if isinstance(batch, np.ndarray) and not self._crops_anywhere:
            self._centred(batch, target)
            if words is not None:
                mirrored = np.flatnonzero(words[:, 0] & 1)
                target[mirrored] = target[mirrored, :, :, ::-1]
        else:
            self._one_by_one(batch, target, words)
        return out

    def _centred(self, images: np.ndarray, out: np.ndarray) -> None:
        """Transform records of one size, all cut in the same place. Shapes: (N, C, ...)."""
        h, w = out.shape[2:]
        top, left = (images.shape[2] - h) // 2, (images.shape[3] - w) // 2
        self._compute(images, top, left, out)

    def _one_by_one(self, images: Images, out: np.ndarray, words: np.ndarray | None) -> None:
        """Transform records that are of many sizes or cut in many places."""
        for i, image in enumerate(images):
            C, h, w = self.infer_shape(image.shape)
            _need_shape(f"record {i} of the batch becomes", (C, h, w), out.shape[1:])
            result = out[i]
            top, left = image.shape[1] - h, image.shape[2] - w
            if words is not None and self._crops_anywhere:
                top, left = int(words[i, 1]) % (top + 1), int(words[i, 2]) % (left + 1)
            else:
                top, left = top // 2, left // 2
            if words is not None and self._mirror and words[i, 0] & 1:
                result = result[:, :, ::-1]
            self._compute(image, top, left, result)

    def _compute(self, images: np.ndarray, top: int, left: int, out: np.ndarray) -> None:
        """Put (pixel - mean) * scale of one window of some pictures into ``out``."""
        h, w = out.shape[-2:]
        window = (..., slice(top, top + h), slice(left, left + w))
        if self._mean is None:
            np.multiply(images[window], self._scale, out=out)
            return
        mean = self._mean[window] if self._mean_file else self._mean
        np.subtract(images[window], mean, out=out)
        if self._scale != 1:
            np.multiply(out, self._scale, out=out)


def _color(param: TransformationParameter) -> Color:
    if param.force_color and param.force_gray:
        message = "force_color and force_gray are both set; set one of them"
        raise ConfigError(message)
    if param.force_color:
        return "color"
    return "gray" if param.force_gray else "native"


def _as_batch(images: Images | Datum | Sequence[Datum] | Blob, color: Color) -> tuple[Images, bool]:
    """Return the records, and whether it was a single one."""
    if isinstance(images, Datum):
        return [datum_to_array(images, color)], True
    if isinstance(images, Blob):
        images = images.cpu_data()
    if isinstance(images, np.ndarray):
        if images.ndim not in {3, 4} or not len(images):
            message = f"records are (C, H, W) or (N, C, H, W), N above 0; this is {images.shape}"
            raise ShapeError(message)
        return (images[None], True) if images.ndim == 3 else (images, False)
    if not images:
        message = "there are no records to transform"
        raise ShapeError(message)
    return [datum_to_array(one, color) if isinstance(one, Datum) else one for one in images], False


def _need_shape(what: str, shape: tuple[int, ...], room: tuple[int, ...]) -> None:
    if shape != room:
        message = f"{what} {shape}, but there is room for {room}"
        raise ShapeError(message)
