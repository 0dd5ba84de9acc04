"""Batches of transformed records of a database.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from pathlib import Path

from demitasse.data.db import open_db
from demitasse.data.prefetch import Batch
from demitasse.data.reader import RecordReader
from demitasse.data.stacker import RecordError, Stacker
from demitasse.data.transformer import DataTransformer, Images
from demitasse.errors import DataError, DemitasseError

__all__ = ["DatabaseBatches"]


class DatabaseBatches:
    """Fills batches with the records of a database, in order and round and round.

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
    ) -> None:
        self._transformer, self._stacker = transformer, Stacker(transformer.color)
        self._source, self._batch_size, self._labels = str(path), batch_size, labels
        self._position, self._ranks = position, ranks
        self._database = open_db(path, backend)
        self._reader = RecordReader(self._database, position, rank, ranks)
        self._whole_epochs = whole_epochs
        if whole_epochs:
            self._position -= self._reader.begin_round()

    def first_shape(self) -> tuple[int, ...]:
        """Return the shape of the first batch: (N, C, h, w)."""
        number = self._reader.number
        try:
            images, _ = self._stacker.stack([self._reader.peek()])
            return (self._batch_size, *self._transformer.infer_shape(images[0].shape))
        except DemitasseError as error:
            raise self._placed(error, number) from error

    def fill(self, batch: Batch) -> None:
        """Make the next batch: data (N, C, h, w) and, if wanted, labels (N,).

        Raises:
            DataError: A record cannot be read or transformed; names it.
        """
        number = self._reader.number
        records = self._reader.take(self._batch_size, to_end=self._whole_epochs)
        try:
            images, labels = self._stacker.stack(records)
            shape = self._shape_of(images)
            data = batch.array(0, (len(records), *shape))
            self._transformer.transform(images, data, first=number, step=self._ranks)
        except DemitasseError as error:
            raise self._placed(error, number) from error
        if self._labels:
            batch.array(1, (len(records),))[...] = labels
        self._position += len(records) * self._ranks
        batch.position, batch.last = self._position, self._whole_epochs and self._reader.at_start

    def close(self) -> None:
        """Let go of the database and of threads."""
        self._stacker.close()
        self._reader.close()
        self._database.close()

    def _shape_of(self, images: Images) -> tuple[int, int, int]:
        """Return what the records of a batch become; they must agree."""
        shape = self._transformer.infer_shape(images[0].shape)
        if isinstance(images, list):
            for index, image in enumerate(images):
                try:
                    becomes = self._transformer.infer_shape(image.shape)
                except DemitasseError as error:
                    raise RecordError(error.message, index) from error
                if becomes != shape:
                    message = f"this record becomes {becomes}, the first of its batch {shape}"
                    raise RecordError(message, index)
        return shape

    def _placed(self, error: DemitasseError, number: int) -> DataError:
        """Return an error that names the database and the record."""
        index = getattr(error, "index", 0)
        key = self._reader.key_of(number + index * self._ranks)
        return DataError(error.message, self._source, key)
