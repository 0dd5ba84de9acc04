"""Matching of prior boxes with ground truth, and the targets that follow.

Host code on numpy arrays. A row of ground truth is: image, class, instance, xmin, ymin, xmax, ymax,
difficult.

Source: SSD (weiliu89/caffe), ``GetGroundTruth``, ``MatchBBox``, ``FindMatches``,
``EncodeLocPrediction`` and ``EncodeConfPrediction`` in ``src/caffe/util/bbox_util.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.io.proto import MultiBoxLossParameter, PriorBoxParameter
from demitasse.layers.checks import out_of_range, positive
from demitasse.layers.detection.boxes import BoxCoder, overlaps

COLUMNS = 8
"""Numbers of a row."""


@dataclass(frozen=True)
class GroundTruth:
    """Classes (G,), boxes (G, 4) in units of the image, and a mask (G,) of difficult objects."""

    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> GroundTruth:
        """Return the objects of a mask. Shapes: chosen (G,), bool."""
        return GroundTruth(self.labels[chosen], self.boxes[chosen], self.difficult[chosen])


def parse_ground_truth(
    rows: np.ndarray, images: int, classes: int, background: int
) -> list[GroundTruth]:
    """Return the ground truth of each image of a batch; rows of image -1 are placeholders.

    ``classes`` counts the background, too; the background is -1 for none. Shape: rows (G, 8).
    """
    rows = rows[rows[:, 0] != -1]
    with np.errstate(invalid="ignore"):  # NaN becomes a number out of range
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
        place = {"index": wrong, "label": int(label[wrong]), "image": int(image[wrong])}
        raise NetError(message, code=ErrorCode.OUT_OF_RANGE, **place)
    every = GroundTruth(label, rows[:, 3:7], rows[:, 7] != 0)
    return [every.where(image == number) for number in range(images)]


UNMATCHED, IGNORED = -1, -2
"""Indices of no object: for a prior without a match, and for an ignored prior."""

MIN_OVERLAP = 1e-6
"""Overlaps up to this limit count as 0."""


def match(
    objects: np.ndarray, boxes: np.ndarray, threshold: float | None, *, ignore_outside: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Match each object with its best box, then other boxes by their overlap.

    The first matching is bipartite and greedy, the pair of greatest overlap first. An object that
    overlaps no remaining box has no match. Other boxes overlap their best object by ``threshold``
    at least; None for the first matching only. With ``ignore_outside``, boxes that reach beyond the
    image are ignored. Return the object of each box, UNMATCHED or IGNORED, and the overlap with it;
    for unmatched boxes the greatest overlap with any object.

    Shapes: objects (G, 4), boxes (P, 4) -> (P,), (P,).
    """
    matched_gt = np.full(len(boxes), UNMATCHED)
    if ignore_outside:
        matched_gt[((boxes < 0) | (boxes > 1)).any(axis=1)] = IGNORED
    max_iou = np.zeros(len(boxes), boxes.dtype)
    if not len(objects):
        return matched_gt, max_iou
    table = np.stack([overlaps(one, boxes) for one in objects], axis=1)  # (P, G)
    table[table <= MIN_OVERLAP] = 0
    table[matched_gt == IGNORED] = 0
    max_iou = table.max(axis=1)
    left = table.copy()
    for _ in range(len(objects)):
        box, number = divmod(int(np.argmax(left)), len(objects))
        if not left[box, number] > 0:
            break
        matched_gt[box], max_iou[box] = number, left[box, number]
        left[box], left[:, number] = 0, 0
    if threshold is not None:
        others = (matched_gt == UNMATCHED) & (max_iou >= threshold) & (max_iou > 0)
        matched_gt[others] = table[others].argmax(axis=1)
    return matched_gt, max_iou


@dataclass(frozen=True)
class Assignment:
    """Targets of the priors of a batch.

    Attributes:
        matched_gt: Object of each prior for each box kind; see ``match``. Shape: (N, L, P).
        max_iou: Greatest overlap with an object. Shape: (N, L, P).
        box_targets: Encoded boxes; 0 without a match. Shape: (N, P, L, 4).
        scale: Factor of a prediction before it is compared. Shape: (N, P, L, 4).
        class_targets: One-hot classes. Shape: (N, P, C).
        has_gt: Mask of the images with objects. Shape: (N,), bool.
    """

    matched_gt: np.ndarray
    max_iou: np.ndarray
    box_targets: np.ndarray
    scale: np.ndarray
    class_targets: np.ndarray
    has_gt: np.ndarray


