"""MultiBoxLoss: loss of a single-shot detector, of its boxes and its classes.

loss = (loc_weight * sum over matched priors of the loss of the box
        + sum over priors that count of the loss of the class) / normalizer

Source: SSD (weiliu89/caffe), ``src/caffe/layers/multibox_loss_layer.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from demitasse.backends.arrays import Array
from demitasse.io.proto import MultiBoxLossParameter
from demitasse.layers.base import Blobs, Exactly, not_computed
from demitasse.layers.checks import check_predictions, conflict, wrong_shapes
from demitasse.layers.detection.matching import (
    COLUMNS,
    Assignment,
    TargetAssigner,
    parse_ground_truth,
)
from demitasse.layers.detection.mining import Mining, all_counted
from demitasse.layers.losses.base import LossLayer, Normalization, Targets, refuse_weights
from demitasse.layers.numerics import FLT_MIN, sigmoid, sigmoid_cross_entropy, softmax
from demitasse.layers.registry import register_layer

if TYPE_CHECKING:
    import numpy as np


@register_layer("MultiBoxLoss")
class MultiBoxLoss(LossLayer):
    """Match priors with objects, and compare the predicted boxes and classes with them.

    Matching and mining run on the host, the losses on the device. ``loss_param`` chooses the
    normalizer: VALID, the default, is the number of matches, FULL all priors. With
    ``propagate_down: false`` for a prediction, the loss lacks its part. Labels and priors have no
    gradient, whatever ``propagate_down`` is. As in SSD, an image without objects is not mined.
    Unlike in SSD, an unmatched prior is positive for the background with LOGISTIC and NONE, too,
    and suppression without ``top_k`` has all boxes as candidates. Not compared with the original.

    Shapes: bottoms location (N, P L 4), where L is 1 or, without ``share_location``, the number C
    of classes, scores (N, P C), priors (1, 2, P 4) as PriorBox makes them, objects (1, 1, G, 8) as
    AnnotatedData does -> loss ().

    Raises:
        ConfigError: A field is out of range, or mining is asked for without
            ``share_location``.
        ShapeError: The shapes of the bottoms do not match.
        NetError: The class or image of an object is out of range, or a box is empty.
    """

    bottoms = Exactly(4)
    differentiable = (0, 1)
    strict_propagate_down = False  # as in SSD
    dynamic_shapes = True  # matching runs on the host

    matches: int | None = None
    """Matches of the last forward pass."""

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.multibox_loss_param
        refuse_weights(self.param.loss_param, self.type)
        mined = p.mining_type != MultiBoxLossParameter.NONE
        if p.HasField("do_neg_mining") and p.do_neg_mining != mined:
            name = MultiBoxLossParameter.MiningType.Name(p.mining_type)
            message = (
                f"multibox_loss_param.do_neg_mining and mining_type {name} contradict each other; "
                "remove do_neg_mining"
            )
            raise conflict("multibox_loss_param.do_neg_mining", message)
        self.mining = Mining(p) if mined else None  # None if all priors count
        self.assign = TargetAssigner(p)
        self.boxes = 1 if p.share_location else self.assign.classes
        self.squared = p.loc_loss_type == MultiBoxLossParameter.L2
        self.normalization = Normalization.of(self.param.loss_param, "VALID")
        counts = list(self.param.propagate_down) or [True, True]
        self.weights = (p.loc_weight if counts[0] else 0.0, 1.0 if counts[1] else 0.0)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        super().reshape(bottom, top)
        objects = bottom[3]
        widths = (self.boxes * 4, self.assign.classes)
        self.sizes = check_predictions(self.type, bottom, widths)
        if objects.count % COLUMNS:
            raise wrong_shapes("MultiBoxLoss", f"objects (1, 1, G, {COLUMNS})", objects)

    def losses(self, bottom: Blobs) -> Array:
        """Return the sum of the losses before the normalization. Shape: ()."""
        xp = self.xp
        targets = self._assign(bottom)
        self.code, self.scale, self.kinds = map(
            self._put, (targets.box_targets, targets.scale, targets.class_targets)
        )
        difference = self._difference(bottom)
        each = 0.5 * difference * difference
        if not self.squared:
            size = xp.abs(difference)
            each = xp.where(size < 1, each, size - 0.5)
        box_losses = xp.sum(each, axis=3)  # (N, P, L)
        scores, kinds = self._scores(bottom), self.kinds
        if self.assign.multi_label:
            class_losses = xp.sum(sigmoid_cross_entropy(xp, scores, kinds), axis=2)  # (N, P)
        else:
            picked = xp.sum(softmax(xp, scores, 2) * kinds, axis=2)
            class_losses = -xp.log(xp.maximum(picked, FLT_MIN))
        matched, counted = self._choose(targets, box_losses, class_losses, bottom)
        self.matches = int(matched.sum())
        self.matched, self.counted = self._put(matched), self._put(counted)
        parts = (
            xp.sum(xp.where(chosen > 0, each, 0.0))
            for chosen, each in ((self.matched, box_losses), (self.counted, class_losses))
        )
        return sum(part * weight for part, weight in zip(parts, self.weights, strict=True))

    def gradients(self, bottom: Blobs) -> Iterator[Array]:
        xp = self.xp
        slope = self._difference(bottom)
        if not self.squared:
            slope = xp.where(xp.abs(slope) < 1, slope, xp.sign(slope))
        slope = slope * self.scale * self.weights[0]
        yield xp.where(xp.expand_dims(self.matched, axis=3) > 0, slope, 0.0)
        scores = self._scores(bottom)
        guess = sigmoid(xp, scores) if self.assign.multi_label else softmax(xp, scores, 2)
        slope = (guess - self.kinds) * self.weights[1]
        yield xp.where(xp.expand_dims(self.counted, axis=2) > 0, slope, 0.0)

    def targets(self, bottom: Blobs) -> Targets:
        if self.matches is None:
            raise not_computed("matches")
        n, priors = self.sizes
        labels = self.matches if self.normalization.mode == "VALID" else n * priors
        return Targets(None, self.normalization.normalizer(n, labels))

    def _difference(self, bottom: Blobs) -> Array:
        """Return predicted boxes minus targets, encoded. Shape: (N, P, L, 4)."""
        return self.xp.reshape(bottom[0].read(), self.code.shape) * self.scale - self.code

    def _scores(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[1].read(), self.kinds.shape)

    # -- on the host ---------------------------------------------------------------------------

    def _assign(self, bottom: Blobs) -> Assignment:
        """Return the targets of the priors."""
        p = self.param.multibox_loss_param
        rows = bottom[3].cpu_data().reshape(-1, COLUMNS)
        kinds = self.assign.classes, self.assign.background
        objects = parse_ground_truth(rows, self.sizes[0], *kinds)
        if not p.use_difficult_gt:
            objects = [some.where(~some.difficult) for some in objects]
        return self.assign(objects, self._predicted(bottom), self._priors(bottom))

    def _choose(
        self, targets: Assignment, box_losses: Array, class_losses: Array, bottom: Blobs
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return masks of the priors that count, for boxes (N, P, L) and for classes (N, P)."""
        if self.mining is None:
            return all_counted(targets)
        to_host = self.device.backend.to_host
        boxes = self._priors(bottom)[0]
        if self.mining.suppresses and not self.param.multibox_loss_param.use_prior_for_nms:
            boxes = self.assign.boxes(self._predicted(bottom), self._priors(bottom))[:, :, 0]
        return self.mining(targets, to_host(box_losses), to_host(class_losses), boxes)

    def _predicted(self, bottom: Blobs) -> np.ndarray:
        n, priors = self.sizes
        return bottom[0].cpu_data().reshape(n, priors, self.boxes, 4)

    def _priors(self, bottom: Blobs) -> np.ndarray:
        return bottom[2].cpu_data().reshape(2, self.sizes[1], 4)

    def _put(self, host: np.ndarray) -> Array:
        """Return a host array on the device, in the net's dtype."""
        return self.device.backend.asarray(host.astype(self.dtype, copy=False))
