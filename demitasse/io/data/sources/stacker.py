"""Turns the records of a batch into pixels and labels.

Nearly every database holds records of one size, written by one program: they begin with the same
bytes, and a batch of them is taken apart without parsing each message. Encoded images, which take
far longer, are decoded by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.errors import DemitasseError
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
"""How many different ends of records are remembered."""

LARGE = 1 << 15
"""Images of this size on, in bytes, are used where they are instead of being copied together."""


class Stacker:
    """Parses records a batch at a time.

    Args:
        color: The channels that encoded images are decoded to.
    """

    def __init__(self, color: Color = "native") -> None:
        self._color = color
        self._encoded = False  # whether the last record that was parsed was an image file
        self._threads = Threads("decode")
        self._shape: tuple[int, ...] = (0, 0, 0)
        self._head = b""  # what records of that shape begin with, up to their pixels
        self._labels = _Tails()

    def stack(self, records: Sequence[Raw]) -> tuple[Images, list[Label]]:
        """Return the pixels and labels of some records.

        Returns:
            One uint8 array (N, C, H, W) where all records are plain bytes of one size, and small,
            otherwise N arrays (C, H, W), perhaps of the memory of the records; and N labels, 0
            where there is none, tuples where there are several.

        Raises:
            RecordError: A record is damaged; says which.
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
        """Let go of threads."""
        self._threads.close()

    def _parse(self, record: Raw, index: int) -> tuple[np.ndarray, Label]:
        try:
            datum = Datum.FromString(bytes(record))
            self._encoded = datum.encoded
            return datum_to_array(datum, self._color), label_of(datum)
        except DecodeError:
            message = "the record is damaged: it does not hold a Datum"
            raise RecordError(message, index) from None
        except DemitasseError as error:
            raise RecordError(error.message, index) from error

    def _expect(self, array: np.ndarray) -> None:
        """Prepare for records of bytes like this one."""
        if array.dtype == np.uint8 and array.shape != self._shape:
            C, H, W = self._shape = array.shape
            size = array.size
            head = Datum(channels=C, height=H, width=W).SerializeToString()
            self._head = head + bytes([DATA_TAG, *varint(size)])

    def _plain(self, records: Sequence[Raw]) -> tuple[Images, list[Label]] | None:
        """Take the batch apart by cutting, or return None when some record is of another kind."""
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
        """Return the pixels of records that are small, in one array, or None."""
        fronts = b"".join([record[:end] for record in records])
        if len(fronts) < len(records) * end:
            return None
        rows = np.frombuffer(fronts, np.uint8).reshape(len(records), end)
        begin = len(self._head)
        if (rows[:, :begin] != np.frombuffer(self._head, np.uint8)).any():
            return None
        return rows[:, begin:].reshape(len(records), *self._shape)

    def _views(self, records: Sequence[Raw]) -> list[np.ndarray] | None:
        """Return the pixels of records that would take long to be copied, or None."""
        begin, size = len(self._head), math.prod(self._shape)
        if any(len(record) < begin + size or record[:begin] != self._head for record in records):
            return None
        return [
            np.frombuffer(record, np.uint8, size, begin).reshape(self._shape) for record in records
        ]


class _Tails(dict[bytes, "Label | None"]):
    """The labels in what follows the pixels; None where there is more than a label."""

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
