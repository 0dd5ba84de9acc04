"""Hard example mining: the priors, or regions, of greatest loss are trained on.

Host code on numpy arrays.

Source: SSD (weiliu89/caffe), ``MineHardExamples`` in ``src/caffe/util/bbox_util.cpp``.
"""

import math

import numpy as np

from demitasse.io.proto import MultiBoxLossParameter
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import conflict, out_of_range, positive, wrong_shapes
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.detection.matching import UNMATCHED, Assignment
from demitasse.layers.registry import register_layer

MIN_AREA = 1e-5
"""Least area of a box that is mined with suppression."""


class Mining:
    """Choice of the priors of an image that count, by the fields of MultiBoxLoss; its errors.

    HARD_EXAMPLE chooses ``sample_size`` priors of greatest loss. MAX_NEGATIVE chooses all matched
    priors, and ``neg_pos_ratio`` times as many others, which overlap objects by less than
    ``neg_overlap``.
    """

    def __init__(self, p: MultiBoxLossParameter) -> None:
        path = "multibox_loss_param"
        if not p.share_location:
            message = (
                f"{path}.mining_type needs share_location; set mining_type: NONE, or "
                "remove share_location"
            )
            raise conflict(f"{path}.mining_type", message)
        if not 0 <= p.neg_pos_ratio < math.inf:
            raise out_of_range(f"{path}.neg_pos_ratio", p.neg_pos_ratio, "a number from 0 on")
        self.param, self.hard = p, p.mining_type == MultiBoxLossParameter.HARD_EXAMPLE
        self.count = positive(p.sample_size, f"{path}.sample_size") if self.hard else 0
        self.suppresses = p.HasField("nms_param") and p.nms_param.nms_threshold > 0

    def __call__(
        self,
        targets: Assignment,
        box_losses: np.ndarray,
        class_losses: np.ndarray,
        boxes: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return masks of the priors of a batch that count; none of an image without objects.

        Targets have one box for all classes.

        Shapes: box_losses (N, P, 1), class_losses (N, P), boxes for the suppression (P, 4) or
        (N, P, 4) -> masks for boxes (N, P, 1) and for classes (N, P), bool.
        """
        matched, counted = matched_boxes(targets), np.zeros(class_losses.shape, bool)
        losses = class_losses
        if self.hard:
            losses = losses + np.where(matched, box_losses, 0)[:, :, 0]
        boxes = np.broadcast_to(boxes, (*class_losses.shape, 4))
        for i in np.flatnonzero(targets.has_gt):
            matched_gt, max_iou = targets.matched_gt[i, 0], targets.max_iou[i, 0]
            yes, no = self.choose(matched_gt, max_iou, losses[i], boxes[i])
            matched[i, :, 0], counted[i] = yes, yes | no
        return matched, counted

    def choose(
        self, matched_gt: np.ndarray, max_iou: np.ndarray, losses: np.ndarray, boxes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return masks (P,) of the priors that count as matched and as unmatched; see ``match``."""
        matched = matched_gt >= 0
        if self.hard:
            candidates, count = np.arange(len(matched_gt)), self.count
        else:
            candidates = np.flatnonzero(
                (matched_gt == UNMATCHED) & (max_iou < self.param.neg_overlap)
            )
            count = int(np.count_nonzero(matched) * self.param.neg_pos_ratio)
        order = np.argsort(-losses[candidates], kind="stable")
        if self.suppresses:
            nms = self.param.nms_param
            if nms.HasField("top_k") and nms.top_k > -1:
                order = order[: nms.top_k]
            boxes = boxes[candidates][order]
            sides = boxes[:, 2:] - boxes[:, :2]
            large = np.where((sides < 0).any(axis=1), 0, sides.prod(axis=1)) >= MIN_AREA
            order = order[large][suppress(boxes[large], nms.nms_threshold)]
        chosen = np.zeros(len(matched_gt), bool)
        chosen[candidates[order[:count]]] = True
        unmatched = chosen & (matched_gt == UNMATCHED)
        return (matched & chosen if self.hard else matched), unmatched


def matched_boxes(targets: Assignment) -> np.ndarray:
    """Return a mask of the matched boxes. Shape: (N, P, L)."""
    matched: np.ndarray = np.ascontiguousarray((targets.matched_gt >= 0).transpose(0, 2, 1))
    return matched


def all_counted(targets: Assignment) -> tuple[np.ndarray, np.ndarray]:
    """Return masks that count all matched boxes and all priors. Shapes: (N, P, L), (N, P)."""
    boxes = matched_boxes(targets)
    return boxes, np.ones(boxes.shape[:2], bool)


@register_layer("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Layer):
    """Keep labels and weights of the ``roi_per_img`` regions of greatest loss in each image.

    Of many regions, those of greatest loss are trained on. The other labels become
    ``ignore_label``, the other weights 0. Works on the host; no gradient passes, as in R-FCN. Of
    equal losses the first counts. Not compared with the original, which runs on GPUs only.

    Source: R-FCN (daijifeng001/caffe-rfcn), ``src/caffe/layers/box_annotator_ohem_layer.cu``;
    Shrivastava et al., Training Region-based Object Detectors with Online Hard Example Mining.
    Shapes: bottoms regions (R, 5, *places): image, x1, y1, x2, y2; losses and labels (R, 1,
    *places), weights (R, B, *places) -> labels and weights, like those bottoms. There may be no
    places.

    Raises:
        ConfigError: ``roi_per_img`` is missing.
        ShapeError: The bottoms do not belong together.
    """

    bottoms = Exactly(4)
    tops = Exactly(2)
    differentiable = ()
    strict_propagate_down = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.box_annotator_ohem_param
        self.count = positive(p.roi_per_img, "box_annotator_ohem_param.roi_per_img")
        self.ignored = p.ignore_label

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        regions, losses, labels, weights = bottom
        r = regions.shape[0] if regions.num_axes > 1 else 0
        places = regions.count_from(2) if regions.num_axes > 1 else 0
        fits = regions.shape[1:2] == (5,) and losses.count == labels.count == r * places
        if not fits or weights.num_axes < 2 or weights.count % max(r * places, 1):
            expected = "regions (R, 5), losses and labels (R, 1), and weights (R, B)"
            raise wrong_shapes("BoxAnnotatorOHEM", expected, *bottom)
        top[0].reshape(labels.shape)
        top[1].reshape(weights.shape)
        self.sizes = (r, places)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        r, places = self.sizes
        image = bottom[0].cpu_data().reshape(r, 5, places)[:, 0].reshape(-1)
        order = np.argsort(-bottom[1].cpu_data().reshape(-1), kind="stable")
        left = np.ones(len(order), bool)
        for item in np.unique(image):
            left[order[image[order] == item][: self.count]] = False
        labels, weights = top[0].mutable_cpu_data(), top[1].mutable_cpu_data()
        labels[...] = bottom[2].cpu_data()
        labels.reshape(-1)[left] = self.ignored
        weights[...] = bottom[3].cpu_data()
        columns = weights.size // max(1, r * places)
        weights.reshape(r, columns, places).transpose(0, 2, 1)[left.reshape(r, places)] = 0
