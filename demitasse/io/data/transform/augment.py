"""Augmentation by the fields of SSD and Intel Caffe in ``transform_param``.

``distort_param`` comes first, then ``expand_param``, ``resize_param``, ``noise_param`` and Intel
Caffe's ``random_resize_param``, in **both** phases, as in the forks: a test net omits unwanted
fields. The transformer crops, mirrors and scales afterwards. In SSD the first two fields work in
AnnotatedData layers only. Images with objects have their own augmenter, which crops by
``batch_sampler`` after ``expand_param``.

Not compared with the original.

Source: SSD (weiliu89/caffe), ``src/caffe/data_transformer.cpp``,
``src/caffe/layers/annotated_data_layer.cpp``.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.io.data.transform.geometric import (
    BOX,
    EmitFilter,
    Expand,
    RandomResize,
    Resize,
    Sample,
    cut,
)
from demitasse.io.data.transform.photometric import Distort, Noise
from demitasse.io.data.transform.random import Draws
from demitasse.io.proto import BatchSampler, TransformationParameter

FIELDS = ("distort_param", "expand_param", "resize_param", "noise_param", "random_resize_param")

MANY_SIZES = "makes images of many sizes; add a resize_param to one size, or crop_size"

Step = Callable[[np.ndarray, Draws], np.ndarray]

__path__: list[str] = []  # the old name ``augment.augmenter`` needs a package

logger = logging.getLogger(__name__)


class Augmenter:
    """Augments images as ``transform_param`` says, before the crop.

    Raises:
        ConfigError: A field is invalid, or images would have different sizes without a crop.
    """

    def __init__(self, param: TransformationParameter) -> None:
        self.steps: list[Step] = []
        if param.HasField("emit_constraint"):
            logger.warning("emit_constraint is ignored: the records have no boxes")
        crops = bool(param.crop_size or param.crop_h)
        if param.HasField("distort_param"):
            self.steps.append(Distort(param.distort_param))
        resize = Resize(param.resize_param) if param.HasField("resize_param") else None
        if param.HasField("expand_param"):
            expand = Expand(param.expand_param, param.mean_value)
            if expand.changes_size and param.mean_file:
                _refuse("mean_file", "conflicts with expand_param, of one colour; give mean_value")
            if expand.changes_size and not crops and (resize is None or not resize.to_one_size):
                _refuse("expand_param", MANY_SIZES)
            self.steps.append(expand)
        if resize is not None:
            if param.mean_file and not resize.always:
                _refuse("mean_file", "needs images of one size; remove resize_param.prob")
            if not (resize.always or crops):
                fault = "below 1 makes images of many sizes; set crop_size, or remove prob"
                _refuse("resize_param.prob", fault)
            self.steps.append(resize)
        if param.HasField("noise_param"):
            self.steps.append(Noise(param.noise_param))
        if param.HasField("random_resize_param"):
            if crops and param.mean_file:
                _refuse("mean_file", "conflicts with random_resize_param; give mean_value instead")
            if not crops:
                _refuse("crop_size", "is missing, but random_resize_param makes many sizes")
            if param.noise_param.convert_to_lab:
                _refuse("random_resize_param", "resizes bytes; remove noise_param.convert_to_lab")
            self.steps.append(RandomResize(param.random_resize_param))

    def __bool__(self) -> bool:
        """Return True if there are any steps."""
        return bool(self.steps)

    def __call__(self, image: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return an augmented image, by the record's random words, uint32 (24,).

        Shapes: (C, H, W) uint8, C 1 or 3 -> (C, h, w) uint8, or float32 with ``convert_to_lab``.
        """
        _need_bytes(image)
        draws = Draws(words)
        for step in self.steps:
            image = step(image, draws)
        return image


def _refuse(field: str, fault: str) -> NoReturn:
    message = f"{field} {fault}"
    raise ConfigError(message, code=ErrorCode.CONFLICT, field=field)


def _need_bytes(image: np.ndarray) -> None:
    """Refuse arrays that are no images of bytes in 1 or 3 channels."""
    if image.dtype != np.uint8 or len(image) not in {1, 3}:
        message = (
            f"got {image.dtype} in {len(image)} channels, expected bytes in 1 or 3 channels "
            f"for {', '.join(FIELDS)}"
        )
        raise ShapeError(message, code=ErrorCode.DTYPE_MISMATCH, got=str(image.dtype))


class AnnotatedAugmenter:
    """Augments images and their objects; ``emit_constraint`` of ``param`` is ignored here."""

    def __init__(
        self,
        param: TransformationParameter,
        samplers: Sequence[BatchSampler],
        emit_filter: EmitFilter,
    ) -> None:
        steps = Augmenter(param).steps
        first = Distort, Expand
        self._before: list[Step] = [step for step in steps if isinstance(step, first)]
        self._after = [step for step in steps if not isinstance(step, first)]
        self._sample, self._emit_filter = Sample(samplers), emit_filter
        resized = [step for step in steps if isinstance(step, Resize) and step.to_one_size]
        if self._sample and not (resized or param.crop_size or param.crop_h):
            _refuse("batch_sampler", MANY_SIZES)

    def __call__(
        self, image: np.ndarray, rows: np.ndarray, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return an augmented image (C, h, w) and its objects (G, 7), from (C, H, W) and (G, 7)."""
        if self._before or self._after:
            _need_bytes(image)
        draws = Draws(words)
        for step in self._before:
            image, rows = self._changed(step, image, rows, draws)
        if self._sample:
            image, region = cut(image, self._sample.region(rows[:, BOX], draws))
            rows = self._emit_filter.project(rows, region)
        for step in self._after:
            image, rows = self._changed(step, image, rows, draws)
        return image, rows

    def _changed(
        self, step: Step, image: np.ndarray, rows: np.ndarray, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(step, (Expand, Resize)):
            rows = self._emit_filter.project(
                rows, step.region((image.shape[1], image.shape[2]), draws)
            )
        return step(image, draws), rows