class TargetAssigner:
    """Assigns objects to priors, by the fields of MultiBoxLoss; its errors.

    There is one box for all classes (L is 1) with ``share_location``, else one for each class.
    """

    def __init__(self, p: MultiBoxLossParameter) -> None:
        path = "multibox_loss_param"
        self.param, self.background = p, p.background_label_id
        self.classes = positive(p.num_classes, f"{path}.num_classes")
        self.multi_label = p.conf_loss_type == MultiBoxLossParameter.LOGISTIC
        if not self.multi_label and self.background >= self.classes:
            expected = f"one of the {self.classes} classes, with conf_loss_type SOFTMAX"
            raise out_of_range(f"{path}.background_label_id", self.background, expected)
        if p.map_object_to_agnostic and self.background + 1 >= self.classes:
            least = self.background + 2
            expected = f"at least {least}: map_object_to_agnostic needs a foreground class"
            raise out_of_range(f"{path}.num_classes", self.classes, expected)
        code = PriorBoxParameter.CodeType.Name(p.code_type)
        self.code = BoxCoder(code, p.encode_variance_in_target)
        bipartite = p.match_type == MultiBoxLossParameter.BIPARTITE
        self.threshold = None if bipartite else p.overlap_threshold

    def boxes(self, location: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Return predicted boxes. Shapes: (N, P, L, 4), (2, P, 4) -> (N, P, L, 4)."""
        with np.errstate(over="ignore"):
            return self.code.decode(location, prior[0][:, None, :], prior[1][:, None, :])

    def __call__(
        self, objects: Sequence[GroundTruth], location: np.ndarray, prior: np.ndarray
    ) -> Assignment:
        """Match the priors of each image; raise NetError for empty objects or priors.

        Shapes: location (N, P, L, 4), predictions, not read with ``use_prior_for_matching``; prior
        (2, P, 4), boxes and variances.
        """
        n, priors, box_kinds = location.shape[:3]
        targets = Assignment(
            matched_gt=np.full((n, box_kinds, priors), UNMATCHED),
            max_iou=np.zeros((n, box_kinds, priors), prior.dtype),
            box_targets=np.zeros(location.shape, prior.dtype),
            scale=np.ones(location.shape, prior.dtype),
            class_targets=np.zeros((n, priors, self.classes), prior.dtype),
            has_gt=np.array([len(one) > 0 for one in objects]),
        )
        if self.background < self.classes:
            targets.class_targets[..., self.background] = 1
        if not self.param.use_prior_for_matching:
            matched = self.boxes(location, prior)
        else:
            matched = np.broadcast_to(prior[0][:, None, :], location.shape)
        if self.code.variance_in_target:
            targets.scale[...] /= prior[1][:, None, :]
        for image, some in enumerate(objects):
            self._match(some, matched[image], targets, image)
            for kind in range(box_kinds):
                rows = np.flatnonzero(targets.matched_gt[image, kind] >= 0)
                number = targets.matched_gt[image, kind, rows]
                wanted = self.code.encode(some.boxes[number], prior[0][rows], prior[1][rows])
                targets.box_targets[image, rows, kind] = wanted * targets.scale[image, rows, kind]
                classes, labels = targets.class_targets[image], some.labels[number]  # (P, C), (K,)
                if not self.multi_label:
                    classes[rows] = 0
                elif self.background < self.classes:
                    classes[rows, self.background] = 0
                if self.param.map_object_to_agnostic:
                    labels = self.background + 1
                classes[rows, labels] = 1
        if self.param.bp_inside:
            outside = (matched < 0) | (matched > 1)
            targets.box_targets[outside] = targets.scale[outside] = 0
        return targets

    def _match(
        self, objects: GroundTruth, boxes: np.ndarray, targets: Assignment, image: int
    ) -> None:
        """Match the boxes of one image with its objects. Shapes: boxes (P, L, 4)."""
        matched_gt, max_iou = targets.matched_gt[image], targets.max_iou[image]
        outside = self.param.ignore_cross_boundary_bbox
        find = partial(match, threshold=self.threshold, ignore_outside=outside)
        share_location = self.param.share_location
        if share_location or self.param.use_prior_for_matching:
            one, overlap = find(objects.boxes, boxes[:, 0])
            matched_gt[...], max_iou[...] = one, overlap
            if not share_location:  # each class keeps its own objects
                matched = one >= 0
                labels = np.full(len(one), self.background)
                labels[matched] = objects.labels[one[matched]]
                matched_gt[matched & (labels != np.arange(self.classes)[:, None])] = UNMATCHED
            return
        for kind in range(self.classes):
            own = np.flatnonzero(objects.labels == kind)
            one, max_iou[kind] = find(objects.boxes[own], boxes[:, kind])
            matched_gt[kind] = np.append(own, [IGNORED, UNMATCHED])[one]  # -2 and -1 stay
