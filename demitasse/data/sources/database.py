"""Batches of transformed records of a database.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from demitasse.data.broken import Broken, RecordError
from demitasse.data.databases.database import Raw, open_db
from demitasse.data.databases.datum import Label
from demitasse.data.databases.reader import RecordReader
from demitasse.data.prefetch import Batch
from demitasse.data.sources.stacker import Stacker
from demitasse.data.transform.transformer import DataTransformer, Images
from demitasse.errors import DataError, DemitasseError

__all__ = ["DatabaseBatches"]


class DatabaseBatches:
    """Fills batches with the records of a database, in order and round and round.

    Where a broken record is skipped, the next good one of the database stands in for it; it comes
    again in its own place. So each place in a batch depends on its number alone, whatever the
    number of ranks. In whole epochs, which count, the batch becomes smaller instead.

    Args:
        path: Where the database is.
        backend: ``"LMDB"`` or ``"LEVELDB"``.
        transformer: What is done to each record.
        batch_size: Records in a batch.
        labels: Whether labels are wanted.
        position: Records that all ranks together have read before.
        rank: Which of the ranks this is, from 0.
        ranks: How many there are.
        whole_epochs: Whether to begin with the first record, and to end a batch with the last one.
        broken: What becomes of broken records; None refuses them.

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
        position: int = 0,
        rank: int = 0,
        ranks: int = 1,
        whole_epochs: bool = False,
        broken: Broken | None = None,
    ) -> None:
        self._transformer, self._stacker = transformer, Stacker(transformer.color)
        self._source, self._batch_size, self._labels = str(path), batch_size, labels
        self._position, self._ranks = position, ranks
        self._broken = broken or Broken()
        self._database = open_db(path, backend)
        self._reader = RecordReader(self._database, position, rank, ranks)
        self._whole_epochs = whole_epochs
        if whole_epochs:
            self._position -= self._reader.begin_round()

    def first_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the first batch: data (N, C, h, w), labels (N,) or (N, labels)."""
        number = at = self._reader.number
        while True:
            try:
                images, labels = self._stacker.stack([self._reader.record(at)])
                images = self._transformer.augment(images, first=number)
                shape = self._shape_of(images)
                return (self._batch_size, *shape), (self._batch_size, *np.shape(labels[0]))
            except RecordError as error:
                if not self._broken.skip:
                    raise self._placed(error, at) from error
                at = self._after(at, number, error)
            except DemitasseError as error:
                raise self._placed(error, at) from error

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and, if wanted, labels (N,) or (N, labels).

        Raises:
            DataError: A record cannot be read or transformed; names it.
        """
        places: list[int] = []
        while not places:  # all records of a batch may be broken
            number = self._reader.number
            records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
            self._position += len(records) * self._ranks
            places = self._fill(batch, records, number)
        batch.position, batch.last = self._position, self._whole_epochs and self._reader.at_start
        batch.skipped = self._broken.count

    def close(self) -> None:
        """Let go of the database and of threads."""
        self._stacker.close()
        self._transformer.close()
        self._reader.close()
        self._database.close()

    def _fill(self, batch: Batch, records: list[Raw], number: int) -> list[int]:
        """Make a batch of some records, the first of that number; return which are in it."""
        places = list(range(len(records)))
        sources = [number + place * self._ranks for place in places]
        while places:
            try:
                self._make(batch, records, number, places)
                break
            except RecordError as error:
                i = error.index
                fault = self._placed(error, sources[i])
                if not error.broken:
                    raise fault from error
                begin = number + places[i] * self._ranks
                if sources[i] == begin:
                    self._broken.note(fault, begin // (self._reader.size or begin + 1))
                if self._whole_epochs:
                    del records[i], places[i], sources[i]
                    if not places and self._reader.at_start:
                        raise fault from error
                else:
                    sources[i] = self._after(sources[i], begin, error)
                    records[i] = self._reader.record(sources[i])
            except DemitasseError as error:
                raise self._placed(error, number) from error
        return places

    def _make(self, batch: Batch, records: list[Raw], number: int, places: list[int]) -> None:
        images, labels = self._stacker.stack(records)
        step = self._ranks
        images = self._transformer.augment(images, first=number, step=step, places=places)
        data = batch.array(0, (len(records), *self._shape_of(images)))
        self._transformer.finish(images, data, first=number, step=step, places=places)
        if self._labels:
            stacked = _stacked(labels)
            batch.array(1, stacked.shape)[...] = stacked

    def _after(self, at: int, begin: int, error: RecordError) -> int:
        """Return the record that comes after ``at``, where that is not ``begin`` again."""
        size = self._reader.size
        if not error.broken or (size is not None and at + 1 - begin >= size):
            raise self._placed(error, at) from error
        return at + 1

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
