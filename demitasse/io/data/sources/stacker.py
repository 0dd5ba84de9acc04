"""Parses the records of a batch to pixels and labels.

Records of most databases have one size and begin with the same bytes; such batches are sliced
without parsing each message. Encoded images are decoded by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.errors import DemitasseError, ErrorCode
from demitasse.io.data.broken import RecordError
from demitasse.io.data.databases.database import Raw
from demitasse.io.data.databases.datum import Label, datum_to_array, label_of
from demitasse.io.data.images.decode import Color
from demitasse.io.data.threads import Threads
from demitasse.io.data.transform.records import Images
from demitasse.io.proto import Datum
from demitasse.io.proto.zero_copy.wire import varint

__all__ = ["RecordError", "Stacker"]

DATA_TAG = Datum.DATA_FIELD_NUMBER << 3 | 2
MOST_TAILS = 1 << 16
"""Largest number of cached record ends."""

LARGE = 1 << 15
"""Images from this size on, in bytes, are returned as views instead of one copied array."""


class Stacker:
    """Parses records batch by batch.

    Args:
        color: Channels to decode encoded images to.
    """

    def __init__(self, color: Color = "native") -> None:
        self._color = color
        self._encoded = False  # True if the last parsed record was an image file
        self._threads = Threads("decode")
        self._shape: tuple[int, ...] = (0, 0, 0)
        self._head = b""  # bytes before the pixels in records of that shape
        self._labels = _Tails()

    def stack(self, records: Sequence[Raw]) -> tuple[Images, list[Label]]:
        """Return the pixels and labels of records.

        Returns:
            One uint8 array (N, C, H, W) for small plain records of one size, otherwise N arrays
            (C, H, W), perhaps views of the records; and N labels, 0 without a label, tuples for
            several labels.

        Raises:
            RecordError: A record is damaged; has its index.
        """
        plain = self._plain(records)
        if plain is not None:
            return plain
        parsed = [self._parse(records[0], 0)]
        rest = range(1, len(records))
        if self._encoded:
            parsed += self._threads.map(lambda i: self._parse(records[i], i), rest)
        else:
            parsed += [self._parse(records[i], i) for i in rest]
            self._expect(parsed[0][0])
        return [array for array, _ in parsed], [label for _, label in parsed]

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    def _parse(self, record: Raw, index: int) -> tuple[np.ndarray, Label]:
        try:
            datum = Datum.FromString(bytes(record))
            self._encoded = datum.encoded
            return datum_to_array(datum, self._color), label_of(datum)
        except DecodeError:
            message = "the record is damaged: it is no Datum"
            raise RecordError(message, index, code=ErrorCode.UNREADABLE) from None
        except DemitasseError as error:
            raise RecordError.of(error, index) from error

    def _expect(self, array: np.ndarray) -> None:
        """Cache the bytes before the pixels, for further records of this shape."""
        if array.dtype == np.uint8 and array.shape != self._shape:
            C, H, W = self._shape = array.shape
            size = array.size
            head = Datum(channels=C, height=H, width=W).SerializeToString()
            self._head = head + bytes([DATA_TAG, *varint(size)])

    def _plain(self, records: Sequence[Raw]) -> tuple[Images, list[Label]] | None:
        """Slice the records of a batch, or return None if a record is of another kind."""
        begin = len(self._head)
        size = math.prod(self._shape)
        if not size:
            return None
        end = begin + size
        labels = [self._labels[bytes(record[end:])] for record in records]
        known = [label for label in labels if label is not None]
        if len(known) < len(records):
            return None
        images = self._views(records) if size >= LARGE else self._copies(records, end)
        return None if images is None else (images, known)

    def _copies(self, records: Sequence[Raw], end: int) -> np.ndarray | None:
        """Return the pixels of small records in one array, or None."""
        fronts = b"".join([record[:end] for record in records])
        if len(fronts) < len(records) * end:
            return None
        rows = np.frombuffer(fronts, np.uint8).reshape(len(records), end)
        begin = len(self._head)
        if (rows[:, :begin] != np.frombuffer(self._head, np.uint8)).any():
            return None
        return rows[:, begin:].reshape(len(records), *self._shape)

    def _views(self, records: Sequence[Raw]) -> list[np.ndarray] | None:
        """Return the pixels of large records as views, or None."""
        begin, size = len(self._head), math.prod(self._shape)
        if any(len(record) < begin + size or record[:begin] != self._head for record in records):
            return None
        return [
            np.frombuffer(record, np.uint8, size, begin).reshape(self._shape) for record in records
        ]


class _Tails(dict[bytes, "Label | None"]):
    """Cache of labels by the bytes after the pixels; None if these contain other fields."""

    def __missing__(self, tail: bytes) -> Label | None:
        if len(self) == MOST_TAILS:
            self.clear()
        label = self[tail] = _parse_tail(tail)
        return label


def _parse_tail(tail: bytes) -> Label | None:
    try:
        datum = Datum.FromString(tail)
    except DecodeError:
        return None
    others = {field.name for field, _ in datum.ListFields()} - {"label", "labels", "encoded"}
    return None if others or datum.encoded else label_of(datum)
