"""Lists of images whose labels are images, too: a class for every pixel.

Not compared with the original.

Source: DeepLab, ``src/caffe/layers/image_seg_data_layer.cpp`` and ``data_transformer.cpp``
(``TransformImgAndSeg``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.core.paths import read_failure, read_text
from demitasse.errors import DataError, DemitasseError, ShapeError
from demitasse.io.data.images.decode import Color, read_image
from demitasse.io.data.images.interpolate import interpolate
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.quoting import quoted
from demitasse.io.data.sources.image_list import Find
from demitasse.io.data.sources.list_walk import ListWalk
from demitasse.io.data.sources.order import Order
from demitasse.io.data.sources.source import Batch, Reading, Shape
from demitasse.io.data.transform.augment.augmenter import Augmenter
from demitasse.io.data.transform.random import RandomWords

__all__ = ["LabelImageBatches", "Look", "Pair", "read_pairs"]


class Pair(NamedTuple):
    """One line of a list: the name of an image, and that of its labels or a class."""

    image: str
    label: str


@dataclass(frozen=True)
class Look:
    """What is done to images and to their labels.

    Attributes:
        color: Channels to decode to.
        size: (height, width) that both are resized to, or None.
        factors: Both are then resized by one of these, drawn at random; by none if there are none.
        crop: (height, width) of what is cut out, or None.
        anywhere: Whether the crop is at a random position, or else in the middle.
        mirror: Whether half of them, drawn at random, are mirrored left to right.
        mean: What is subtracted: one value, or one for each channel.
        scale: What the difference is multiplied by.
        label_type: ``"PIXEL"``, ``"IMAGE"`` or ``"NONE"``.
        ignore_label: The class of pixels that have none.
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


class Found(NamedTuple):
    """An image and its labels, (C, H, W) and (H, W), and its number."""

    number: int
    pair: Pair
    pixels: np.ndarray
    labels: np.ndarray


def read_pairs(source: Path, label_type: str) -> list[Pair]:
    """Read lines ``image label``; without labels, lines ``image``.

    Args:
        source: The list.
        label_type: ``"PIXEL"``, ``"IMAGE"`` or ``"NONE"``.

    Raises:
        DataError: The list cannot be read or is empty, or a line lacks its label.
    """
    try:
        text = read_text(source)
    except OSError as error:
        message = f"the list of images cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source)) from error
    wanted = 1 if label_type == "NONE" else 2
    pairs: list[Pair] = []
    for line in text.split("\n"):
        words = line.split()
        if words and len(words) < wanted:
            message = f"this line names no label, which label_type {label_type} needs"
            raise DataError(message, str(source), quoted(words[0], len(pairs) + 1))
        if words:
            pairs.append(Pair(words[0], words[1] if wanted == 2 else ""))
    if not pairs:
        message = "the list of images is empty"
        raise DataError(message, str(source))
    return pairs


class LabelImageBatches:
    """Fills batches with images and their labels, in an endless loop.

    Both are cut out and mirrored alike. Where an image is smaller than what is cut out, it is
    filled up on the right and below: with the mean, and the labels with ``ignore_label``.

    Args:
        source: The list, for messages.
        pairs: Its lines.
        find: Where an image is.
        look: What is done to them.
        augmenter: What changes the colours of images before that.
        batch_size: Images in a batch.
        order: In which order they come.
        random: Random words by record, for cropping and mirroring.
        augment_random: Random words by record, for the augmenter.
        reading: Where to begin, and which share of the records to take.
    """

    def __init__(
        self,
        source: Path,
        pairs: list[Pair],
        find: Find,
        look: Look,
        augmenter: Augmenter,
        batch_size: int,
        order: Order,
        *,
        random: RandomWords,
        augment_random: RandomWords,
        reading: Reading | None = None,
    ) -> None:
        self._source, self._pairs, self._find, self._look = source, pairs, find, look
        self._augmenter, self._order, self._batch_size = augmenter, order, batch_size
        self._random, self._augment_random = random, augment_random
        self._walk = ListWalk(
            str(source),
            len(pairs),
            self._read,
            batch_size,
            reading or Reading(),
        )

    @property
    def position(self) -> int:
        """Images before the next batch."""
        return self._walk.position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, h, w), labels (N, 1, h, w), sizes (N, 1, 1, 2).

        Raises:
            DataError: The first image cannot be used; names it.
        """
        pixels, N = self._walk.first().pixels, self._batch_size
        h, w = self._look.crop or pixels.shape[1:]
        return [(N, len(pixels), h, w), (N, 1, h, w), (N, 1, 1, 2)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w), labels (N, 1, h, w) and sizes (N, 1, 1, 2).

        Sizes are height and width of each image, at most h and w.

        Raises:
            DataError: An image cannot be read, or becomes another size than the first; names it.
        """
        found = self._walk.take(batch)
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
                message = f"this image becomes {becomes}, the first of its batch {(C, h, w)}"
                raise DataError(message, str(self._source), one.pair.image)
            sizes[index] = np.minimum(one.labels.shape, (h, w))
            self._put(one, data[index], labels[index, 0])

    def leave_out(self, batch: Batch) -> None:
        """Go on to the batch after the next one."""
        self._walk.leave_out(batch)

    def close(self) -> None:
        """Let go of threads; no file is kept open."""
        self._walk.close()

    def _put(self, one: Found, data: np.ndarray, labels: np.ndarray) -> None:
        """Cut out, mirror, centre and scale one image. Shapes: (C, h, w), (h, w)."""
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

    def _read(self, at: int, number: int) -> Found:
        """Return image ``at`` of the order, with the random changes of record ``number``."""
        index = self._order[at]
        pair, look = self._pairs[index], self._look
        try:
            pixels = read_image(self._find(pair.image), look.color)
            labels = self._labels(pair, pixels.shape[1:])
            H, W = self._size(number, *labels.shape)
            pixels = resize_image(pixels, H, W)
            labels = interpolate(labels[None], H, W, "NEAREST")[0]
            if self._augmenter:
                pixels = self._augmenter(pixels, self._augment_random(number, 1)[0])
            if len(look.mean) not in {1, len(pixels)}:
                message = f"mean_value is given {len(look.mean)} times for {len(pixels)} channels"
                raise ShapeError(message)
        except DemitasseError as error:
            shown = quoted(pair.image, index + 1)
            raise DataError(error.message, str(self._source), shown) from error
        return Found(number, pair, pixels, labels)

    def _size(self, number: int, H: int, W: int) -> tuple[int, int]:
        """Return what an image of H x W pixels is resized to: (height, width), in pixels."""
        look = self._look
        height, width = look.size or (H, W)
        if not look.factors:
            return height, width
        factor = look.factors[int(self._random(number, 1)[0][3]) % len(look.factors)]
        return max(1, int(height * factor)), max(1, int(width * factor))

    def _labels(self, pair: Pair, size: tuple[int, ...]) -> np.ndarray:
        """Return the labels of an image of some size. Shape: (H, W)."""
        if self._look.label_type != "PIXEL":
            label = self._look.ignore_label
            if self._look.label_type == "IMAGE":
                label = _class(pair.label)
            return np.full(size, label, np.int32)
        labels: np.ndarray = read_image(self._find(pair.label), "indices")[0]
        if labels.shape != size:
            message = f"the image is {size}, its labels {pair.label} are {labels.shape}"
            raise ShapeError(message)
        return labels


def _class(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"the label {text!r} is no whole number; for an image, set label_type: PIXEL"
        raise DataError(message) from None
