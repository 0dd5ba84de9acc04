"""MemoryData: batches of arrays that a caller hands over."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.databases.datum import label_of
from demitasse.io.data.sources.arrays import MemoryRows
from demitasse.io.data.sources.fingerprint import Fingerprint, rows_fingerprint
from demitasse.io.proto import Datum
from demitasse.layers.base import Blobs, Exactly
from demitasse.layers.checks import positive
from demitasse.layers.data_layers.base import BaseDataLayer
from demitasse.layers.registry import register_layer

logger = logging.getLogger(__name__)

ROW, NEW = "row", "new"
"""Keys of a snapshot: the next row, and 1 for rows that were added and not used yet."""


@register_layer("MemoryData")
class MemoryData(BaseDataLayer):
    """Rows given to ``reset``, ``add_datum_vector`` or ``add_mat_vector``, in an endless loop.

    Arrays given to ``reset`` are neither copied nor transformed; datums and images are.
    Not compared with the original.

    Source: Caffe, ``src/caffe/layers/memory_data_layer.cpp``.
    Shapes: top[0] (N, C, H, W) as the message says, top[1] (N,).

    Raises:
        ConfigError: A size is missing or 0.
        DataError: A forward pass comes before there is data; the rows are not a multiple of the
            batch size; or rows are added before those there were used.
    """

    tops = Exactly(2)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.memory_data_param
        self._batch_size = positive(p.batch_size, "memory_data_param.batch_size")
        self.row_shape = (
            positive(p.channels, "memory_data_param.channels"),
            positive(p.height, "memory_data_param.height"),
            positive(p.width, "memory_data_param.width"),
        )
        self.transformer = self.make_transformer(self.param.transform_param)
        self.rows: MemoryRows | None = None
        self.has_new_data = False
        self._row = 0  # restored before there are arrays
        self._make_room(top)

    @property
    def batch_size(self) -> int:
        """Rows in a batch."""
        return self._batch_size

    def set_batch_size(self, size: int) -> None:
        """Set the batch size, above 0; raise DataError if rows that were added are not used yet."""
        self._need_used()
        self._batch_size = positive(size, "the batch size")

    def reset(self, data: Any, labels: Any) -> None:
        """Use the rows of two arrays, which are not copied if they have the net's dtype.

        Args:
            data: Shape: (n, C, H, W), n a multiple of the batch size.
            labels: Shape: (n,), or (n, 1, 1, 1).

        Raises:
            DataError: n is not a multiple of the batch size.
            ShapeError: The arrays have other shapes.
        """
        if self.param.HasField("transform_param"):
            logger.warning("%s does not transform arrays given to reset", self.name)
        self._use(data, labels)

    def add_datum_vector(self, datums: Sequence[Datum]) -> None:
        """Transform some records and use them.

        Raises:
            DataError: Rows added before are not used yet; or their number is not a multiple of the
                batch size.
            ShapeError: Records do not become (C, H, W).
        """
        self._need_used()
        self._use(self.transformer.transform(datums), [label_of(datum) for datum in datums])
        self.has_new_data = True

    def add_mat_vector(self, images: Sequence[Any], labels: Sequence[float]) -> None:
        """Transform and use some images (C, H, W) of bytes or numbers; errors as of datums."""
        self._need_used()
        self._use(self.transformer.transform(images), labels)
        self.has_new_data = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: ``setup`` and ``forward`` set the shapes."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.rows is None:
            message = "there is no data yet; call reset(data, labels) on the layer first"
            raise DataError(message, code=ErrorCode.BAD_STATE)
        self.rows.need_multiple_of(self._batch_size)
        self._make_room(top)
        for blob, array in zip(top, self.rows.take(self._batch_size), strict=True):
            blob.set_cpu_data(array)
            blob.data_memory.async_push()
        if not self.rows.at:
            self.has_new_data = False

    def state(self) -> dict[str, Any]:
        """Return the next row, and whether rows that were added are not used yet."""
        rows = self.rows
        return {ROW: self._row if rows is None else rows.at, NEW: int(self.has_new_data)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue at a row, of the present arrays or else of the next arrays."""
        self._row = state.get(ROW, 0)
        if self.rows is not None:
            self._seek(self.rows)
            self.has_new_data = bool(state.get(NEW, 0))

    def fingerprint(self) -> Fingerprint | None:
        rows = self.rows
        return None if rows is None else rows_fingerprint(rows.data, rows.labels)

    def savepoint(self) -> Callable[[], None]:
        """Return a function that restores the present row."""
        rows, new = self.rows, self.has_new_data
        at = 0 if rows is None else rows.at

        def take_back() -> None:
            if rows is not None and rows is self.rows:
                rows.at, self.has_new_data = at, new

        return take_back

    def _use(self, data: Any, labels: Any) -> None:
        rows = MemoryRows(data, labels, self.row_shape, self.dtype)
        rows.need_multiple_of(self._batch_size)
        self._seek(rows)
        self.rows = rows

    def _seek(self, rows: MemoryRows) -> None:
        """Set the next row to the restored row, once; there may be fewer rows than before."""
        row, self._row = self._row % len(rows.data), 0
        rows.at = row - row % self._batch_size

    def _need_used(self) -> None:
        if self.has_new_data:
            message = "the rows added before are not used yet; run forward until they are"
            raise DataError(message, code=ErrorCode.BAD_STATE)

    def _make_room(self, top: Blobs) -> None:
        top[0].reshape((self._batch_size, *self.row_shape))
        top[1].reshape((self._batch_size,))
