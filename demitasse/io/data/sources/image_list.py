"""Lists of image files with labels or label images (a class per pixel), and their batches.

Label images are not compared with the original.

Source: Caffe, ``src/caffe/layers/image_data_layer.cpp``; several labels per image and real-valued
labels are extensions of Demitasse. DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp`` and
``data_transformer.cpp`` (``TransformImgAndSeg``).
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode, ShapeError
from demitasse.io.data.bad_records import located_entry
from demitasse.io.data.images.codecs import Color, read_image
from demitasse.io.data.images.resize import interpolate, resize_image
from demitasse.io.data.redaction import quoted, read_list_file
from demitasse.io.data.sources.sampler import EpochPermutation, ListSampler
from demitasse.io.data.sources.source import Batch, ReaderConfig, Shape
from demitasse.io.data.transform.augment import Augmenter
from demitasse.io.data.transform.mean import check_channel_values
from demitasse.io.data.transform.random import RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer

Find = Callable[[str], Path]  # returns the path of an image name
MOST_MISSING = 100  # lines at the beginning of a list whose images may be missing


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a list: the name of an image as written, and its labels."""

    name: str
    labels: tuple[float, ...]


class Image(NamedTuple):
    """An image of a batch: record number, index of its entry, pixels (C, H, W) before cropping."""

    number: int
    entry: int
    pixels: np.ndarray


def read_image_list(source: Path, find: Find) -> list[Entry]:
    """Read lines ``name label``, or ``name label label ...``; names may contain spaces.

    The first line of an existing file determines the number of labels: the fewest trailing numbers
    that leave its name. If none of the first lines has such a file, the number is one.
    """
    text = read_list_file(source, "list of images")
    lines = [_trimmed(line.rstrip(), find) for line in text.split("\n") if line.strip()]
    if not lines:
        message = "the list of images is empty; write lines 'path label'"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    count = next((n for line in lines[:MOST_MISSING] for n in _counts(line, find)), 1)
    entries = []
    for line in lines:
        name, *labels = line.rsplit(maxsplit=count)
        if len(labels) < count:
            if count > 1:
                got, code = len(labels), ErrorCode.COUNT_MISMATCH
                message = f"got {got} labels, expected {count} as in other lines"
                raise DataError(message, str(source), line, code=code, got=got, expected=count)
            name, labels = line, [line]
        values = tuple(_number(label) for label in labels)
        if not all(map(math.isfinite, values)):
            message = f"got the label {' '.join(labels)}, expected finite numbers"
            raise DataError(message, str(source), name, code=ErrorCode.NOT_FINITE, field="label")
        entries.append(Entry(name, values))
    return entries


def _trimmed(line: str, find: Find) -> str:
    """Return a line without spaces at its beginning, unless the name of a file begins with them."""
    kept = line == line.lstrip() or any(_counts(line, find))
    return line if kept else line.lstrip()


def _counts(line: str, find: Find) -> Iterator[int]:
    """Yield the numbers of labels, the fewest first, that leave the name of a file."""
    words = line.split()
    numbers = 0
    while numbers < len(words) - 1 and _is_number(words[-1 - numbers]):
        numbers += 1
    for count in range(1, numbers + 1):
        with suppress(OSError, ConfigError):  # an impossible file name
            if find(line.rsplit(maxsplit=count)[0]).is_file():
                yield count


NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE)
INTEGER = re.compile(r"[+-]?[0-9]+")


def _is_number(text: str) -> bool:
    return NUMBER.fullmatch(text) is not None or text.lstrip("+-").lower() in {"inf", "nan"}


def _number(text: str) -> float:
    """Return a label; 0 for other text, like C's ``atoi``."""
    if _is_number(text):
        return float(text)
    found = INTEGER.match(text)
    return float(found[0]) if found else 0.0


