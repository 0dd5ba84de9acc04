"""DataTransformer: what ``transform_param`` does to the records on their way into a net.

A record is cut out (anywhere in phase TRAIN, the centre in phase TEST), the mean is subtracted, the
result is scaled and, with ``mirror``, half of the records, drawn at random, are mirrored left to
right: in **both** phases, as in Caffe. Before all that come SSD's fields:
``demitasse.io.data.transform.augment``.

Source: Caffe, ``src/caffe/data_transformer.cpp``. Which records are mirrored and where they are cut
is ours: see ``demitasse.io.data.transform.random``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from demitasse.backends.pixels import Pixels
from demitasse.blob import Blob
from demitasse.core.paths import resolve_path
from demitasse.errors import ConfigError, DemitasseError, ShapeError
from demitasse.io.data.broken import RecordError
from demitasse.io.data.images.decode import Color
from demitasse.io.data.threads import Threads
from demitasse.io.data.transform.augment.augmenter import Augmenter
from demitasse.io.data.transform.augment.draws import WORDS
from demitasse.io.data.transform.boxes import Region
from demitasse.io.data.transform.mean import read_mean
from demitasse.io.data.transform.random import RandomWords, RecordRandom, words_of
from demitasse.io.data.transform.records import Images, as_batch, need_shape
from demitasse.io.proto import Datum, TransformationParameter

__all__ = ["Centring", "DataTransformer", "Images", "RandomWords", "crop_of"]

SMALL = 4096
"""Records of so many values are cut out all at once; copying larger ones costs more than it saves.
"""


class Centring(NamedTuple):
    """What is subtracted from records, and what the result is multiplied with.

    Attributes:
        mean: Shape: (C, H, W), (C, 1, 1) or (1, 1, 1); None for nothing.
        scale: The factor.
    """

    mean: np.ndarray | None
    scale: float


class DataTransformer:
    """Crops, mirrors, centres and scales records.

    Args:
        param: The layer's ``transform_param``.
        phase: "TRAIN" or "TEST".
        base_dir: Folder of the prototxt, where the mean file is looked for too; or None.
        random: Random words by record, four of them, for cropping and mirroring.
        augment_random: Random words by record, 24 of them, for SSD's fields.
        dtype: What to compute in.

    Attributes:
        color: The channels that encoded images are decoded to.

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
        augment_random: RandomWords | None = None,
        *,
        dtype: str = "float32",
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.color = _color(param)
        self._random = random if random is not None else RecordRandom(0, "")
        self._augment_random = augment_random or RecordRandom(0, "", "augment", WORDS)
        self._augmenter = Augmenter(param)
        self._threads = Threads("augment")
        self._seen = 0
        if param.scale_factors:
            message = "scale_factors, of DeepLab, is for ImageSegData; leave it out"
            raise ConfigError(message)
        self._crop, self._mirror = crop_of(param), param.mirror
        self._crops_anywhere = self._crop is not None and phase == "TRAIN"
        self._scale = self.dtype.type(param.scale)
        if param.mean_file and param.mean_value:
            message = "mean_file and mean_value are both given; give one of them"
            raise ConfigError(message)
        self._mean_file = param.mean_file
        self._mean: np.ndarray | None = None  # (C, H, W), (C, 1, 1) or (1, 1, 1)
        if param.mean_file:
            self._mean = read_mean(resolve_path(param.mean_file, base_dir)).astype(self.dtype)
        elif param.mean_value:
            self._mean = np.array(param.mean_value, self.dtype).reshape(-1, 1, 1)

    def infer_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return what a record becomes by ``finish``, after checking that it may.

        Args:
            shape: (C, H, W), after ``augment``.

        Raises:
            ShapeError: It is smaller than the crop, or does not fit the mean.
        """
        C, H, W = shape
        if min(shape) < 1:
            message = f"a record has (channels, height, width) {shape}; each must be above 0"
            raise ShapeError(message)
        h, w = self._crop or (H, W)
        if h > H or w > W:
            size = h if h == w else f"{h} x {w}"
            message = f"crop_size {size} is larger than a record of {H} x {W} pixels"
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
        return C, h, w

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
        batch, single = as_batch(images, self.color)
        if first is None:
            first, self._seen = self._seen, self._seen + step * len(batch)
        batch = self.augment(batch, first=first, step=step)
        shape = (len(batch), *self.infer_shape(batch[0].shape))
        if out is None:
            out = np.empty(shape[1:] if single else shape, self.dtype)
        self.finish(batch, out[None] if single else out, first=first, step=step)
        return out

    def augment(
        self, images: Images, *, first: int, step: int = 1, places: Sequence[int] | None = None
    ) -> Images:
        """Do what comes before cropping: what SSD's fields ask for. It may change sizes.

        Args:
            images: Some records, N of them.
            first: Number of the first record.
            step: Distance from one record's number to the next one's.
            places: Which of the records from ``first`` on these are; None for 0, 1, 2, ...

        Raises:
            RecordError: A record cannot be changed so; says which.
        """
        if not self._augmenter:
            return images
        words = words_of(self._augment_random, len(images), first, step, places)

        def augmented(index: int) -> np.ndarray:
            try:
                return self._augmenter(images[index], words[index])
            except DemitasseError as error:
                raise RecordError(error.message, index) from error

        return self._threads.map(augmented, range(len(images)))

    def finish(
        self,
        images: Images,
        out: np.ndarray | Pixels,
        *,
        first: int,
        step: int = 1,
        places: Sequence[int] | None = None,
    ) -> None:
        """Crop, mirror, centre and scale; the arguments are those of ``augment``.

        Args:
            images: What ``augment`` returned.
            out: Where to put the result. Shape: (N, C, h, w). As bytes it is cut out only, and the
                rest is noted there.
            first: As there.
            step: As there.
            places: As there.

        Raises:
            ShapeError: A record has a size that cannot be transformed, or ``out`` has another.
        """
        shape = (len(images), *self.infer_shape(images[0].shape))
        need_shape("the records become", shape, out.shape)
        words = None
        if self._mirror or self._crops_anywhere:
            words = words_of(self._random, len(images), first, step, places)
        if isinstance(out, Pixels):
            self._cut(images, out, words)
        elif isinstance(images, np.ndarray) and not self._crops_anywhere:
            self._centred(images, out)
            if words is not None:
                mirrored = np.flatnonzero(words[:, 0] & 1)
                out[mirrored] = out[mirrored, :, :, ::-1]
        elif (
            words is not None
            and isinstance(images, np.ndarray)
            and not self._mean_file
            and out[0].size <= SMALL
        ):
            self._together(images, out, words)
        else:
            self._one_by_one(images, out, words)

    @property
    def centring(self) -> Centring:
        """What ``finish`` subtracts and multiplies with."""
        return Centring(self._mean, float(self._scale))

    def shown(self, shape: tuple[int, ...], number: int) -> tuple[Region, bool]:
        """Return which part of a record ``finish`` shows, and whether it turns it left to right.

        Args:
            shape: (C, H, W), after ``augment``.
            number: The record's.

        Raises:
            ShapeError: The record has a size that cannot be transformed.
        """
        (_, h, w), (H, W) = self.infer_shape(shape), shape[1:]
        words = None
        if self._mirror or self._crops_anywhere:
            words = self._random(number, 1)[0]
        top, left, turned = self._placed(H - h, W - w, words)
        return (left / W, top / H, (left + w) / W, (top + h) / H), turned

    def close(self) -> None:
        """Let go of threads; a later use starts others."""
        self._threads.close()

    def _centred(self, images: np.ndarray, out: np.ndarray) -> None:
        """Transform records of one size, all cut in the same place. Shapes: (N, C, ...)."""
        h, w = out.shape[2:]
        top, left = (images.shape[2] - h) // 2, (images.shape[3] - w) // 2
        self._compute(images, top, left, out)

    def _together(self, images: np.ndarray, out: np.ndarray, words: np.ndarray) -> None:
        """Transform small records of one size, cut anywhere. Shapes: (N, C, ...)."""
        windows = sliding_window_view(images, out.shape[2:], axis=(2, 3))
        rows, columns = windows.shape[2:4]
        top, left = words[:, 1] % rows, words[:, 2] % columns
        cut = windows[np.arange(len(images)), :, top, left]  # (N, C, h, w)
        if self._mirror:
            turned = np.flatnonzero(words[:, 0] & 1)
            cut[turned] = cut[turned, :, :, ::-1]
        self._compute(cut, 0, 0, out)

    def _cut(self, images: Images, out: Pixels, words: np.ndarray | None) -> None:
        """Cut records out, and note where, and which of them are to be turned."""
        for i, (image, top, left, turned) in enumerate(self._places(images, out.shape, words)):
            h, w = out.shape[2:]
            out.bytes[i] = image[:, top : top + h, left : left + w]
            out.places[i] = top, left, turned

    def _places(
        self, images: Images, shape: tuple[int, ...], words: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, int, int, bool]]:
        """Yield each record, where it is cut out, and whether it is turned left to right.

        Raises:
            ShapeError: A record becomes another shape than (C, h, w) of ``shape``, (N, C, h, w).
        """
        h, w = shape[2:]
        checked: tuple[int, ...] = ()
        for i, image in enumerate(images):
            if image.shape != checked:
                checked = image.shape
                need_shape(f"record {i} of the batch becomes", self.infer_shape(checked), shape[1:])
            room = checked[1] - h, checked[2] - w
            yield image, *self._placed(*room, None if words is None else words[i])

    def _one_by_one(self, images: Images, out: np.ndarray, words: np.ndarray | None) -> None:
        """Transform records that are of many sizes or cut in many places."""
        for i, (image, top, left, turned) in enumerate(self._places(images, out.shape, words)):
            result = out[i]
            if turned:
                result = result[:, :, ::-1]
            self._compute(image, top, left, result)

    def _placed(self, rows: int, columns: int, words: np.ndarray | None) -> tuple[int, int, bool]:
        """Return where to cut a record out, and whether to turn it left to right.

        Args:
            rows: How many of them are cut off.
            columns: How many of them are.
            words: The record's random words. Shape: (4,), uint32.
        """
        turned = words is not None and self._mirror and bool(words[0] & 1)
        if words is not None and self._crops_anywhere:
            return int(words[1]) % (rows + 1), int(words[2]) % (columns + 1), turned
        return rows // 2, columns // 2, turned

    def _compute(self, images: np.ndarray, top: int, left: int, out: np.ndarray) -> None:
        """Put (pixel - mean) * scale of one window of some images into ``out``."""
        h, w = out.shape[-2:]
        window = (..., slice(top, top + h), slice(left, left + w))
        if self._mean is None:
            np.multiply(images[window], self._scale, out=out)
            return
        mean = self._mean[window] if self._mean_file else self._mean
        np.subtract(images[window], mean, out=out)
        if self._scale != 1:
            np.multiply(out, self._scale, out=out)


def crop_of(param: TransformationParameter) -> tuple[int, int] | None:
    """Return height and width of what is cut out, or None.

    Raises:
        ConfigError: ``crop_size``, ``crop_h`` and ``crop_w`` do not go together.
    """
    square, sides = param.crop_size, (param.crop_h, param.crop_w)
    if bool(sides[0]) != bool(sides[1]) or (square and max(sides)):
        message = (
            f"crop_size, crop_h and crop_w are {square}, {sides[0]} and {sides[1]}; "
            "give crop_size, or both of the others"
        )
        raise ConfigError(message)
    if square:
        return square, square
    return sides if sides[0] else None


def _color(param: TransformationParameter) -> Color:
    if param.force_color and param.force_gray:
        message = "force_color and force_gray are both set; set one of them"
        raise ConfigError(message)
    if param.force_color:
        return "color"
    return "gray" if param.force_gray else "native"
