"""Proposal and BoxAnnotatorOHEM: regions of R-CNN."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.layers.detection.proposal import base_anchors
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)


def test_anchors_are_those_of_faster_rcnn():
    made = base_anchors(16, (0.5, 1, 2), (8, 16, 32))

    expected = [
        [-84, -40, 99, 55], [-176, -88, 191, 103], [-360, -184, 375, 199],
        [-56, -56, 71, 71], [-120, -120, 135, 135], [-248, -248, 263, 263],
        [-36, -80, 51, 95], [-80, -168, 95, 183], [-168, -344, 183, 359],
    ]  # fmt: skip
    np.testing.assert_array_equal(made, expected)


class TestProposal:
    FIELDS = "base_size: 8 ratio: 1 scale: 1 scale: 2 feat_stride: 8 min_size: 4"

    @classmethod
    def text(cls, more=""):
        return f'type: "Proposal" top: "a" top: "b" proposal_param {{ {cls.FIELDS} {more} }}'

    @classmethod
    def propose(cls, more="", scores=None, deltas=None, images=((24.0, 32, 1),), **options):
        n = len(images)
        scores = RNG.random((n, 4, 3, 4)) if scores is None else scores
        deltas = np.zeros((n, 8, 3, 4)) if deltas is None else deltas
        return make_layer(cls.text(more), [scores, deltas, np.array(images)], **options).forward()

    @staticmethod
    def overlap(a, b):
        wide = min(a[2], b[2]) - max(a[0], b[0]) + 1
        tall = min(a[3], b[3]) - max(a[1], b[1]) + 1
        areas = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
        return max(wide, 0) * max(tall, 0) / (sum(areas) - max(wide, 0) * max(tall, 0))

    def loop(self, scores, deltas, image, least, most, keep, limit):
        """Every step as it is described, box by box."""
        boxes = []
        for y in range(3):
            for x in range(4):
                for a, side in enumerate((8, 16)):
                    dx, dy, dw, dh = deltas[4 * a : 4 * a + 4, y, x]
                    cx = 8 * x + 3.5 + 0.5 + dx * side
                    cy = 8 * y + 3.5 + 0.5 + dy * side
                    w, h = np.exp(dw) * side, np.exp(dh) * side
                    box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
                    box = [min(max(v, 0), image[1 - i % 2] - 1) for i, v in enumerate(box)]
                    if min(box[2] - box[0], box[3] - box[1]) + 1 >= least * image[2]:
                        boxes.append((scores[2 + a, y, x], box))
        boxes.sort(key=lambda one: -one[0])
        kept = []
        for score, box in boxes[:most]:
            if all(self.overlap(box, other) <= limit for _, other in kept):
                kept.append((score, box))
        return kept[:keep]

    @pytest.mark.parametrize(("most", "keep", "limit"), [(24, 300, 0.7), (10, 3, 0.2), (5, 5, 1)])
    def test_against_a_loop(self, most, keep, limit, backend):
        images = np.array([[24.0, 32, 1], [20, 30, 2.5]])
        scores = RNG.permutation(np.linspace(0, 1, 96)).reshape(2, 4, 3, 4)
        deltas = RNG.normal(0, 0.3, (2, 8, 3, 4))
        more = f"pre_nms_topn: {most} post_nms_topn: {keep} nms_thresh: {limit}"

        regions, best = self.propose(more, scores, deltas, images, device=backend)

        expected = [
            [i, *box, score]
            for i in range(2)
            for score, box in self.loop(scores[i], deltas[i], images[i], 4, most, keep, limit)
        ]
        found = np.concatenate([regions, best], axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    def test_nothing_large_enough_is_no_region(self):
        regions, best = self.propose(images=((24.0, 32, 9),))

        assert regions.shape == (0, 5)
        assert best.shape == (0, 1)

    @pytest.mark.parametrize("field", ["feat_stride: 0", "base_size: 0", "ratio: 0"])
    def test_fields_of_0_are_refused(self, field):
        text = f'type: "Proposal" proposal_param {{ {field} }}'

        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, mentions="proposal_param"):
            make_layer(text, [np.zeros((1, 18, 2, 2)), np.zeros((1, 36, 2, 2)), np.zeros((1, 3))])

    def test_another_number_of_anchors_is_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["Proposal", "2 anchors"]):
            self.propose(scores=np.zeros((1, 6, 3, 4)))


class TestBoxAnnotatorOHEM:
    ROIS = np.array([[0, 0, 0, 9, 9], [1, 0, 0, 9, 9], [0, 1, 1, 5, 5], [0, 2, 2, 8, 8.0]])
    LOSSES = np.array([[0.1], [0.2], [0.9], [0.5]])
    LABELS = np.array([[3.0], [1], [2], [0]])
    WEIGHTS = np.arange(1.0, 9).reshape(4, 2)

    @staticmethod
    def text(fields="roi_per_img: 2"):
        return f'type: "BoxAnnotatorOHEM" box_annotator_ohem_param {{ {fields} }}'

    def test_the_worst_regions_of_each_image_are_kept(self, backend):
        bottoms = [self.ROIS, self.LOSSES, self.LABELS, self.WEIGHTS]
        one = make_layer(self.text(), bottoms, device=backend)

        labels, weights = one.forward()

        assert labels.tolist() == [[-1], [1], [2], [0]]
        assert weights.tolist() == [[0, 0], [3, 4], [5, 6], [7, 8]]

    def test_another_label_may_be_ignored(self):
        bottoms = [self.ROIS, self.LOSSES, self.LABELS, self.WEIGHTS]

        labels, _ = make_layer(self.text("roi_per_img: 1 ignore_label: 255"), bottoms).forward()

        assert labels.tolist() == [[255], [1], [2], [255]]

    def test_regions_may_have_places(self):
        bottoms = [
            np.stack([self.ROIS, self.ROIS], axis=-1)[..., None],
            np.stack([self.LOSSES, self.LOSSES + 1], axis=-1)[..., None],
            np.stack([self.LABELS, self.LABELS], axis=-1)[..., None],
            np.stack([self.WEIGHTS, self.WEIGHTS], axis=-1)[..., None],
        ]

        labels, weights = make_layer(self.text(), bottoms).forward()

        assert labels[:, 0, :, 0].tolist() == [[-1, -1], [1, 1], [-1, 2], [-1, 0]]
        assert weights[2, :, :, 0].tolist() == [[0, 5], [0, 6]]

    def test_refused(self):
        bottoms = [self.ROIS, self.LOSSES, self.LABELS, self.WEIGHTS]

        with expect_error(
            ConfigError, ErrorCode.OUT_OF_RANGE, field="box_annotator_ohem_param.roi_per_img"
        ):
            make_layer(self.text(""), bottoms)
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(R, 5)"):
            make_layer(self.text(), [self.ROIS[:, :4], *bottoms[1:]])
