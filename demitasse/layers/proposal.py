"""Proposal: regions that may hold an object, from the scores and boxes of anchors.

Source: Faster R-CNN (rbgirshick/py-faster-rcnn), ``lib/rpn/proposal_layer.py``; the fields:
OpenVINO's and caffe-windows' ``ProposalParameter``.
"""

from __future__ import annotations

from demitasse.layers.base import Between, Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive, wrong_shapes
from demitasse.layers.detection.anchors import anchors
from demitasse.layers.detection.proposals import Proposer
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
        stride = positive(p.feat_stride, "proposal_param.feat_stride")
        base = positive(p.base_size, "proposal_param.base_size")
        ratios, scales = p.ratio or RATIOS, p.scale or SCALES
        if min(*ratios, *scales) <= 0:
            values = [*ratios, *scales]
            raise out_of_range("proposal_param.ratio and scale", values, "numbers above 0")
        self.proposer = Proposer(
            anchors=anchors(base, ratios, scales),
            stride=stride,
            least=p.min_size,
            looked_at=p.pre_nms_topn,
            keep=p.post_nms_topn,
            overlap=p.nms_thresh,
        )

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        scores, boxes, images = bottom
        count = len(self.proposer.anchors)
        n, _, *cells = scores.shape if scores.num_axes == 4 else (0, 0)
        fits = scores.shape == (n, 2 * count, *cells) and boxes.shape == (n, 4 * count, *cells)
        if not fits or images.count != 3 * n:
            expected = (
                f"scores (N, {2 * count}, H, W), boxes (N, {4 * count}, H, W) and images (N, 3) "
                f"for {count} anchors"
            )
            raise wrong_shapes("Proposal", expected, *bottom)
        for blob, width in zip(top, (5, 1), strict=False):
            if blob.shape[1:] != (width,):  # until a pass has come here
                blob.reshape((1, width))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        regions, scores = self.proposer(
            bottom[0].cpu_data(), bottom[1].cpu_data(), bottom[2].cpu_data().reshape(-1, 3)
        )
        for blob, values in zip(top, (regions, scores), strict=False):
            blob.reshape(values.shape)
            blob.mutable_cpu_data()[...] = values
