"""Augmentation of an image and the objects in it, by SSD's fields.

``distort_param`` and ``expand_param`` come first, then the random crop of ``batch_sampler``, then
``resize_param`` and ``noise_param``.

Not compared with the original.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/annotated_data_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.data.transform.augment.augmenter import Augmenter, Step, need_bytes
from demitasse.io.data.transform.augment.distort import Distort
from demitasse.io.data.transform.augment.draws import Draws
from demitasse.io.data.transform.augment.expand import Expand
from demitasse.io.data.transform.augment.resize import Resize
from demitasse.io.data.transform.augment.sample import Sample, cut
from demitasse.io.data.transform.boxes import BOX, Keeping
from demitasse.io.proto import BatchSampler, TransformationParameter

__all__ = ["AnnotatedAugmenter"]


class AnnotatedAugmenter:
    """Augments images and their objects.

    Args:
        param: The layer's ``transform_param``; ``emit_constraint`` is ignored here.
        samplers: The layer's ``batch_sampler``.
        keeping: Filter of objects in a part of an image.

    Raises:
        ConfigError: A field is invalid, or images would have different sizes without a crop.
    """

    def __init__(
        self, param: TransformationParameter, samplers: Sequence[BatchSampler], keeping: Keeping
    ) -> None:
        steps = Augmenter(param).steps
        self._before: list[Step] = [step for step in steps if isinstance(step, (Distort, Expand))]
        self._after: list[Step] = [
            step for step in steps if not isinstance(step, (Distort, Expand))
        ]
        self._sample, self._keeping = Sample(samplers), keeping
        resized = [step for step in steps if isinstance(step, Resize) and step.to_one_size]
        if self._sample and not (resized or param.crop_size or param.crop_h):
            message = (
                "batch_sampler makes images of many sizes; add a resize_param to one size, or "
                "crop_size"
            )
            raise ConfigError(message, code=ErrorCode.CONFLICT, field="batch_sampler")

    def __call__(
        self, image: np.ndarray, rows: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return an augmented image and its objects.

        Args:
            image: Shape: (C, H, W).
            rows: Shape: (G, 7); see ``demitasse.io.data.databases.datum``.
            words: Random words of the record. Shape: (24,), uint32.

        Raises:
            ShapeError: The image does not consist of bytes.
        """
        if self._before or self._after:
            need_bytes(image)
        draws = Draws(words)
        for step in self._before:
            image, rows = self._changed(step, image, rows, draws)
        if self._sample:
            image, region = cut(image, self._sample.region(rows[:, BOX], draws))
            rows = self._keeping.project(rows, region)
        for step in self._after:
            image, rows = self._changed(step, image, rows, draws)
        return image, rows

    def _changed(
        self, step: Step, image: np.ndarray, rows: np.ndarray, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(step, (Expand, Resize)):
            rows = self._keeping.project(rows, step.region((image.shape[1], image.shape[2]), draws))
        return step(image, draws), rows