class ImageListBatches(ListSampler[Image]):
    """Fills batches with the images of a list, in an endless loop.

    ``find`` returns the path of an image name. Images are decoded to the channels of ``color``,
    resized to ``size`` (height, width) in pixels or not, and transformed.
    """

    @renamed_arguments(reading="config")
    def __init__(
        self, source: Path, entries: list[Entry], find: Find, transformer: DataTransformer,
        batch_size: int, order: EpochPermutation, *, color: Color = "color",
        size: tuple[int, int] | None = None, config: ReaderConfig | None = None,
    ) -> None:  # fmt: skip
        config = config or ReaderConfig()
        super().__init__(str(source), len(entries), self._load, batch_size, config)
        self._entries, self._find = entries, find
        self._transformer, self._order = transformer, order
        self._color, self._resized = color, size
        count = len(entries[0].labels)
        self._label_shape: Shape = () if count == 1 else (count,)

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, h, w) and labels (N,) or (N, labels)."""
        shape = self._transformer.infer_shape(self.first().pixels.shape)
        return [(self._batch_size, *shape), (self._batch_size, *self._label_shape)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and labels (N,) or (N, labels)."""
        images = self.take(batch)
        labels = batch.array(1, (len(images), *self._label_shape))
        shape = self._transformer.infer_shape(images[0].pixels.shape)
        records = [image.pixels for image in images]
        data = batch.images((len(images), *shape), records, self._transformer.mean_scale)
        for index, (number, entry, pixels) in enumerate(images):
            values = self._entries[entry].labels
            labels[index] = values if labels.ndim > 1 else values[0]
            try:
                self._transformer.finish([pixels], data[index : index + 1], first=number)
            except DemitasseError as error:
                raise self._located(error, entry) from error

    def _load(self, at: int, number: int) -> Image:
        """Return image ``at`` of the order, with the random numbers of record ``number``."""
        index = self._order[at]
        entry = self._entries[index]
        try:
            pixels = read_image(self._find(entry.name), self._color)
            if self._resized is not None:
                pixels = resize_image(pixels, *self._resized)
            pixels = self._transformer.augment([pixels], first=number)[0]
            self._transformer.infer_shape(pixels.shape)
        except DemitasseError as error:
            raise self._located(error, index) from error
        return Image(number, index, pixels)

    def _located(self, error: DemitasseError, index: int) -> DataError:
        name = self._entries[index].name
        path: Path | None = None
        with suppress(DemitasseError):  # an impossible file name
            path = self._find(name)
        return located_entry(error, self._source, quoted(name, index + 1, path))


class Pair(NamedTuple):
    """A line of a list: the name of an image, and the name of its label image or a class."""

    image: str
    label: str


@dataclass(frozen=True)
class LabelImageOptions:
    """Options of images and label images.

    Attributes:
        size: (height, width) to resize to, or None.
        factors: Random scale factors applied after ``size``; empty: none.
        crop: (height, width) of the crop, or None.
        anywhere: Crop at a random position; otherwise at the center.
        mean: Mean to subtract: one value, or one per channel.
        label_type: ``"PIXEL"``, ``"IMAGE"`` or ``"NONE"``.
        ignore_label: Class of unlabelled pixels.
    """

    color: Color
    size: tuple[int, int] | None
    factors: tuple[float, ...]
    crop: tuple[int, int] | None
    anywhere: bool
    mirror: bool
    mean: tuple[float, ...]
    scale: float
    label_type: str
    ignore_label: int


class LabelledImage(NamedTuple):
    """Record number, line, pixels (C, H, W) and labels (H, W) of an image."""

    number: int
    pair: Pair
    pixels: np.ndarray
    labels: np.ndarray


def read_pairs(source: Path, label_type: str) -> list[Pair]:
    """Read lines ``image label``; for the label type ``"NONE"``, lines ``image``."""
    text = read_list_file(source, "list of images")
    wanted = 1 if label_type == "NONE" else 2
    pairs: list[Pair] = []
    for line in text.split("\n"):
        words = line.split()
        if words and len(words) < wanted:
            message = f"the line has no label, which label_type {label_type} needs"
            shown = quoted(words[0], len(pairs) + 1)
            raise DataError(message, str(source), shown, code=ErrorCode.MISSING, field="label")
        if words:
            pairs.append(Pair(words[0], words[1] if wanted == 2 else ""))
    if not pairs:
        message = "the list of images is empty"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    return pairs


