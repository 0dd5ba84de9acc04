"""Matching of prior boxes with ground truth, and the targets that follow.

Host code on numpy arrays. A row of ground truth is: image, class, instance, xmin, ymin, xmax, ymax,
difficult.

Source: SSD (weiliu89/caffe), ``GetGroundTruth``, ``MatchBBox``, ``FindMatches``,
``EncodeLocPrediction`` and ``EncodeConfPrediction`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.layers.detection.boxes import BoxCoder, overlaps

COLUMNS = 8
"""Numbers of a row."""


@dataclass(frozen=True)
class GroundTruth:
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

    def where(self, chosen: np.ndarray) -> GroundTruth:
        """Return some of them. Shapes: chosen (G,), bool."""
        return GroundTruth(self.labels[chosen], self.boxes[chosen], self.difficult[chosen])


def parse_ground_truth(
    rows: np.ndarray, images: int, classes: int, background: int
) -> list[GroundTruth]:
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
    every = GroundTruth(label, rows[:, 3:7], rows[:, 7] != 0)
    return [every.where(image == number) for number in range(images)]


UNMATCHED, IGNORED = -1, -2
"""Instead of an object: a prior that has none, and one that does not count at all."""

LEAST = 1e-6
"""An overlap that is not above this is none."""


def match(
    objects: np.ndarray, boxes: np.ndarray, threshold: float | None, *, inside: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Give each object its best box, then each other box the object it overlaps enough.

    The pair of greatest overlap comes first; an object is given one box in this way, and none if no
    box that is left overlaps it.

    Args:
        objects: Shape: (G, 4).
        boxes: Shape: (P, 4).
        threshold: The overlap from which a box is given its best object; None for no more boxes.
        inside: Whether boxes that reach beyond the image are ignored.

    Returns:
        The object of each box, UNMATCHED or IGNORED, and the overlap with it, or for unmatched
        boxes the greatest one with any object. Shapes: (P,) and (P,).
    """
    found = np.full(len(boxes), UNMATCHED)
    if inside:
        found[((boxes < 0) | (boxes > 1)).any(axis=1)] = IGNORED
    most = np.zeros(len(boxes), boxes.dtype)
    if not len(objects):
        return found, most
    table = np.stack([overlaps(one, boxes) for one in objects], axis=1)  # (P, G)
    table[table <= LEAST] = 0
    table[found == IGNORED] = 0
    most = table.max(axis=1)
    left = table.copy()
    for _ in range(len(objects)):
        box, number = divmod(int(np.argmax(left)), len(objects))
        if not left[box, number] > 0:
            break
        found[box], most[box] = number, left[box, number]
        left[box], left[:, number] = 0, 0
    if threshold is not None:
        others = (found == UNMATCHED) & (most >= threshold) & (most > 0)
        found[others] = table[others].argmax(axis=1)
    return found, most


@dataclass(frozen=True)
class Assignment:
    """What the priors of a batch should predict.

    Attributes:
        found: The object of each prior for each kind of box; see ``match``. Shape: (N, L, P).
        most: The greatest overlap with one. Shape: (N, L, P).
        code: The box, in the code; 0 where there is none. Shape: (N, P, L, 4).
        scale: What a prediction is multiplied by to be compared with it. Shape: (N, P, L, 4).
        kinds: 1 for the class, 0 for the others. Shape: (N, P, C).
        some: Which images have objects. Shape: (N,), bool.
    """

    matched_gt: np.ndarray
    max_iou: np.ndarray
    box_targets: np.ndarray
    scale: np.ndarray
    class_targets: np.ndarray
    has_gt: np.ndarray


