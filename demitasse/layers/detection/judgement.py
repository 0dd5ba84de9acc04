"""Which detections are right: each is compared with the objects of its image and class.

Host code on numpy arrays.

Source: SSD (weiliu89/caffe), ``src/caffe/layers/detection_evaluate_layer.cpp`` and ``OutputBBox``
in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import ResizeParameter
from demitasse.layers.detection.boxes import overlaps
from demitasse.layers.detection.truth import Objects

__all__ = ["Judge", "Place", "in_pixels"]

Place = Callable[[np.ndarray, int], np.ndarray]
"""Turns boxes (K, 4) in units of an image of some number into those that are compared."""


@dataclass(frozen=True)
class Judge:
    """Compares detections with objects.

    Attributes:
        classes: Number of classes, with the background.
        background: The class that is no object; -1 for none.
        overlap: From where a detection is right.
        difficult: Whether difficult objects count as others do; if not, whoever finds one is
            neither right nor wrong.
    """

    classes: int
    background: int
    overlap: float
    difficult: bool

    def __call__(
        self, detections: np.ndarray, objects: Sequence[Objects], place: Place
    ) -> np.ndarray:
        """Return a row for each class, and one for each detection.

        The first rows hold -1, the class, how many objects of it there are, -1 and -1; the others
        image, class, score, whether the detection is right and whether it is wrong.

        Args:
            detections: Rows as DetectionOutput makes them; class -1 for none. Shape: (K, 7).
            objects: Those of each image.
            place: Turns boxes into those that are compared.

        Returns:
            Shape: (classes + detections, 5).

        Raises:
            NetError: A detection is of no class or in no image there is.
        """
        detections = detections[detections[:, 1] != -1]
        labels, images = detections[:, 1], detections[:, 0]
        good = (labels >= 0) & (labels < self.classes) & (labels != self.background)
        if not good.all():
            message = (
                f"a detection is of class {labels[~good][0]:g}, expected one of the "
                f"{self.classes} classes except the background, {self.background}"
            )
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, label=float(labels[~good][0]))
        good = images > -1
        if not good.all():
            message = f"a detection is in image {images[~good][0]:g}, expected 0 or more"
            raise NetError(message, code=ErrorCode.OUT_OF_RANGE, image=float(images[~good][0]))
        kinds = [kind for kind in range(self.classes) if kind != self.background]
        rows = [np.array([[-1, kind, self._count(objects, kind), -1, -1]]) for kind in kinds]
        for number in np.unique(detections[:, 0]).astype(int):
            own = detections[detections[:, 0] == number]
            truth = objects[number] if number < len(objects) else None
            for kind in np.unique(own[:, 1]).astype(int):
                rows.append(self._image(own[own[:, 1] == kind], truth, kind, number, place))
        return np.concatenate(rows)

    def _count(self, objects: Sequence[Objects], kind: int) -> int:
        """Return how many objects of a class count."""
        return sum(
            int(np.count_nonzero((some.labels == kind) & (self.difficult | ~some.difficult)))
            for some in objects
        )

    def _image(
        self, found: np.ndarray, truth: Objects | None, kind: int, number: int, place: Place
    ) -> np.ndarray:
        """Return the rows of one image's detections of one class. Shapes: (K, 7) -> (K, 5)."""
        found = found[np.argsort(-found[:, 2], kind="stable")]
        rows = np.concatenate([found[:, :3], np.zeros((len(found), 2))], axis=1)
        rows[:, 4] = 1
        some = None if truth is None else truth.where(truth.labels == kind)
        if some is None or not len(some):
            return rows
        boxes, wanted = place(found[:, 3:], number), place(some.boxes, number)
        taken = np.zeros(len(some), bool)
        for row, box in zip(rows, boxes, strict=True):
            share = overlaps(box, wanted)
            best = int(np.argmax(share))
            if share[best] < self.overlap:
                continue
            if some.difficult[best] and not self.difficult:
                row[4] = 0
            elif not taken[best]:
                row[3], row[4], taken[best] = 1, 0, True
        return rows


def in_pixels(
    boxes: np.ndarray, size: tuple[int, int], param: ResizeParameter | None
) -> np.ndarray:
    """Return boxes in pixels of an image as it was before it was resized, the last ones included.

    Args:
        boxes: In units of the resized image. Shape: (K, 4).
        size: Height and width of the image, in pixels.
        param: How it was resized, or None.
    """
    height, width = size
    low, shown = np.zeros(4), np.ones(4)  # where the image lies in the resized one
    if param is not None and param.resize_mode == ResizeParameter.FIT_LARGE_SIZE_AND_PAD:
        aspect, wanted = width / height, param.width / param.height
        used = np.array([1.0, wanted / aspect] if aspect > wanted else [aspect / wanted, 1.0])
        low, shown = np.tile((1 - used) / 2, 2), np.tile(used, 2)
    scale = np.array([width, height] * 2, float)
    placed: np.ndarray
    if (
        param is not None
        and param.resize_mode == ResizeParameter.FIT_SMALL_SIZE
        and param.height_scale
        and param.width_scale
    ):
        units = np.array([param.width_scale, param.height_scale] * 2, float)
        placed = np.clip(boxes * units, 0, scale)
    else:
        placed = np.clip((boxes - low) / shown, 0, 1) * scale
    placed[:, 2:] += 1
    return placed
