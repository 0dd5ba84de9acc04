"""What the priors of a batch should predict, after they were matched with objects.

Host code on numpy arrays.

Source: SSD (weiliu89/caffe), ``FindMatches``, ``EncodeLocPrediction`` and ``EncodeConfPrediction``
in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demitasse.layers.detection.coding import BoxCode
from demitasse.layers.detection.matching import UNMATCHED, match
from demitasse.layers.detection.truth import Objects

__all__ = ["Assigner", "Assignment"]


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

    found: np.ndarray
    most: np.ndarray
    code: np.ndarray
    scale: np.ndarray
    kinds: np.ndarray
    some: np.ndarray


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
    code: BoxCode
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
        self, objects: Sequence[Objects], location: np.ndarray, prior: np.ndarray
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
            found=np.full((n, kinds_of_box, priors), UNMATCHED),
            most=np.zeros((n, kinds_of_box, priors), prior.dtype),
            code=np.zeros(location.shape, prior.dtype),
            scale=np.ones(location.shape, prior.dtype),
            kinds=np.zeros((n, priors, self.classes), prior.dtype),
            some=np.array([len(one) > 0 for one in objects]),
        )
        if self.background < self.classes:
            made.kinds[..., self.background] = 1
        if self.by_prediction:
            matched = self.boxes(location, prior)
        else:
            matched = np.broadcast_to(prior[0][:, None, :], location.shape)
        if self.code.variance_in_target:
            made.scale[...] /= prior[1][:, None, :]
        for image, some in enumerate(objects):
            self._match(some, matched[image], made, image)
            for kind in range(kinds_of_box):
                rows = np.flatnonzero(made.found[image, kind] >= 0)
                number = made.found[image, kind, rows]
                wanted = self.code.encode(some.boxes[number], prior[0][rows], prior[1][rows])
                made.code[image, rows, kind] = wanted * made.scale[image, rows, kind]
                self._name(made.kinds[image], rows, some.labels[number])
        if self.inside_only:
            outside = (matched < 0) | (matched > 1)
            made.code[outside] = made.scale[outside] = 0
        return made

    def _match(self, objects: Objects, boxes: np.ndarray, made: Assignment, image: int) -> None:
        """Find the objects of the boxes of one image. Shapes: boxes (P, L, 4)."""
        found, most = made.found[image], made.most[image]
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
