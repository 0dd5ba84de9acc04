"""Batches of Datum records: parsed pixels and labels, transformed and stacked.

Source: Caffe, ``src/caffe/layers/data_layer.cpp`` (``load_batch``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import DemitasseError, ErrorCode
from demitasse.io.data.broken import RecordError
from demitasse.io.data.databases.database import Raw
from demitasse.io.data.databases.datum import Label
from demitasse.io.data.sources.source import Batch, Shape
from demitasse.io.data.sources.stacker import Stacker
from demitasse.io.data.transform.transformer import DataTransformer, Images

__all__ = ["DatumMaker", "need_like_first", "stacked_labels"]


class DatumMaker:
    """Makes data (N, C, h, w) and optionally labels (N,) or (N, labels).

    Args:
        transformer: Transformation of each record.
        labels: Make the second array.
    """

    def __init__(self, transformer: DataTransformer, *, labels: bool = True) -> None:
        self._transformer, self._stacker = transformer, Stacker(transformer.color)
        self._labels = labels

    def look(self, raw: Raw, number: int, count: int) -> list[Shape]:
        """Return the shapes of a batch of records like this record; see ``Maker``."""
        images, labels = self._stacker.stack([raw])
        shape = self._shape_of(self._transformer.augment(images, first=number))
        return [(count, *shape), (count, *np.shape(labels[0]))][: 1 + self._labels]

    def make(
        self, batch: Batch, records: list[Raw], first: int, step: int, places: Sequence[int]
    ) -> None:
        """Fill a batch; see ``Maker``."""
        images, labels = self._stacker.stack(records)
        images = self._transformer.augment(images, first=first, step=step, places=places)
        shape = (len(records), *self._shape_of(images))
        data = batch.images(shape, images, self._transformer.centring)
        self._transformer.finish(images, data, first=first, step=step, places=places)
        if self._labels:
            stacked = stacked_labels(labels)
            batch.array(1, stacked.shape)[...] = stacked

    def close(self) -> None:
        """Stop the threads."""
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
            need_like_first(shapes, index)
        return shapes[0]


def need_like_first(shapes: Sequence[Shape], index: int) -> None:
    """Refuse a record whose shape differs from the first record of its batch.

    Raises:
        RecordError: The shapes differ.
    """
    if shapes[index] != shapes[0]:
        message = f"got a record of {shapes[index]}, expected {shapes[0]} as in the whole batch"
        raise RecordError(
            message,
            index,
            broken=False,
            code=ErrorCode.SHAPE_MISMATCH,
            got=shapes[index],
            expected=shapes[0],
        )


def stacked_labels(labels: Sequence[Label]) -> np.ndarray:
    """Return the labels of a batch as an array: (N,), or (N, labels).

    Raises:
        RecordError: A record has another number of labels than the first.
    """
    if {*map(type, labels)} <= {int, float}:
        return np.asarray(labels)
    shape = np.shape(labels[0])
    for index, label in enumerate(labels):
        if np.shape(label) != shape:
            message = (
                f"got a record of {np.size(label)} labels, expected {np.size(labels[0])} "
                "as in the whole batch"
            )
            raise RecordError(
                message,
                index,
                broken=False,
                code=ErrorCode.COUNT_MISMATCH,
                field="labels",
                got=np.size(label),
                expected=np.size(labels[0]),
            )
    return np.asarray(labels)
