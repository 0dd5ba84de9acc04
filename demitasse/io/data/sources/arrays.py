"""Batches of arrays: rows of HDF5 files, and arrays in memory.

Source: Caffe, ``src/caffe/layers/hdf5_data_layer.cpp`` and ``memory_data_layer.cpp``.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.deprecated import renamed_arguments
from demitasse.errors import DataError, ErrorCode, ShapeError
from demitasse.io.data.databases.hdf5 import Hdf5File
from demitasse.io.data.sources.sampler import EpochPermutation
from demitasse.io.data.sources.source import Batch, ReaderConfig, Shape


class MemoryRows:
    """Rows of data and their labels, returned batch by batch as views.

    Later changes by the caller are visible if an array has the net's dtype and is contiguous and
    writable; other arrays are copied once.

    Shapes: data (n, *shape), labels (n,) or (n, 1, ...).

    Raises:
        ShapeError: There are no rows, their shape differs, or the number of labels differs.
    """

    def __init__(self, data: Any, labels: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.data = np.require(data, dtype, ["C", "W"])
        if self.data.shape[1:] != shape or not len(self.data):
            got, code = self.data.shape, ErrorCode.SHAPE_MISMATCH
            message = f"got data of {got}, expected (n, *{shape}), n above 0"
            raise ShapeError(message, code=code, got=got, expected=shape)
        self.labels = np.require(labels, dtype, ["C", "W"])
        if self.labels.size != len(self.data) or self.labels.shape[:1] != self.data.shape[:1]:
            rows, got = len(self.data), self.labels.shape
            message = f"got labels of {got}, expected {rows}, one per row of the data"
            raise ShapeError(message, code=ErrorCode.COUNT_MISMATCH, got=got, expected=rows)
        self.labels = self.labels.reshape(-1)
        self.at = 0

    def need_multiple_of(self, batch_size: int) -> None:
        """Refuse a number of rows that is no multiple of the batch size."""
        if len(self.data) % batch_size:
            got, code = len(self.data), ErrorCode.COUNT_MISMATCH
            message = (
                f"got {got} rows, expected a multiple of the batch size {batch_size}; "
                "change the number of rows or the batch size"
            )
            raise DataError(message, code=code, got=got, expected=batch_size)

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views of the next ``count`` rows and of their labels; wraps around at the end."""
        part = slice(self.at, self.at + count)
        self.at = (self.at + count) % len(self.data)
        return self.data[part], self.labels[part]


class Hdf5Batches:
    """Fills batches with rows of listed HDF5 files, in an endless loop.

    ``position`` is the number of rows used before the next batch. ``names`` are the data sets of
    the tops. With ``shuffle`` the files, and the rows of each file, are shuffled in every epoch, by
    the net's ``seed`` and the layer's ``name``.
    """

    @renamed_arguments(reading="config")
    def __init__(
        self, paths: Sequence[Path], names: Sequence[str], batch_size: int, *,
        shuffle: bool = False, seed: int = 0, name: str = "", config: ReaderConfig | None = None,
    ) -> None:  # fmt: skip
        self._paths, self._names, self._batch_size = paths, names, batch_size
        self._seed, self._name, self._shuffle = seed, name, shuffle
        self._files = EpochPermutation(len(paths), seed, f"{name}/files", shuffle=shuffle)
        config = config or ReaderConfig()
        self.position, self._step = config.position, config.shard.world_size
        self._visit = 0  # files opened since the first epoch began
        self._row = 0  # row in this visit
        self._sizes: dict[int, int] = {}  # rows of each opened file
        self._file: Hdf5File | None = None
        self._shapes: list[Shape] = []
        self._whole_epochs = config.whole_epochs
        self._rows_in_all = 0
        if self._whole_epochs:
            for which, path in enumerate(paths):
                with closing(Hdf5File(path, names)) as file:
                    self._sizes[which] = file.rows
            self._rows_in_all = sum(self._sizes.values())
            self.position -= self.position % self._rows_in_all
        self._skip(self.position + config.shard.rank)

    def shapes(self) -> list[Shape]:
        shapes = self._open().shapes
        return [(self._batch_size, *shape) for shape in shapes]

    def fill(self, batch: Batch) -> None:
        """Make the next batch: rows of every data set."""
        size = self._next_size()
        arrays = [batch.array(i, (size, *shape[1:])) for i, shape in enumerate(self.shapes())]
        place = 0
        while place < size:
            file = self._open()
            picked = self._rows_of(file, size - place)
            count = len(picked[0])
            for array, values in zip(arrays, picked, strict=True):
                got, expected, code = values.shape[1:], array.shape[1:], ErrorCode.SHAPE_MISMATCH
                if got != expected:
                    message = f"got rows of {got}, expected {expected} as in the rows before"
                    path = str(file.path)
                    raise DataError(message, path, code=code, got=got, expected=expected)
                array[place : place + count] = values
            place += count
            self._skip(count * self._step)
        self._finish_batch(size, batch)

    def skip(self, batch: Batch) -> None:
        size = self._next_size()
        self._skip(size * self._step)
        self._finish_batch(size, batch)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows_of(self, file: Hdf5File, most: int) -> list[np.ndarray]:
        """Return the next rows of every data set: the buffered rows, at least one."""
        behind = self._row + most * self._step
        if self._shuffle:  # the whole file is buffered
            round_ = self._visit // len(self._paths)
            numbers = self._rows.of_round(round_)[self._row : behind : self._step]
            return [array[numbers] for array in file.block(0)[1]]
        first, held = file.block(self._row)
        return [array[self._row - first : behind - first : self._step] for array in held]

    def _next_size(self) -> int:
        """Return the number of rows of the next batch."""
        if self._whole_epochs:
            return min(self._batch_size, self._rows_in_all - self.position % self._rows_in_all)
        return self._batch_size

    def _finish_batch(self, size: int, batch: Batch) -> None:
        self.position += size * self._step
        batch.position = self.position
        batch.last = self._whole_epochs and self.position % self._rows_in_all == 0

    def _skip(self, rows: int) -> None:
        """Advance by some rows, into the files that follow."""
        self._row += rows
        while self._row >= self._size():
            if len(self._sizes) == len(self._paths) and not self._visit % len(self._paths):
                rounds, self._row = divmod(self._row, sum(self._sizes.values()))
                self._visit += rounds * len(self._paths)
                if rounds:  # the order differs per epoch
                    self.close()
                    continue
            self._row -= self._size()
            self._visit += 1
            if len(self._paths) > 1:
                self.close()

    def _size(self) -> int:
        """Return the number of rows of the current file."""
        which = self._files[self._visit]
        if which not in self._sizes:
            self._sizes[which] = self._open().rows
        return self._sizes[which]

    def _open(self) -> Hdf5File:
        """Return the current file, opened."""
        if self._file is None:
            which = self._files[self._visit]
            file = Hdf5File(self._paths[which], self._names, whole=self._shuffle)
            order = f"{self._name}/rows of {which}"
            self._rows = EpochPermutation(file.rows, self._seed, order, shuffle=self._shuffle)
            self._file = file
        return self._file
