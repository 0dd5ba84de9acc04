"""DataTransformer: crop, mirror, mean and scale, as ``transform_param`` says.

The crop is random in phase TRAIN and central in phase TEST. The mean is subtracted, then the result
is scaled. ``mirror`` flips half of the records at random, in **both** phases, as in Caffe. SSD's
augmentation comes first: ``demitasse.io.data.transform.augment``.

Source: Caffe, ``src/caffe/data_transformer.cpp``. The random numbers differ from Caffe's: see
``demitasse.io.data.transform.random``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from demitasse.backends.pixels import ImageBatch
from demitasse.blob import Blob
from demitasse.core.paths import resolve_path
from demitasse.errors import ConfigError, DemitasseError, ErrorCode, ShapeError
from demitasse.io.data.bad_records import RecordError
from demitasse.io.data.databases.datum import datum_to_array
from demitasse.io.data.images.codecs import Color
from demitasse.io.data.threads import Threads
from demitasse.io.data.transform.augment import Augmenter
from demitasse.io.data.transform.geometric import Region
from demitasse.io.data.transform.mean import check_channel_values, read_mean
from demitasse.io.data.transform.random import AUGMENT_WORDS, RecordRandom, words_of
from demitasse.io.proto import Datum, TransformationParameter

Images = np.ndarray | Sequence[np.ndarray]
"""One array (N, C, H, W), or N arrays (C, H, W); uint8 or floating point."""


def _as_batch(images: Images | Datum | Sequence[Datum] | Blob, color: Color) -> tuple[Images, bool]:
    """Return records as arrays (C, H, W), and True if there was a single record."""
    if isinstance(images, Datum):
        return [datum_to_array(images, color)], True
    if isinstance(images, Blob):
        images = images.cpu_data()
    if isinstance(images, np.ndarray):
        if images.ndim not in {3, 4} or not len(images):
            message = f"got records of {images.shape}, expected (C, H, W) or (N, C, H, W)"
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=images.shape)
        return (images[None], True) if images.ndim == 3 else (images, False)
    if not images:
        message = "there are no records to transform"
        raise ShapeError(message, code=ErrorCode.MISSING)
    batch = [
        datum_to_array(one, color) if isinstance(one, Datum) else np.asarray(one) for one in images
    ]
    for one in batch:
        if one.ndim != 3:
            message = f"got a record of {one.shape}, expected (C, H, W)"
            raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=one.shape)
    return batch, False


def _need_shape(what: str, shape: tuple[int, ...], room: tuple[int, ...]) -> None:
    """Refuse a result that does not fit its destination."""
    if shape != room:
        message = f"{what} {shape}, expected {room}"
        raise ShapeError(message, code=ErrorCode.SHAPE_MISMATCH, got=shape, expected=room)


SMALL = 4096
"""Records of up to so many values are cropped in one copy; copying larger ones does not pay."""


class MeanScale(NamedTuple):
    """Mean to subtract, (C, H, W), (C, 1, 1), (1, 1, 1) or None, and factor to multiply with."""

    mean: np.ndarray | None
    scale: float


class DataTransformer:
    """Crops, mirrors, centers and scales records.

    Args:
        base_dir: Folder of the prototxt, a second place of the mean file, or None.
        random: Random words by record, four each, for crop and mirror.
        augment_random: Random words by record, 24 each, for SSD's fields.

    Attributes:
        color: Channels to decode encoded images to.

    Raises:
        ConfigError: Fields contradict each other.
        DataError: The mean file cannot be read.
    """

    def __init__(
        self, param: TransformationParameter, phase: str, base_dir: Path | None = None,
        random: RecordRandom | None = None, augment_random: RecordRandom | None = None, *,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.dtype = np.dtype(dtype)
        self.color = _color(param)
        self._random = random if random is not None else RecordRandom(0, "")
        self._augment_random = augment_random or RecordRandom(0, "", "augment", AUGMENT_WORDS)
        self._augmenter = Augmenter(param)
        self._threads = Threads("augment")
        self._seen = 0
        if param.scale_factors:
            message = "scale_factors, of DeepLab, is for ImageSegData layers; remove it"
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED, field="scale_factors")
        self._crop, self._mirror = crop_of(param), param.mirror
        self._crops_anywhere = self._crop is not None and phase == "TRAIN"
        self._scale = self.dtype.type(param.scale)
        if param.mean_file and param.mean_value:
            message = "mean_file and mean_value are both given; give one of them"
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="mean_value")
        self._mean_file = param.mean_file
        self._mean: np.ndarray | None = None  # (C, H, W), (C, 1, 1) or (1, 1, 1)
        if param.mean_file:
            self._mean = read_mean(resolve_path(param.mean_file, base_dir)).astype(self.dtype)
        elif param.mean_value:
            self._mean = np.array(param.mean_value, self.dtype).reshape(-1, 1, 1)

    def infer_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of a record (C, H, W) of ``augment`` after ``finish``.

        A record smaller than the crop, or that does not fit the mean, is a ShapeError.
        """
        C, H, W = shape
        if min(shape) < 1:
            message = f"got a record of {shape} (channels, height, width), expected all above 0"
            raise ShapeError(message, code=ErrorCode.OUT_OF_RANGE, got=shape)
        h, w = self._crop or (H, W)
        if h > H or w > W:
            size = h if h == w else f"{h} x {w}"
            message = f"crop_size {size} is larger than a record of {H} x {W} pixels"
            field, code = "crop_size", ErrorCode.OUT_OF_RANGE
            raise ShapeError(message, code=code, field=field, got=(h, w), expected=(H, W))
        if self._mean_file and self._mean is not None and self._mean.shape != shape:
            field, got, code = "mean_file", self._mean.shape, ErrorCode.SHAPE_MISMATCH
            message = (
                f"got mean_file {self._mean_file!r} of {got}, expected {shape}, the shape of a "
                "record before the crop"
            )
            raise ShapeError(message, code=code, field=field, got=got, expected=shape)
        if not self._mean_file and self._mean is not None:
            check_channel_values("mean_value", len(self._mean), C)
        return C, h, w

    def transform(
        self, images: Images | Datum | Sequence[Datum] | Blob, out: np.ndarray | None = None, *,
        first: int | None = None, step: int = 1,
    ) -> np.ndarray:  # fmt: skip
        """Transform a batch of records.

        Args:
            images: An array (C, H, W) or (N, C, H, W), several arrays (C, H, W) of one size after
                cropping, one or several messages, or a blob (N, C, H, W).
            out: Array for the result, or None for a new array.
            first: Number of the first record, for random numbers; by default numbers continue from
                call to call.
            step: Difference of neighbouring record numbers.

        Returns:
            Shape: (N, C, h, w), where h and w are the crop size or H and W; (C, h, w) for one array
            (C, H, W) or one message.

        Raises:
            ShapeError: A record has an unsuitable size, or ``out`` has another shape.
        """
        batch, single = _as_batch(images, self.color)
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
        """Apply SSD's augmentation, the step before the crop; may change sizes.

        ``first`` and ``step`` are as for ``transform``; ``places`` are the indices of the records,
        counted from ``first``, or None for 0, 1, 2, ...

        Raises:
            RecordError: A record cannot be augmented; has its index.
        """
        if not self._augmenter:
            return images
        words = words_of(self._augment_random, len(images), first, step, places)

        def augmented(index: int) -> np.ndarray:
            try:
                return self._augmenter(images[index], words[index])
            except DemitasseError as error:
                raise RecordError.of(error, index) from error

        return self._threads.map(augmented, range(len(images)))

    def finish(
        self, images: Images, out: np.ndarray | ImageBatch, *, first: int, step: int = 1,
        places: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Crop, mirror, center and scale the results of ``augment``, which has the same arguments.

        ``out`` is an array (N, C, h, w); or bytes, which are cropped only: mirror, mean and scale
        are noted for the device.

        Raises:
            ShapeError: A record has an unsuitable size, or ``out`` has another shape.
        """
        shape = (len(images), *self.infer_shape(images[0].shape))
        _need_shape("the records become", shape, out.shape)
        words = None
        if self._mirror or self._crops_anywhere:
            words = words_of(self._random, len(images), first, step, places)
        if isinstance(out, ImageBatch):
            h, w = out.shape[2:]
            for i, (image, top, left, turned) in enumerate(self._crops(images, out.shape, words)):
                out.bytes[i] = image[:, top : top + h, left : left + w]
                out.places[i] = top, left, turned
        elif isinstance(images, np.ndarray) and not self._crops_anywhere:
            h, w = out.shape[2:]
            top, left = (images.shape[2] - h) // 2, (images.shape[3] - w) // 2
            self._compute(images, top, left, out)
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
        else:  # different sizes or crop positions
            for i, (image, top, left, turned) in enumerate(self._crops(images, out.shape, words)):
                self._compute(image, top, left, out[i][:, :, ::-1] if turned else out[i])

    @property
    def mean_scale(self) -> MeanScale:
        """Mean and scale of ``finish``."""
        return MeanScale(self._mean, float(self._scale))

    def visible_region(self, shape: tuple[int, ...], number: int) -> tuple[Region, bool]:
        """Return the visible region of a record after ``finish``, and True if it is flipped."""
        (_, h, w), (H, W) = self.infer_shape(shape), shape[1:]
        words = None
        if self._mirror or self._crops_anywhere:
            words = self._random(number, 1)[0]
        top, left, turned = self._crop_position(H - h, W - w, words)
        return (left / W, top / H, (left + w) / W, (top + h) / H), turned

    def close(self) -> None:
        """Stop the threads; a later use starts new ones."""
        self._threads.close()

    def _together(self, images: np.ndarray, out: np.ndarray, words: np.ndarray) -> None:
        """Transform small records of one size with random crops. Shapes: (N, C, ...)."""
        windows = sliding_window_view(images, out.shape[2:], axis=(2, 3))
        rows, columns = windows.shape[2:4]
        top, left = words[:, 1] % rows, words[:, 2] % columns
        cut = windows[np.arange(len(images)), :, top, left]  # (N, C, h, w)
        if self._mirror:
            turned = np.flatnonzero(words[:, 0] & 1)
            cut[turned] = cut[turned, :, :, ::-1]
        self._compute(cut, 0, 0, out)

    def _crops(
        self, images: Images, shape: tuple[int, ...], words: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, int, int, bool]]:
        """Yield each record, its crop position, and True if the record is flipped."""
        h, w = shape[2:]
        checked: tuple[int, ...] = ()
        for i, image in enumerate(images):
            if image.shape != checked:
                checked = image.shape
                what = f"record {i} of the batch becomes"
                _need_shape(what, self.infer_shape(checked), shape[1:])
            room = checked[1] - h, checked[2] - w
            yield image, *self._crop_position(*room, None if words is None else words[i])

    def _crop_position(
        self, rows: int, columns: int, words: np.ndarray | None
    ) -> tuple[int, int, bool]:
        """Return the crop position of a record, by its random words, and True if it is flipped."""
        turned = words is not None and self._mirror and bool(words[0] & 1)
        if words is not None and self._crops_anywhere:
            return int(words[1]) % (rows + 1), int(words[2]) % (columns + 1), turned
        return rows // 2, columns // 2, turned

    def _compute(self, images: np.ndarray, top: int, left: int, out: np.ndarray) -> None:
        """Write (pixel - mean) * scale of one window of images to ``out``."""
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
    """Return height and width of the crop, or None."""
    square, h, w = param.crop_size, param.crop_h, param.crop_w
    if bool(h) != bool(w) or (square and (h or w)):
        got = f"got crop_size {square}, crop_h {h} and crop_w {w}"
        message = f"{got}; give crop_size, or both crop_h and crop_w"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="crop_size")
    if square:
        return square, square
    return (h, w) if h else None


def _color(param: TransformationParameter) -> Color:
    if param.force_color and param.force_gray:
        message = "force_color and force_gray are both set; set one of them"
        raise ConfigError(message, code=ErrorCode.CONFLICT, field="force_color")
    if param.force_color:
        return "color"
    return "gray" if param.force_gray else "native"