class LabelImageBatches(ListSampler[LabelledImage]):
    """Fills batches with images and their label images, in an endless loop.

    Crop and mirror apply to both alike. An image smaller than the crop is padded on the right and
    below: with the mean, its labels with ``ignore_label``. The augmenter changes colours before the
    crop. ``random`` and ``augment_random`` are random words by record, for crop and mirror and for
    the augmenter.
    """

    @renamed_arguments(reading="config")
    def __init__(
        self, source: Path, pairs: list[Pair], find: Find, look: LabelImageOptions,
        augmenter: Augmenter, batch_size: int, order: EpochPermutation, *, random: RecordRandom,
        augment_random: RecordRandom, config: ReaderConfig | None = None,
    ) -> None:  # fmt: skip
        config = config or ReaderConfig()
        super().__init__(str(source), len(pairs), self._load, batch_size, config)
        self._pairs, self._find, self._look = pairs, find, look
        self._augmenter, self._order = augmenter, order
        self._random, self._augment_random = random, augment_random

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, h, w), labels (N, 1, h, w) and sizes."""
        pixels, N = self.first().pixels, self._batch_size
        h, w = self._look.crop or pixels.shape[1:]
        return [(N, len(pixels), h, w), (N, 1, h, w), (N, 1, 1, 2)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w), labels (N, 1, h, w) and sizes (N, 1, 1, 2).

        Sizes are height and width of each image, at most h and w.
        """
        found = self.take(batch)
        N, C = len(found), len(found[0].pixels)
        h, w = self._look.crop or found[0].labels.shape
        data = batch.array(0, (N, C, h, w))
        labels = batch.array(1, (N, 1, h, w))
        sizes = batch.array(2, (N, 1, 1, 2))
        data[...] = 0
        labels[...] = self._look.ignore_label
        for index, one in enumerate(found):
            becomes = (len(one.pixels), *(self._look.crop or one.labels.shape))
            if becomes != (C, h, w):
                message = f"got an image of {becomes}, expected {(C, h, w)} as in the whole batch"
                name, code, expected = one.pair.image, ErrorCode.SHAPE_MISMATCH, (C, h, w)
                raise DataError(
                    message, self._source, name, code=code, got=becomes, expected=expected
                )
            sizes[index] = np.minimum(one.labels.shape, (h, w))
            self._put(one, data[index], labels[index, 0])

    def _put(self, one: LabelledImage, data: np.ndarray, labels: np.ndarray) -> None:
        """Crop, mirror, center and scale one image. Shapes: (C, h, w), (h, w)."""
        look = self._look
        H, W = one.labels.shape
        h, w = min(H, labels.shape[0]), min(W, labels.shape[1])
        top, left = (H - h) // 2, (W - w) // 2
        words = self._random(one.number, 1)[0]
        if look.anywhere:
            top, left = int(words[1]) % (H - h + 1), int(words[2]) % (W - w + 1)
        if look.mirror and words[0] & 1:
            data, labels = data[:, :, ::-1], labels[:, ::-1]
        part = one.pixels[:, top : top + h, left : left + w]
        mean = np.array(look.mean, data.dtype).reshape(-1, 1, 1)
        data[:, :h, :w] = (part - mean) * data.dtype.type(look.scale)
        labels[:h, :w] = one.labels[top : top + h, left : left + w]

    def _load(self, at: int, number: int) -> LabelledImage:
        """Return image ``at`` of the order, with the random numbers of record ``number``."""
        index = self._order[at]
        pair, look = self._pairs[index], self._look
        try:
            pixels = read_image(self._find(pair.image), look.color)
            labels = self._labels(pair, pixels.shape[1:])
            H, W = look.size or labels.shape
            if look.factors:
                word = int(self._random(number, 1)[0][3])
                factor = look.factors[word % len(look.factors)]
                H, W = max(1, int(H * factor)), max(1, int(W * factor))
            pixels = resize_image(pixels, H, W)
            labels = interpolate(labels[None], H, W, "NEAREST")[0]
            if self._augmenter:
                pixels = self._augmenter(pixels, self._augment_random(number, 1)[0])
            check_channel_values("mean_value", len(look.mean), len(pixels))
        except DemitasseError as error:
            key = quoted(pair.image, index + 1)
            raise located_entry(error, self._source, key) from error
        return LabelledImage(number, pair, pixels, labels)

    def _labels(self, pair: Pair, size: tuple[int, ...]) -> np.ndarray:
        """Return the labels of an image of a size. Shape: (H, W)."""
        if self._look.label_type != "PIXEL":
            label, text = self._look.ignore_label, pair.label
            if self._look.label_type == "IMAGE":
                short = INTEGER.fullmatch(text) is not None and len(text) < 20
                if not short or abs(int(text)) > np.iinfo(np.int32).max:
                    message = (
                        f"got the label {text[:40]!r}, expected an integer of 32 bits; for images "
                        "set label_type: PIXEL"
                    )
                    code, got = ErrorCode.INVALID, text[:40]
                    raise DataError(message, code=code, field="label", got=got)
                label = int(text)
            return np.full(size, label, np.int32)
        labels: np.ndarray = read_image(self._find(pair.label), "indices")[0]
        if labels.shape != size:
            shape, code = labels.shape, ErrorCode.SHAPE_MISMATCH
            message = f"the image is {size}, its labels {pair.label} are {shape}"
            raise ShapeError(message, code=code, got=shape, expected=size)
        return labels
