"""Lists of picture files with labels, and batches of what is in them.

Source: Caffe, ``src/caffe/layers/image_data_layer.cpp``; several labels for a picture, and labels
that are not whole numbers, are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse.data.broken import Broken
from demitasse.data.image import Color, read_image
from demitasse.data.order import Order
from demitasse.data.prefetch import Batch
from demitasse.data.resize import resize_image
from demitasse.data.transformer import DataTransformer
from demitasse.errors import DataError, DemitasseError

__all__ = ["Entry", "ImageListBatches", "read_image_list"]

Find = Callable[[str], Path]
"""Where a picture of that name is."""


@dataclass(frozen=True)
class Entry:
    """One line of a list: the name of a picture as written, and its labels."""

    name: str
    labels: tuple[float, ...]


def read_image_list(source: Path, find: Find) -> list[Entry]:
    """Read lines ``name label``, or ``name label label ...``; names may hold spaces.

    The first line says how many labels there are: as many numbers at its end as leave the name of a
    file that is there, one if in doubt.

    Args:
        source: The list.
        find: Where a picture is.

    Raises:
        DataError: The list cannot be read or is empty, or a line has too few labels.
    """
    try:
        text = source.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        message = f"the list of pictures cannot be read: {error.strerror}"
        raise DataError(message, str(source)) from error
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        message = "the list of pictures is empty; it needs lines 'path label'"
        raise DataError(message, str(source))
    count = _count_labels(lines[0], find)
    entries = []
    for line in lines:
        name, *labels = line.rsplit(maxsplit=count)
        if len(labels) < count:
            if count > 1:
                message = f"this line has fewer than {count} labels, the first one has {count}"
                raise DataError(message, str(source), line)
            name, labels = line, [line]
        entries.append(Entry(name, tuple(_number(label) for label in labels)))
    return entries


def _count_labels(line: str, find: Find) -> int:
    words = line.split()
    numbers = 0
    while numbers < len(words) - 1 and _is_number(words[-1 - numbers]):
        numbers += 1
    for count in range(1, numbers + 1):
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
    """Return a label: 0 where there is no number, as C's ``atoi`` has it."""
    if _is_number(text):
        return float(text)
    found = re.match(r"[+-]?\d+", text)
    return float(found[0]) if found else 0.0


class ImageListBatches:
    """Fills batches with the pictures of a list, round and round.

    Args:
        source: The list, for messages.
        entries: Its lines.
        find: Where a picture is.
        transformer: What is done to each picture.
        batch_size: Pictures in a batch.
        order: In which order they come.
        color: Channels to decode to.
        size: (height, width) in pixels that pictures are resized to, or None.
        position: Pictures that all ranks together have used before.
        rank: Which of the ranks this is, from 0.
        ranks: How many there are.
        whole_epochs: Whether to begin with a round's first picture, and to end a batch with its
            last one.
        broken: What becomes of pictures that cannot be used; None refuses them. Where one is
            skipped, the next good one stands in for it; in whole epochs, the batch becomes smaller.
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
        position: int = 0,
        rank: int = 0,
        ranks: int = 1,
        whole_epochs: bool = False,
        broken: Broken | None = None,
    ) -> None:
        self._broken = broken or Broken()
        self._source, self._entries, self._find = source, entries, find
        self._transformer, self._batch_size, self._order = transformer, batch_size, order
        self._color, self._size = color, size
        self._position, self._rank, self._ranks = position, rank, ranks
        self._whole_epochs = whole_epochs
        if whole_epochs:
            self._position -= position % len(entries)

    def first_shape(self) -> tuple[int, ...]:
        """Return the shape of the first batch: (N, C, h, w).

        Raises:
            DataError: The first picture cannot be used; names it.
        """
        first = at = self._number(0)
        while True:
            try:
                return (self._batch_size, *self._infer(self._read(at, first)))
            except DataError:
                at += 1
                if not self._broken.skip or at - first == len(self._entries):
                    raise

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and labels (N,), or (N, labels).

        Raises:
            DataError: A picture cannot be read, or becomes another size than the first; names it.
        """
        found: list[tuple[int, Entry, np.ndarray]] = []
        while not found:  # all pictures of a batch may be broken
            size = self._batch_size
            if self._whole_epochs:
                size = min(size, len(self._entries) - self._position % len(self._entries))
            found = [one for index in range(size) if (one := self._good(self._number(index)))]
            self._position += size * self._ranks
            batch.last = self._whole_epochs and self._position % len(self._entries) == 0
            if batch.last and not found:
                message = "no picture of the last batch can be used; change the batch size"
                raise DataError(message, str(self._source))
        self._put(found, batch)
        batch.position, batch.skipped = self._position, self._broken.count

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of the labels of a batch."""
        count = len(self._entries[0].labels)
        return (self._batch_size,) if count == 1 else (self._batch_size, count)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _put(self, found: list[tuple[int, Entry, np.ndarray]], batch: Batch) -> None:
        """Put some pictures into a batch, each with its number."""
        labels = batch.array(1, (len(found), *self.label_shape[1:]))
        for index, (number, entry, image) in enumerate(found):
            labels[index] = entry.labels if labels.ndim > 1 else entry.labels[0]
            try:
                if not index:
                    data = batch.array(0, (len(found), *self._infer(image)))
                self._transformer.finish([image], data[index : index + 1], first=number)
            except DemitasseError as error:
                raise self._placed(error, entry) from error

    def _good(self, number: int) -> tuple[int, Entry, np.ndarray] | None:
        """Return number, line and picture, or None where it is left out."""
        for at in range(number, number + len(self._entries)):
            try:
                image = self._read(at, number)
                return number, self._entry(at), image
            except DataError as error:
                fault = error
                self._broken.note(error, at // len(self._entries))
                if self._whole_epochs:
                    return None
        raise fault

    def _number(self, index: int) -> int:
        return self._position + self._rank + index * self._ranks

    def _entry(self, number: int) -> Entry:
        return self._entries[self._order[number]]

    def _read(self, at: int, number: int) -> np.ndarray:
        """Return the picture ``at``, changed as that of ``number`` is."""
        entry = self._entry(at)
        try:
            image = read_image(self._find(entry.name), self._color)
            if self._size is not None:
                image = resize_image(image, *self._size)
            image = self._transformer.augment([image], first=number)[0]
            self._transformer.infer_shape(image.shape)
        except DemitasseError as error:
            raise self._placed(error, entry) from error
        return image

    def _infer(self, image: np.ndarray) -> tuple[int, int, int]:
        return self._transformer.infer_shape(image.shape)

    def _placed(self, error: DemitasseError, entry: Entry) -> DataError:
        return DataError(error.message, str(self._source), entry.name)
