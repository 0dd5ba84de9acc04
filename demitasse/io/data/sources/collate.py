"""Collation: records of a database to arrays of a batch.

Records of most databases have one size and begin with the same bytes; such batches are sliced
without parsing each message. Encoded images are decoded by several threads. Batches of
AnnotatedDatum are not compared with the original.

Source: Caffe, ``src/caffe/layers/data_layer.cpp``; SSD (weiliu89/caffe),
``src/caffe/layers/annotated_data_layer.cpp`` (``load_batch``).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.data.bad_records import RecordError
from demitasse.io.data.databases.database import Raw
from demitasse.io.data.databases.datum import COLUMNS, Label, datum_to_array, label_of, objects_in
from demitasse.io.data.images.codecs import Color
from demitasse.io.data.sources.source import Batch, Shape
from demitasse.io.data.threads import Threads
from demitasse.io.data.transform.augment import AnnotatedAugmenter
from demitasse.io.data.transform.geometric import EmitFilter, mirrored
from demitasse.io.data.transform.random import RecordRandom
from demitasse.io.data.transform.transformer import DataTransformer, Images
from demitasse.io.proto import AnnotatedDatum, Datum
from demitasse.io.proto.read_binary import parse_message
from demitasse.io.proto.wire_format import varint

DATA_TAG = Datum.DATA_FIELD_NUMBER << 3 | 2
MOST_TAILS = 1 << 16  # largest number of cached record ends

LARGE = 1 << 15
"""Images from this size on, in bytes, are returned as views instead of one copied array."""


class RecordCollator:
    """Parses records batch by batch; encoded images are decoded to the channels of ``color``."""

    def __init__(self, color: Color = "native") -> None:
        self._color = color
        self._encoded = False  # True if the last parsed record was an image file
        self._threads = Threads("decode")
        self._shape: tuple[int, ...] = (0, 0, 0)
        self._head = b""  # bytes before the pixels in records of that shape
        self._label_in = lru_cache(MOST_TAILS)(_label_in)

    def stack(self, records: Sequence[Raw]) -> tuple[Images, list[Label]]:
        """Return the pixels and labels of records.

        The pixels are one uint8 array (N, C, H, W) for small plain records of one size, otherwise N
        arrays (C, H, W), perhaps views of the records. A label is 0 if absent, a tuple if there are
        several.
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
            first = parsed[0][0]
            if first.dtype == np.uint8 and first.shape != self._shape:
                C, H, W = self._shape = first.shape
                head = Datum(channels=C, height=H, width=W).SerializeToString()
                self._head = head + bytes([DATA_TAG, *varint(first.size)])
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

    def _plain(self, records: Sequence[Raw]) -> tuple[Images, list[Label]] | None:
        """Slice the records of a batch, or return None if a record is of another kind."""
        begin = len(self._head)
        size = math.prod(self._shape)
        if not size:
            return None
        end = begin + size
        labels = [self._label_in(bytes(record[end:])) for record in records]
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


def _label_in(tail: bytes) -> Label | None:
    """Return the label in the bytes after the pixels; None if these contain other fields."""
    try:
        datum = Datum.FromString(tail)
    except DecodeError:
        return None
    others = {field.name for field, _ in datum.ListFields()} - {"label", "labels", "encoded"}
    return None if others or datum.encoded else label_of(datum)