@dataclass(frozen=True)
class Assigner:
    """Gives objects to priors.

    Attributes:
        classes: Number of classes C.
        background: The class that is no object.
        shared: Whether a box is predicted for all classes (L is 1), or else one for each.
        code: How boxes are predicted.
        threshold: See ``match``.
        inside: See ``match``.
        by_prediction: Whether predicted boxes are matched, and not the priors.
        inside_only: Whether corners that lie beyond the image want nothing.
        agnostic: Whether all objects are of the class after the background.
        several: Whether a prior may have several classes.
    """

    classes: int
    background: int
    shared: bool
    code: BoxCoder
    threshold: float | None
    inside: bool
    by_prediction: bool
    inside_only: bool
    agnostic: bool
    several: bool

    def boxes(self, location: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return predicted boxes. Shapes: (N, P, L, 4), (2, P, 4) -> (N, P, L, 4)."""
        with np.errstate(over="ignore"):
            return self.code.decode(location, prior[0][:, None, :], prior[1][:, None, :])

    def __call__(
        self, objects: Sequence[GroundTruth], location: np.ndarray, prior: np.ndarray
    ) -> Assignment:
        """Match the priors of each image.

        Args:
            objects: Those of each image; N.
            location: Predictions, looked at only ``by_prediction``. Shape: (N, P, L, 4).
            prior: Boxes and variances. Shape: (2, P, 4).

        Raises:
            NetError: An object or a prior is empty.
        """
        n, priors, kinds_of_box = location.shape[:3]
        made = Assignment(
            matched_gt=np.full((n, kinds_of_box, priors), UNMATCHED),
            max_iou=np.zeros((n, kinds_of_box, priors), prior.dtype),
            box_targets=np.zeros(location.shape, prior.dtype),
            scale=np.ones(location.shape, prior.dtype),
            class_targets=np.zeros((n, priors, self.classes), prior.dtype),
            has_gt=np.array([len(one) > 0 for one in objects]),
        )
        if self.background < self.classes:
            made.class_targets[..., self.background] = 1
        if self.by_prediction:
            matched = self.boxes(location, prior)
        else:
            matched = np.broadcast_to(prior[0][:, None, :], location.shape)
        if self.code.variance_in_target:
            made.scale[...] /= prior[1][:, None, :]
        for image, some in enumerate(objects):
            self._match(some, matched[image], made, image)
            for kind in range(kinds_of_box):
                rows = np.flatnonzero(made.matched_gt[image, kind] >= 0)
                number = made.matched_gt[image, kind, rows]
                wanted = self.code.encode(some.boxes[number], prior[0][rows], prior[1][rows])
                made.box_targets[image, rows, kind] = wanted * made.scale[image, rows, kind]
                self._name(made.class_targets[image], rows, some.labels[number])
        if self.inside_only:
            outside = (matched < 0) | (matched > 1)
            made.box_targets[outside] = made.scale[outside] = 0
        return made

    def _match(self, objects: GroundTruth, boxes: np.ndarray, made: Assignment, image: int) -> None:
        """Find the objects of the boxes of one image. Shapes: boxes (P, L, 4)."""
        found, most = made.matched_gt[image], made.max_iou[image]
        if self.shared or not self.by_prediction:
            one, overlap = match(objects.boxes, boxes[:, 0], self.threshold, inside=self.inside)
            found[...], most[...] = one, overlap
            if not self.shared:  # each class keeps its own objects
                matched = one >= 0
                labels = np.full(len(one), self.background)
                labels[matched] = objects.labels[one[matched]]
                found[matched & (labels != np.arange(self.classes)[:, None])] = UNMATCHED
            return
        for kind in range(self.classes):
            own = np.flatnonzero(objects.labels == kind)
            one, most[kind] = match(
                objects.boxes[own], boxes[:, kind], self.threshold, inside=self.inside
            )
            found[kind] = np.where(one >= 0, own[one] if len(own) else one, one)

    def _name(self, kinds: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> None:
        """Note the classes of matched priors. Shapes: kinds (P, C), rows and labels (K,)."""
        if not self.several:
            kinds[rows] = 0
        elif self.background < self.classes:
            kinds[rows, self.background] = 0
        kinds[rows, self.background + 1 if self.agnostic else labels] = 1
