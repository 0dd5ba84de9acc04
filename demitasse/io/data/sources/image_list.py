"""Lists of image files with labels, and batches of these images.

Source: Caffe, ``src/caffe/layers/image_data_layer.cpp``. Several labels per image and real-valued
labels are extensions of Demitasse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.core.paths import code_of, read_failure, read_text
from demitasse.errors import ConfigError, DataError, DemitasseError, ErrorCode
from demitasse.io.data.broken import located
from demitasse.io.data.images.decode import Color, read_image
from demitasse.io.data.images.resize import resize_image
from demitasse.io.data.quoting import quoted
from demitasse.io.data.sources.list_walk import ListWalk
from demitasse.io.data.sources.order import Order
from demitasse.io.data.sources.source import Batch, Reading, Shape
from demitasse.io.data.transform.transformer import DataTransformer

__all__ = ["Entry", "ImageListBatches", "read_image_list"]

Find = Callable[[str], Path]
"""Returns the path of an image name."""


@dataclass(frozen=True)
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

    The first line determines the number of labels: the fewest trailing numbers that leave the name
    of an existing file, else one.

    Args:
        source: The list.
        find: Returns the path of an image name.

    Raises:
        DataError: The list cannot be read or is empty, or a line has too few labels.
    """
    try:
        text = read_text(source)
    except OSError as error:
        message = f"the list of images cannot be read: {read_failure(error, source)}"
        raise DataError(message, str(source), code=code_of(error)) from error
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        message = "the list of images is empty; write lines 'path label'"
        raise DataError(message, str(source), code=ErrorCode.MISSING)
    count = _count_labels(lines[0], find)
    entries = []
    for line in lines:
        name, *labels = line.rsplit(maxsplit=count)
        if len(labels) < count:
            if count > 1:
                message = f"got {len(labels)} labels, expected {count} as in the first line"
                raise DataError(
                    message,
                    str(source),
                    line,
                    code=ErrorCode.COUNT_MISMATCH,
                    got=len(labels),
                    expected=count,
                )
            name, labels = line, [line]
        entries.append(Entry(name, tuple(_number(label) for label in labels)))
    return entries


def _count_labels(line: str, find: Find) -> int:
    words = line.split()
    numbers = 0
    while numbers < len(words) - 1 and _is_number(words[-1 - numbers]):
        numbers += 1
    for count in range(1, numbers + 1):
        with suppress(OSError, ConfigError):  # an impossible file name
            if find(line.rsplit(maxsplit=count)[0]).is_file():
                return count
    return 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """Return a label; 0 for other text, like C's ``atoi``."""
    if _is_number(text):
        return float(text)
    found = re.match(r"[+-]?\d+", text)
    return float(found[0]) if found else 0.0


class ImageListBatches:
    """Fills batches with the images of a list, in an endless loop.

    Args:
        source: The list, for messages.
        entries: Its lines.
        find: Returns the path of an image name.
        transformer: Transformation of each image.
        batch_size: Images per batch.
        order: Order of the images.
        color: Channels to decode to.
        size: (height, width) in pixels to resize to, or None.
        reading: Start position, shard and policy for bad records.
    """

    def __init__(
        self,
        source: Path,
        entries: list[Entry],
        find: Find,
        transformer: DataTransformer,
        batch_size: int,
        order: Order,
        *,
        color: Color = "color",
        size: tuple[int, int] | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._source, self._entries, self._find = source, entries, find
        self._transformer, self._batch_size, self._order = transformer, batch_size, order
        self._color, self._size = color, size
        count = len(entries[0].labels)
        self._label_shape: Shape = () if count == 1 else (count,)
        self._walk = ListWalk(
            str(source),
            len(entries),
            self._read,
            batch_size,
            reading or Reading(),
        )

    @property
    def position(self) -> int:
        """Images used before the next batch."""
        return self._walk.position

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, h, w) and labels (N,) or (N, labels).

        Raises:
            DataError: The first image cannot be used; names the image.
        """
        image = self._walk.first()
        shape = self._transformer.infer_shape(image.pixels.shape)
        return [(self._batch_size, *shape), (self._batch_size, *self._label_shape)]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and labels (N,) or (N, labels).

        Raises:
            DataError: An image cannot be read, or differs in size from the first; names the image.
        """
        images = self._walk.take(batch)
        labels = batch.array(1, (len(images), *self._label_shape))
        shape = self._transformer.infer_shape(images[0].pixels.shape)
        records = [image.pixels for image in images]
        data = batch.images((len(images), *shape), records, self._transformer.centring)
        for index, (number, entry, pixels) in enumerate(images):
            labels[index] = (
                self._entries[entry].labels if labels.ndim > 1 else self._entries[entry].labels[0]
            )
            try:
                self._transformer.finish([pixels], data[index : index + 1], first=number)
            except DemitasseError as error:
                raise self._placed(error, entry) from error

    def leave_out(self, batch: Batch) -> None:
        """Skip the next batch."""
        self._walk.leave_out(batch)

    def close(self) -> None:
        """Stop the threads; no file stays open."""
        self._walk.close()

    def _read(self, at: int, number: int) -> Image:
        """Return image ``at`` of the order, with the random numbers of record ``number``."""
        index = self._order[at]
        entry = self._entries[index]
        try:
            pixels = read_image(self._find(entry.name), self._color)
            if self._size is not None:
                pixels = resize_image(pixels, *self._size)
            pixels = self._transformer.augment([pixels], first=number)[0]
            self._transformer.infer_shape(pixels.shape)
        except DemitasseError as error:
            raise self._placed(error, index) from error
        return Image(number, index, pixels)

    def _placed(self, error: DemitasseError, index: int) -> DataError:
        name = self._entries[index].name
        path: Path | None = None
        with suppress(DemitasseError):  # an impossible file name
            path = self._find(name)
        shown = quoted(name, index + 1, path)
        return located(error, str(self._source), shown)