class DatumMaker:
    """Makes data (N, C, h, w) and, with ``labels``, labels (N,) or (N, labels)."""

    def __init__(self, transformer: DataTransformer, *, labels: bool = True) -> None:
        self._transformer, self._stacker = transformer, RecordCollator(transformer.color)
        self._labels = labels

    def batch_shapes(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of ``count`` records like this record."""
        images, labels = self._stacker.stack([raw])
        shape = self._shape_of(self._transformer.augment(images, first=number))
        return [(count, *shape), (count, *np.shape(labels[0]))][: 1 + self._labels]

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch with records; a RecordError has the index of a bad record.

        Record ``i`` of ``records`` has the index ``places[i]``, and at index ``k`` is the record of
        number ``first + k * step``.
        """
        images, labels = self._stacker.stack(records)
        images = self._transformer.augment(images, first=first, step=step, places=places)
        shape = (len(records), *self._shape_of(images))
        data = batch.images(shape, images, self._transformer.mean_scale)
        self._transformer.finish(images, data, first=first, step=step, places=places)
        if self._labels:
            stacked = _stacked_labels(labels)
            batch.array(1, stacked.shape)[...] = stacked

    def close(self) -> None:
        self._stacker.close()
        self._transformer.close()

    def _shape_of(self, images: Images) -> Shape:
        """Return the common shape of transformed records."""
        shapes: list[Shape] = []
        alike = isinstance(images, np.ndarray)
        for index, image in enumerate(images[:1] if alike else images):
            try:
                shapes.append(self._transformer.infer_shape(image.shape))
            except DemitasseError as error:
                raise RecordError.of(error, index) from error
            _need_like_first(shapes, index)
        return shapes[0]


def _need_like_first(shapes: Sequence[Shape], index: int) -> None:
    """Refuse a record whose shape differs from the first record of its batch."""
    got, expected, code = shapes[index], shapes[0], ErrorCode.SHAPE_MISMATCH
    if got != expected:
        message = f"got a record of {got}, expected {expected} as in the whole batch"
        raise RecordError(message, index, broken=False, code=code, got=got, expected=expected)


def _stacked_labels(labels: Sequence[Label]) -> np.ndarray:
    """Return the labels of a batch as an array: (N,), or (N, labels)."""
    if {*map(type, labels)} <= {int, float}:
        return np.asarray(labels)
    for index, label in enumerate(labels):
        if np.shape(label) != np.shape(labels[0]):
            got, expected = np.size(label), np.size(labels[0])
            message = f"got a record of {got} labels, expected {expected} as in the whole batch"
            code = ErrorCode.COUNT_MISMATCH
            raise RecordError(
                message, index, broken=False, code=code, field="labels", got=got, expected=expected
            )
    return np.asarray(labels)


class Scene(NamedTuple):
    """A record: pixels (C, H, W), their shape after cropping, and visible objects or a label."""

    pixels: np.ndarray
    shape: Shape
    objects: np.ndarray | None
    label: Label


class AnnotatedMaker:
    """Makes data (N, C, h, w), and objects (1, 1, G, 8) of all images or labels (N,).

    A row is: index in the batch, class, instance, xmin, ymin, xmax, ymax, difficult. A batch
    without objects has one row of -1. With ``boxes``, records without a type have boxes, too.
    """

    def __init__(
        self, augmenter: AnnotatedAugmenter, transformer: DataTransformer, emit_filter: EmitFilter,
        random: RecordRandom, *, labels: bool, boxes: bool,
    ) -> None:  # fmt: skip
        self._augmenter, self._transformer, self._emit_filter = augmenter, transformer, emit_filter
        self._random, self._labels, self._boxes = random, labels, boxes
        self._threads = Threads("annotate")

    def batch_shapes(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of ``count`` records like this record."""
        scene = self._read(raw, number)
        data: Shape = (count, *scene.shape)
        if scene.objects is None:
            return [data, (count,)][: 1 + self._labels]
        return [data, (1, 1, max(len(scene.objects), 1), 1 + len(COLUMNS))][: 1 + self._labels]

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch with records; see ``DatumMaker``."""

        def read(index: int) -> Scene:
            try:
                return self._read(records[index], first + step * places[index])
            except DemitasseError as error:
                raise RecordError.of(error, index) from error

        scenes = self._threads.map(read, range(len(records)))
        shapes = [scene.shape for scene in scenes]
        for index in range(len(shapes)):
            _need_like_first(shapes, index)
        data = batch.array(0, (len(records), *shapes[0]))
        pixels = [scene.pixels for scene in scenes]
        self._transformer.finish(pixels, data, first=first, step=step, places=places)
        if self._labels:
            made = _labels(scenes)
            batch.array(1, made.shape)[...] = made

    def close(self) -> None:
        self._threads.close()
        self._transformer.close()

    def _read(self, raw: Raw, number: int) -> Scene:
        """Return a record, with its objects after augmentation, crop and mirror."""
        try:
            record = parse_message(bytes(raw), AnnotatedDatum)
        except DecodeError:
            message = "the record is damaged: it is no AnnotatedDatum"
            raise DataError(message, code=ErrorCode.UNREADABLE) from None
        if not record.HasField("datum"):
            message = "the record has no image; is this a database of Datum, for a Data layer?"
            raise DataError(message, code=ErrorCode.MISSING, field="datum")
        image = datum_to_array(record.datum, self._transformer.color)
        image, rows = self._augmenter(image, objects_in(record), self._random(number, 1)[0])
        shape = self._transformer.infer_shape(image.shape)
        if not (self._boxes or record.HasField("type")):
            return Scene(image, shape, None, label_of(record.datum))
        region, turned = self._transformer.visible_region(image.shape, number)
        rows = self._emit_filter.project(rows, region)
        return Scene(image, shape, mirrored(rows) if turned else rows, 0)


def _labels(scenes: Sequence[Scene]) -> np.ndarray:
    """Return the objects of a batch (1, 1, G, 8), or its labels (N,)."""
    first = scenes[0].objects is None
    for index, scene in enumerate(scenes):
        if (scene.objects is None) is not first:
            message = (
                "some records of this batch have boxes and others do not; set "
                "annotated_data_param.anno_type: BBOX"
            )
            raise RecordError(
                message, index, broken=False, code=ErrorCode.CONFLICT, field="anno_type"
            )
    if first:
        return _stacked_labels([scene.label for scene in scenes])
    rows = [
        np.insert(scene.objects, 0, place, axis=1)
        for place, scene in enumerate(scenes)
        if scene.objects is not None
    ]
    every = np.concatenate(rows)
    if not len(every):
        every = np.full((1, 1 + len(COLUMNS)), -1, np.float32)
    return every[None, None]
