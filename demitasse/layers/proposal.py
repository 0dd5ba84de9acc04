"""Proposal: regions that may hold an object, from the scores and boxes of anchors.

Source: Faster R-CNN (rbgirshick/py-faster-rcnn), ``lib/rpn/proposal_layer.py``; the fields:
OpenVINO's and caffe-windows' ``ProposalParameter``.
"""

from __future__ import annotations

import numpy as np

from demitasse.errors import ConfigError, ShapeError
from demitasse.layers.base import Between, Blobs, Exactly, Layer, positive
from demitasse.layers.detection.anchors import anchors, moved, spread
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.registry import register

__all__ = ["Proposal"]

RATIOS, SCALES = (0.5, 1.0, 2.0), (8.0, 16.0, 32.0)


@register("Proposal")
class Proposal(Layer):
    """Move anchors as predicted, drop those that are small or overlap a better one, keep the best.

    Works on the host; no gradient passes, as in Faster R-CNN. How many regions there are is known
    when a pass comes here. Otherwise than there, there may be several images, and equal scores stay
    in order. Not compared with the original.

    Shapes: bottoms scores (N, 2 A, H, W), those of the background first, boxes (N, 4 A, H, W), and
    height, width and scale of each image (N, 3) -> top[0] regions (R, 5): image, x1, y1, x2, y2 in
    pixels; top[1], if there is one, their scores (R, 1). A is the number of ratios x scales.

    Raises:
        ConfigError: A field is not above 0.
        ShapeError: The bottoms do not have these shapes.
    """

    bottoms = Exactly(3)
    tops = Between(1, 2)
    in_place = False
    dynamic_shapes = True
    differentiable = ()
    refuses_gradients = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom, top
        p = self.param.proposal_param
        self.stride = positive(p.feat_stride, "proposal_param.feat_stride")
        base = positive(p.base_size, "proposal_param.base_size")
        ratios, scales = p.ratio or RATIOS, p.scale or SCALES
        if min(*ratios, *scales) <= 0:
            message = (
                f"proposal_param.ratio and scale must be above 0, they are {list(ratios)} and "
                f"{list(scales)}"
            )
            raise ConfigError(message)
        self.anchors = anchors(base, ratios, scales)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        scores, boxes, images = bottom
        count = len(self.anchors)
        n, _, *cells = scores.shape if scores.num_axes == 4 else (0, 0)
        fits = scores.shape == (n, 2 * count, *cells) and boxes.shape == (n, 4 * count, *cells)
        if not fits or images.count != 3 * n:
            message = (
                f"Proposal with {count} anchors needs scores (N, {2 * count}, H, W), boxes "
                f"(N, {4 * count}, H, W) and images (N, 3), not {scores.shape}, {boxes.shape} and "
                f"{images.shape}"
            )
            raise ShapeError(message)
        for blob, width in zip(top, (5, 1), strict=False):
            if blob.shape[1:] != (width,):  # until a pass has come here
                blob.reshape((1, width))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        count = len(self.anchors)
        scores = bottom[0].cpu_data()[:, count:].transpose(0, 2, 3, 1)  # (N, H, W, A)
        n, *cells = scores.shape[:3]
        deltas = bottom[1].cpu_data().transpose(0, 2, 3, 1).reshape(*scores.shape, 4)
        images = bottom[2].cpu_data().reshape(n, 3)
        placed = spread(self.anchors, (cells[0], cells[1]), self.stride).astype(deltas.dtype)
        with np.errstate(over="ignore"):
            boxes = moved(placed, deltas)
        found = [
            self._choose(boxes[i].reshape(-1, 4), scores[i].reshape(-1), images[i])
            for i in range(n)
        ]
        regions = np.concatenate(
            [np.insert(kept, 0, i, axis=1) for i, (kept, _) in enumerate(found)]
        )
        top[0].reshape(regions.shape)
        top[0].mutable_cpu_data()[...] = regions
        if len(top) > 1:
            best = np.concatenate([score for _, score in found])
            top[1].reshape((len(best), 1))
            top[1].mutable_cpu_data()[...] = best[:, None]

    def _choose(
        self, boxes: np.ndarray, scores: np.ndarray, image: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of an image and their scores, the best first.

        Args:
            boxes: Shape: (K, 4).
            scores: Shape: (K,).
            image: Height, width and scale.
        """
        p, (height, width, scale) = self.param.proposal_param, image.tolist()
        boxes = np.clip(boxes, 0, np.array([width - 1, height - 1] * 2, boxes.dtype))
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= p.min_size * scale).all(axis=1)
        candidates = np.flatnonzero(large)
        order = candidates[np.argsort(-scores[candidates], kind="stable")]
        order = order[: p.pre_nms_topn or None]
        ends = boxes[order] + np.array([0, 0, 1, 1], boxes.dtype)  # behind the last pixels
        order = order[suppress(ends, p.nms_thresh)][: p.post_nms_topn or None]
        return boxes[order], scores[order]
