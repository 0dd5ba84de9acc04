"""Batches of transformed records of a database.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from demitasse.data.broken import RecordError, nothing_left
from demitasse.data.databases.database import Raw, open_db
from demitasse.data.databases.datum import Label
from demitasse.data.sources.reader import RecordReader
from demitasse.data.sources.source import Batch, Reading, Shape
from demitasse.data.sources.stacker import Stacker
from demitasse.data.transform.transformer import DataTransformer, Images
from demitasse.errors import DataError, DemitasseError

__all__ = ["DatabaseBatches"]


class Loaded(NamedTuple):
    """A good record: its number, its bytes, what shape it becomes (C, h, w), and its label."""

    number: int
    raw: Raw
    shape: Shape
    label: Label


class DatabaseBatches:
    """Fills batches with the records of a database, in order, in an endless loop.

    Args:
        path: Where the database is.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        transformer: What is done to each record.
        batch_size: Records in a batch.
        labels: Whether labels are wanted.
        reading: Where to begin, and which share of the records to take.

    Raises:
        DataError: The database cannot be opened or is empty.
    """

    def __init__(
        self,
        path: Path,
        backend: str,
        transformer: DataTransformer,
        batch_size: int,
        *,
        labels: bool = True,
        reading: Reading | None = None,
    ) -> None:
        reading = reading or Reading()
        self._transformer, self._stacker = transformer, Stacker(transformer.color)
        self._source, self._batch_size, self._labels = str(path), batch_size, labels
        self._position, self._step = reading.position, reading.shard.ranks
        self._whole_epochs, self._broken = reading.whole_epochs, reading.broken
        self._database = open_db(path, backend)
        self._reader = RecordReader(self._database, reading.position, reading.shard)
        if self._whole_epochs:
            self._position -= self._reader.begin_round()

    def shapes(self) -> list[Shape]:
        """Return the shapes of a batch: data (N, C, h, w) and labels (N,) or (N, labels)."""
        slot = self._reader.number
        own = self._reader.record(slot)
        first = self._broken.find_one(
            lambda one: self._load(*one, slot), self._round_from(slot, own)
        )
        N = self._batch_size
        return [(N, *first.shape), (N, *np.shape(first.label))][: 1 + self._labels]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and, if wanted, labels (N,) or (N, labels).

        Raises:
            DataError: A record cannot be read or transformed; names it.
        """
        made = False
        while not made:  # all records of a batch may be broken
            first = self._reader.number
            records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
            self._position += len(records) * self._step
            slots = range(first, first + len(records) * self._step, self._step)
            made = self._fill(batch, records, slots)
        batch.position, batch.last = self._position, self._whole_epochs and self._reader.at_start
        batch.skipped = self._broken.count

    def close(self) -> None:
        """Let go of the database and of threads."""
        self._stacker.close()
        self._transformer.close()
        self._reader.close()
        self._database.close()

    def _fill(self, batch: Batch, records: list[Raw], slots: range) -> bool:
        """Make a batch of some records, or of good ones for them; tell whether there are any."""
        try:
            self._make(batch, records, slots.start, range(len(slots)))
            return True
        except RecordError as error:
            if not (error.broken and self._broken.skip):
                raise self._placed(error, slots[error.index]) from error
        except DemitasseError as error:
            raise self._placed(error, slots.start) from error
        good = self._without_broken(records, slots)
        if good:
            try:
                self._make(batch, [one.raw for one in good.values()], slots.start, list(good))
            except RecordError as error:
                number = list(good.values())[error.index].number
                raise self._placed(error, number) from error
        return bool(good)

    def _without_broken(self, records: list[Raw], slots: range) -> dict[int, Loaded]:
        """Return the good records for a batch by their places, and count the broken ones."""
        good: dict[int, Loaded] = {}
        for place, (slot, raw) in enumerate(zip(slots, records, strict=True)):
            one, fault = self._find(slot, raw)
            if fault is not None:
                self._broken.note(fault, slot // (self._reader.size or slot + 1))
            if one is not None:
                good[place] = one
            elif fault is not None and not self._whole_epochs:
                raise fault
        if not good and self._reader.at_start:
            raise nothing_left(self._source)
        return good

    def _find(self, slot: int, own: Raw) -> tuple[Loaded | None, DataError | None]:
        """Return the record for a slot, and the error of its own record where that is broken."""
        candidates = self._round_from(slot, own)
        if self._whole_epochs:
            candidates = islice(candidates, 1)
        return self._broken.find(lambda one: self._load(*one, slot), candidates)

    def _round_from(self, slot: int, own: Raw) -> Iterator[tuple[int, Raw]]:
        """Yield all records of the database with their numbers, the first of them ``slot``."""
        yield slot, own
        number = slot + 1
        while self._reader.size is None or number - slot < self._reader.size:
            yield number, self._reader.record(number)
            number += 1

    def _load(self, number: int, raw: Raw, slot: int) -> Loaded:
        """Return a record, with the random changes of a slot.

        Raises:
            DataError: It is broken; names it.
        """
        try:
            images, labels = self._stacker.stack([raw])
            shape = self._shape_of(self._transformer.augment(images, first=slot))
        except DemitasseError as error:
            raise self._placed(error, number) from error
        return Loaded(number, raw, shape, labels[0])

    def _make(self, batch: Batch, records: list[Raw], first: int, places: Sequence[int]) -> None:
        images, labels = self._stacker.stack(records)
        step = self._step
        images = self._transformer.augment(images, first=first, step=step, places=places)
        data = batch.array(0, (len(records), *self._shape_of(images)))
        self._transformer.finish(images, data, first=first, step=step, places=places)
        if self._labels:
            stacked = _stacked(labels)
            batch.array(1, stacked.shape)[...] = stacked

    def _shape_of(self, images: Images) -> tuple[int, int, int]:
        """Return what the records of a batch become; they must agree."""
        shapes: list[tuple[int, int, int]] = []
        alike = isinstance(images, np.ndarray)
        for index, image in enumerate(images[:1] if alike else images):
            try:
                shapes.append(self._transformer.infer_shape(image.shape))
            except DemitasseError as error:
                raise RecordError(error.message, index) from error
            if shapes[-1] != shapes[0]:
                message = f"this record becomes {shapes[-1]}, the first of its batch {shapes[0]}"
                raise RecordError(message, index, broken=False)
        return shapes[0]

    def _placed(self, error: DemitasseError, number: int) -> DataError:
        """Return an error that names the database and the record."""
        return DataError(error.message, self._source, self._reader.key_of(number))


def _stacked(labels: list[Label]) -> np.ndarray:
    """Return the labels of a batch as an array: (N,), or (N, labels)."""
    shape = np.shape(labels[0])
    for index, label in enumerate(labels):
        if np.shape(label) != shape:
            message = (
                f"this record has {np.size(label)} labels, the first of its batch "
                f"{np.size(labels[0])}"
            )
            raise RecordError(message, index, broken=False)
    return np.asarray(labels)
