"""The objects of a batch of images, as AnnotatedData and detection losses exchange them.

Host code on numpy arrays. A row is: image, class, instance, xmin, ymin, xmax, ymax, difficult.

Source: SSD (weiliu89/caffe), ``GetGroundTruth`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from demitasse.errors import ErrorCode, NetError

__all__ = ["COLUMNS", "Objects", "objects_of"]

COLUMNS = 8
"""Numbers of a row."""


@dataclass(frozen=True)
class Objects:
    """The objects of one image.

    Attributes:
        labels: Their classes. Shape: (G,), int.
        boxes: Where they are, in units of the image. Shape: (G, 4).
        difficult: Which are hard to see. Shape: (G,), bool.
    """

    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> Objects:
        """Return some of them. Shapes: chosen (G,), bool."""
        return Objects(self.labels[chosen], self.boxes[chosen], self.difficult[chosen])


def objects_of(rows: np.ndarray, images: int, classes: int, background: int) -> list[Objects]:
    """Return the objects of each image of a batch; rows of image -1 say that there are none.

    Args:
        rows: Shape: (G, 8).
        images: How many there are.
        classes: How many there are, with the background.
        background: The class that no object has; -1 for none.

    Raises:
        NetError: A row belongs to no image of the batch, or its class is none of an object's.
    """
    rows = rows[rows[:, 0] != -1]
    with np.errstate(invalid="ignore"):  # what is no number becomes one that is refused
        image, label = rows[:, 0].astype(int), rows[:, 1].astype(int)
    good = (image >= 0) & (image < images)
    good &= (label >= 0) & (label < classes) & (label != background)
    if not good.all():
        wrong = int(np.argmin(good))
        message = (
            f"object {wrong} is of class {label[wrong]} in image {image[wrong]}, expected one of "
            f"the {classes} classes except the background, {background}, in one of "
            f"{images} images"
        )
        raise NetError(
            message,
            code=ErrorCode.OUT_OF_RANGE,
            index=wrong,
            label=int(label[wrong]),
            image=int(image[wrong]),
        )
    every = Objects(label, rows[:, 3:7], rows[:, 7] != 0)
    return [every.where(image == number) for number in range(images)]
