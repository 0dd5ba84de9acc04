"""Batches of AnnotatedDatum records: transformed pixels, and the objects in them.

Not compared with the original.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/annotated_data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.data.broken import RecordError
from demitasse.io.data.databases.annotated import COLUMNS, objects_in
from demitasse.io.data.databases.database import Raw
from demitasse.io.data.databases.datum import Label, datum_to_array, label_of
from demitasse.io.data.sources.datum_batch import need_like_first, stacked_labels
from demitasse.io.data.sources.source import Batch, Shape
from demitasse.io.data.threads import Threads
from demitasse.io.data.transform.augment.annotated import AnnotatedAugmenter
from demitasse.io.data.transform.boxes import Keeping, mirrored
from demitasse.io.data.transform.random import RandomWords
from demitasse.io.data.transform.transformer import DataTransformer
from demitasse.io.proto import AnnotatedDatum

__all__ = ["AnnotatedMaker"]


class Scene(NamedTuple):
    """A record: pixels (C, H, W) before cropping, and its visible objects or its label."""

    pixels: np.ndarray
    objects: np.ndarray | None
    label: Label


class AnnotatedMaker:
    """Makes data (N, C, h, w), and objects (1, 1, G, 8) of all images or labels (N,).

    A row is: index in the batch, class, instance, xmin, ymin, xmax, ymax, difficult. A batch
    without objects has one row of -1.

    Args:
        augmenter: Augmentation before cropping.
        transformer: Crop, mirror, mean and scale.
        keeping: Filter of objects in a part of an image.
        random: Random words by record, for the augmenter.
        labels: Make the second array.
        boxes: Treat records without a type as records with boxes.
    """

    def __init__(
        self,
        augmenter: AnnotatedAugmenter,
        transformer: DataTransformer,
        keeping: Keeping,
        random: RandomWords,
        *,
        labels: bool,
        boxes: bool,
    ) -> None:
        self._augmenter, self._transformer, self._keeping = augmenter, transformer, keeping
        self._random, self._labels, self._boxes = random, labels, boxes
        self._threads = Threads("annotate")

    def look(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of records like this record; see ``Maker``."""
        scene = self._read(raw, number)
        data: Shape = (count, *self._transformer.infer_shape(scene.pixels.shape))
        if scene.objects is None:
            return [data, (count,)][: 1 + self._labels]
        return [data, (1, 1, max(len(scene.objects), 1), 1 + len(COLUMNS))][: 1 + self._labels]

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch; see ``Maker``."""

        def read(index: int) -> Scene:
            try:
                return self._read(records[index], first + step * places[index])
            except DemitasseError as error:
                raise RecordError.of(error, index) from error

        scenes = self._threads.map(read, range(len(records)))
        shapes: list[Shape] = []
        for index, scene in enumerate(scenes):
            shapes.append(self._transformer.infer_shape(scene.pixels.shape))
            need_like_first(shapes, index)
        data = batch.array(0, (len(records), *shapes[0]))
        pixels = [scene.pixels for scene in scenes]
        self._transformer.finish(pixels, data, first=first, step=step, places=places)
        if self._labels:
            made = _labels(scenes)
            batch.array(1, made.shape)[...] = made

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()
        self._transformer.close()

    def _read(self, raw: Raw, number: int) -> Scene:
        """Return a record, with its objects after augmentation, crop and mirror.

        Raises:
            DemitasseError: The record is bad.
        """
        try:
            record = AnnotatedDatum.FromString(bytes(raw))
        except DecodeError:
            message = "the record is damaged: it is no AnnotatedDatum"
            raise DataError(message, code=ErrorCode.UNREADABLE) from None
        if not record.HasField("datum"):
            message = "the record has no image; is this a database of Datum, for a Data layer?"
            raise DataError(message, code=ErrorCode.MISSING, field="datum")
        image = datum_to_array(record.datum, self._transformer.color)
        image, rows = self._augmenter(image, objects_in(record), self._random(number, 1)[0])
        if not (self._boxes or record.HasField("type")):
            return Scene(image, None, label_of(record.datum))
        region, turned = self._transformer.shown(image.shape, number)
        rows = self._keeping.project(rows, region)
        return Scene(image, mirrored(rows) if turned else rows, 0)


def _labels(scenes: Sequence[Scene]) -> np.ndarray:
    """Return the objects of a batch (1, 1, G, 8), or its labels (N,).

    Raises:
        RecordError: Some records have boxes and others do not.
    """
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
        return stacked_labels([scene.label for scene in scenes])
    rows = [
        np.insert(scene.objects, 0, place, axis=1)
        for place, scene in enumerate(scenes)
        if scene.objects is not None
    ]
    every = np.concatenate(rows)
    if not len(every):
        every = np.full((1, 1 + len(COLUMNS)), -1, np.float32)
    return every[None, None]
