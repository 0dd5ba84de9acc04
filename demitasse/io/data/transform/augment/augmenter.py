"""Augmenter: what SSD's fields of ``transform_param`` do to an image, one after the other.

First ``distort_param``, then ``expand_param``, ``resize_param`` and ``noise_param``, in **both**
phases, as in SSD: a net for testing leaves out what it does not want. What follows (crop, mirror,
mean, scale) is the transformer's. In SSD the first two work in AnnotatedData layers only; images
with objects have an augmenter of their own.

Not compared with the original.

Source: SSD, ``src/caffe/data_transformer.cpp``, ``annotated_data_layer.cpp``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from demitasse.errors import ConfigError, ShapeError
from demitasse.io.data.transform.augment.distort import Distort
from demitasse.io.data.transform.augment.draws import Draws
from demitasse.io.data.transform.augment.expand import Expand
from demitasse.io.data.transform.augment.noise import Noise
from demitasse.io.data.transform.augment.resize import Resize
from demitasse.io.proto import TransformationParameter

__all__ = ["FIELDS", "Augmenter", "Step", "need_bytes"]

FIELDS = ("distort_param", "expand_param", "resize_param", "noise_param")

Step = Callable[[np.ndarray, Draws], np.ndarray]

logger = logging.getLogger(__name__)


class Augmenter:
    """Changes images as a ``transform_param`` says, before they are cut out.

    Args:
        param: The layer's ``transform_param``.

    Attributes:
        steps: What is done, in order.

    Raises:
        ConfigError: A field has a value that cannot be used, or the images would come out in
            sizes that do not fit what follows.
    """

    def __init__(self, param: TransformationParameter) -> None:
        self.steps: list[Step] = []
        if param.HasField("emit_constraint"):
            logger.warning("emit_constraint is left out: it is about boxes, and there are none")
        crops = bool(param.crop_size or param.crop_h)
        if param.HasField("distort_param"):
            self.steps.append(Distort(param.distort_param))
        resize = Resize(param.resize_param) if param.HasField("resize_param") else None
        if param.HasField("expand_param"):
            self._expand(param, resize, crops=crops)
        if resize is not None:
            if param.mean_file and not resize.always:
                message = "mean_file needs images of one size; leave out resize_param.prob"
                raise ConfigError(message)
            if not (resize.always or crops):
                message = (
                    "with resize_param.prob below 1 images have many sizes; set crop_size, or "
                    "leave prob out"
                )
                raise ConfigError(message)
            self.steps.append(resize)
        if param.HasField("noise_param"):
            self.steps.append(Noise(param.noise_param))

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.steps)

    def __call__(self, image: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Return an image changed.

        Args:
            image: Shape: (C, H, W), uint8.
            words: The record's random words. Shape: (24,), uint32.

        Returns:
            Shape: (C, h, w), uint8, or float32 with ``convert_to_lab``.

        Raises:
            ShapeError: This is not an image of bytes in one channel or three.
        """
        need_bytes(image)
        draws = Draws(words)
        for step in self.steps:
            image = step(image, draws)
        return image

    def _expand(
        self, param: TransformationParameter, resize: Resize | None, *, crops: bool
    ) -> None:
        expand = Expand(param.expand_param, param.mean_value)
        if expand.changes_size and param.mean_file:
            message = "expand_param fills up with one colour; give mean_value, not mean_file"
            raise ConfigError(message)
        if expand.changes_size and not crops and (resize is None or not resize.to_one_size):
            message = (
                "expand_param makes images of many sizes; add a resize_param to one size, or "
                "crop_size"
            )
            raise ConfigError(message)
        self.steps.append(expand)


def need_bytes(image: np.ndarray) -> None:
    """Refuse what is not an image of bytes in one channel or three.

    Raises:
        ShapeError: It is not.
    """
    if image.dtype != np.uint8 or len(image) not in {1, 3}:
        message = (
            f"{', '.join(FIELDS)} need images of bytes in 1 or 3 channels; this record holds "
            f"{image.dtype} in {len(image)}"
        )
        raise ShapeError(message)
