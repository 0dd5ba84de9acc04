"""Proposal: regions that may contain an object, from the scores and boxes of anchors.

Anchors are boxes (x1, y1, x2, y2) in pixels, the last ones included.

Source: Faster R-CNN (rbgirshick/py-faster-rcnn), ``lib/rpn/proposal_layer.py``,
``lib/rpn/generate_anchors.py``, ``lib/fast_rcnn/bbox_transform.py``; the fields: OpenVINO's and
caffe-windows' ``ProposalParameter``.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.detection.boxes import suppress
from demitasse.layers.registry import register_layer


def base_anchors(base: int, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """Return boxes (ratios x scales, 4) with one centre in every shape and size, shapes first.

    At scale 1, all boxes have the area of a square at 0 with sides of ``base`` pixels. Ratios are
    height over width; sides are rounded to whole pixels.
    """
    centre, made = (base - 1) / 2, []
    for ratio in ratios:
        width = np.rint(np.sqrt(base * base / ratio))
        height = np.rint(width * ratio)
        for scale in scales:
            half = (np.array([width, height]) * scale - 1) / 2
            made.append(np.concatenate([centre - half, centre + half]))
    return np.array(made)


def tile_anchors(boxes: np.ndarray, cells: tuple[int, int], stride: int) -> np.ndarray:
    """Return boxes for every cell of a map of a height and a width, ``stride`` pixels apart.

    Shapes: boxes of the first cell (A, 4) -> (height, width, A, 4).
    """
    y, x = np.meshgrid(*(np.arange(n) * stride for n in cells), indexing="ij")
    every: np.ndarray = boxes + np.stack([x, y, x, y], axis=-1)[:, :, None, :]
    return every


def apply_deltas(boxes: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Return boxes with centres shifted in proportion and sides scaled.

    Deltas are the shift of the centre (x, y) and logarithms of the factors. Shapes: (..., 4).
    """
    size = boxes[..., 2:] - boxes[..., :2] + 1
    centre = boxes[..., :2] + size / 2 + deltas[..., :2] * size
    half = np.exp(deltas[..., 2:]) * size / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


RATIOS, SCALES = (0.5, 1.0, 2.0), (8.0, 16.0, 32.0)


@register_layer("Proposal")
class Proposal(Layer):
    """Move anchors as predicted, drop those that are small or overlap a better one, keep the best.

    Runs on the host; no gradient passes, as in Faster R-CNN. The number of regions is known only
    during forward. Unlike there, a batch may have several images, and equal scores stay in order.
    Not compared with the original.

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
    rows_axis = 0
    differentiable = ()
    strict_propagate_down = False

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.proposal_param
        self.stride = positive(p.feat_stride, "proposal_param.feat_stride")
        base = positive(p.base_size, "proposal_param.base_size")
        ratios, scales = p.ratio or RATIOS, p.scale or SCALES
        if min(*ratios, *scales) <= 0:
            values = [*ratios, *scales]
            raise out_of_range("proposal_param.ratio and scale", values, "numbers above 0")
        self.anchors = base_anchors(base, ratios, scales)  # boxes of the first cell, (A, 4)
        self.least, self.overlap = p.min_size, p.nms_thresh
        self.looked_at, self.keep = p.pre_nms_topn, p.post_nms_topn  # 0 for all

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        scores, boxes, images = bottom
        count = len(self.anchors)
        n, _, *cells = scores.shape if scores.num_axes == 4 else (0, 0)
        fits = scores.shape == (n, 2 * count, *cells) and boxes.shape == (n, 4 * count, *cells)
        if not fits or images.count != 3 * n:
            expected = (
                f"scores (N, {2 * count}, H, W), boxes (N, {4 * count}, H, W) and images (N, 3) "
                f"for {count} anchors"
            )
            raise wrong_shapes("Proposal", expected, *bottom)
        for blob, width in zip(top, (5, 1), strict=False):
            if blob.shape[1:] != (width,):  # before the first pass
                blob.reshape((1, width))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        regions, scores = self.propose(
            bottom[0].cpu_data(), bottom[1].cpu_data(), bottom[2].cpu_data().reshape(-1, 3)
        )
        for blob, values in zip(top, (regions, scores), strict=False):
            blob.reshape(values.shape)
            blob.mutable_cpu_data()[...] = values

    def propose(
        self, scores: np.ndarray, deltas: np.ndarray, images: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of a batch with their image indices, (R, 5), and the scores, (R, 1).

        Shapes: scores of the background, then of objects, (N, 2 A, H, W); deltas of the anchors
        (N, 4 A, H, W); images (N, 3): height, width and scale.
        """
        scores = scores[:, len(self.anchors) :].transpose(0, 2, 3, 1)  # (N, H, W, A)
        n, height, width = scores.shape[:3]
        deltas = deltas.transpose(0, 2, 3, 1).reshape(*scores.shape, 4)
        placed = tile_anchors(self.anchors, (height, width), self.stride).astype(deltas.dtype)
        with np.errstate(over="ignore"):
            boxes = apply_deltas(placed, deltas)
        regions, best = [np.empty((0, 5), boxes.dtype)], [np.empty((0, 1), scores.dtype)]
        for i in range(n):
            kept, score = self._choose(boxes[i].reshape(-1, 4), scores[i].reshape(-1), images[i])
            regions.append(np.insert(kept, 0, i, axis=1))
            best.append(score[:, None])
        return np.concatenate(regions), np.concatenate(best)

    def _choose(
        self, boxes: np.ndarray, scores: np.ndarray, image: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of an image and their scores, the best first. Shapes: (K, 4), (K,)."""
        height, width, scale = image.tolist()
        boxes = np.clip(boxes, 0, np.array([width - 1, height - 1] * 2, boxes.dtype))
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= self.least * scale).all(axis=1)
        candidates = np.flatnonzero(large)
        order = candidates[np.argsort(-scores[candidates], kind="stable")]
        order = order[: self.looked_at or None]
        ends = boxes[order] + np.array([0, 0, 1, 1], boxes.dtype)  # the ends are exclusive
        order = order[suppress(ends, self.overlap)][: self.keep or None]
        return boxes[order], scores[order]
