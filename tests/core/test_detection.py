"""Boxes: priors, decoding and suppression, against plain loops over single boxes."""

import math

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import NetError
from demitasse.layers.detection.boxes import overlaps, suppress
from demitasse.layers.detection.detection_output import Detector
from demitasse.layers.detection.prior_box import box_sizes, prior_boxes

RNG = np.random.default_rng(0)


def overlap(a, b):
    """Intersection over union of two boxes, corner by corner."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0

    def size(box):
        return (box[2] - box[0]) * (box[3] - box[1])

    return wide * high / (size(a) + size(b) - wide * high)


def some_boxes(count, rng=RNG):
    corner = rng.uniform(0, 0.7, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(0.05, 0.3, (count, 2))], axis=1)


class TestSizes:
    def test_squares_come_first_and_ratio_1_only_once(self):
        assert box_sizes([30], [60], [1, 2], flip=False) == (
            (30, 30),
            pytest.approx((math.sqrt(1800),) * 2),
            pytest.approx((30 * math.sqrt(2), 30 / math.sqrt(2))),
        )

    def test_flipped_ratios_follow_their_own(self):
        sizes = box_sizes([10, 20], [], [2], flip=True)

        assert [round(width / height, 6) for width, height in sizes] == [1, 2, 0.5] * 2

    def test_repeated_ratios_do_not_count(self):
        assert len(box_sizes([10], [], [2, 0.5, 2, 1], flip=True)) == 3

    def test_fractions_of_pixels_are_cut_off(self):
        assert box_sizes([30.9], [60.9], [], flip=False) == ((30, 30), (math.sqrt(1800),) * 2)


class TestPriors:
    def test_against_a_loop(self):
        sizes, offsets = ((8, 8), (4, 12)), ((0.5, 0.5), (1.0, 0.25))

        boxes = prior_boxes((2, 3), (40, 60), (20, 16), offsets, sizes)

        assert boxes.shape == (2, 3, 4, 4)
        for row in range(2):
            for column in range(3):
                i = 0
                for width, height in sizes:
                    for y, x in offsets:
                        centre = ((column + x) * 16, (row + y) * 20)
                        expected = [
                            (centre[0] - width / 2) / 60,
                            (centre[1] - height / 2) / 40,
                            (centre[0] + width / 2) / 60,
                            (centre[1] + height / 2) / 40,
                        ]
                        np.testing.assert_allclose(boxes[row, column, i], expected)
                        i += 1


class TestOverlaps:
    def test_against_a_loop(self):
        boxes = some_boxes(50)

        found = overlaps(boxes[0], boxes)

        np.testing.assert_allclose(found, [overlap(boxes[0], box) for box in boxes])
        assert found[0] == 1
        assert (found == 0).any()

    @pytest.mark.parametrize(
        "other",
        [(2, 0, 3, 1), (1, 0, 2, 1), (0.8, 0.2, 0.2, 0.8), (0, 0, 0, 0)],
        ids=["apart", "touching", "sides swapped", "empty"],
    )
    def test_nothing_in_common(self, other):
        assert overlaps(np.array([0.0, 0, 1, 1]), np.array([other], float)) == [0]


def loop_suppress(boxes, threshold, eta):
    """One box after the other, against all that stay."""
    kept = []
    for i, box in enumerate(boxes):
        if all(overlap(box, boxes[k]) <= threshold for k in kept):
            kept.append(i)
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept


class TestSuppress:
    @pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.6, 0.9, 1.0])
    @pytest.mark.parametrize("eta", [1.0, 0.9, 0.5])
    def test_against_a_loop(self, threshold, eta):
        boxes = some_boxes(120)

        assert suppress(boxes, threshold, eta) == loop_suppress(boxes, threshold, eta)

    def test_of_equal_boxes_the_first_stays(self):
        assert suppress(np.array([[0.0, 0, 1, 1]] * 3), 0.5) == [0]

    def test_it_may_end_once_enough_boxes_stay(self):
        boxes = some_boxes(300)
        every = suppress(boxes, 0.3)

        for most in (0, 1, 20, len(every), 300):
            assert suppress(boxes, 0.3, most=most)[:most] == every[:most]

    def test_nothing_to_do(self):
        assert suppress(np.empty((0, 4)), 0.5) == []


def make(**changes):
    fields = {
        "classes": 3,
        "background": 0,
        "code": "CENTER_SIZE",
        "variance_in_target": False,
        "confidence": 0.2,
        "overlap": 0.4,
        "eta": 1.0,
        "top_k": -1,
        "keep": -1,
    }
    return Detector(**(fields | changes))


def decoded(detector, location, prior, variance):
    """The box that one prediction means."""
    scaled = location if detector.variance_in_target else location * variance
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    if detector.code == "CORNER":
        return prior + scaled
    if detector.code == "CORNER_SIZE":
        return prior + scaled * [width, height, width, height]
    x = scaled[0] * width + (prior[0] + prior[2]) / 2
    y = scaled[1] * height + (prior[1] + prior[3]) / 2
    w, h = math.exp(scaled[2]) * width, math.exp(scaled[3]) * height
    return np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])


def loop_detect(d, location, score, prior):
    """The rows of all images, box by box."""
    rows = []
    for image in range(len(score)):
        found = []  # (score, class, place, box)
        for c in range(d.classes):
            if c == d.background:
                continue
            boxes = [
                decoded(d, location[image, p, c if location.shape[2] > 1 else 0], *prior[:, p])
                for p in range(score.shape[1])
            ]
            order = sorted(range(len(boxes)), key=lambda p: -score[image, p, c])
            order = [p for p in order if score[image, p, c] > d.confidence]
            order = order[: d.top_k] if d.top_k > -1 else order
            kept = loop_suppress([boxes[p] for p in order], d.overlap, d.eta)
            found += [(score[image, order[k], c], c, boxes[order[k]]) for k in kept]
        if d.keep > -1:
            found = sorted(found, key=lambda one: -one[0])[: d.keep]
            found.sort(key=lambda one: one[1])
        rows += [[image, c, s, *box] for s, c, box in found]
    return np.array(rows)


class TestDetector:
    PRIORS, IMAGES = 40, 2
    PRIOR = np.stack([some_boxes(PRIORS), np.tile([0.1, 0.1, 0.2, 0.2], (PRIORS, 1))])
    SCORE = RNG.dirichlet(np.ones(3), (IMAGES, PRIORS))

    def location(self, classes=1):
        return RNG.normal(0, 1, (self.IMAGES, self.PRIORS, classes, 4))

    @pytest.mark.parametrize("code", ["CORNER", "CENTER_SIZE", "CORNER_SIZE"])
    @pytest.mark.parametrize("in_target", [False, True])
    def test_codes_against_a_loop(self, code, in_target):
        detector = make(code=code, variance_in_target=in_target)
        location = self.location() * (0.1 if in_target else 1)

        rows = detector(location, self.SCORE, self.PRIOR)

        np.testing.assert_allclose(rows, loop_detect(detector, location, self.SCORE, self.PRIOR))

    @pytest.mark.parametrize(
        "changes",
        [
            {"top_k": 5},
            {"top_k": 0, "keep": 3},
            {"keep": 4},
            {"keep": 1000},
            {"background": -1},
            {"background": 2, "overlap": 0.8, "eta": 0.8},
            {"confidence": 0.7},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("classes", [1, 3], ids=["shared", "per class"])
    def test_options_against_a_loop(self, changes, classes):
        detector, location = make(**changes), self.location(classes)
        expected = loop_detect(detector, location, self.SCORE, self.PRIOR)

        rows = detector(location, self.SCORE, self.PRIOR)

        if len(expected):
            np.testing.assert_allclose(rows, expected)
        else:
            np.testing.assert_array_equal(rows[:, 1:], -1)

    def test_an_image_without_detections_has_no_row(self):
        score = self.SCORE.copy()
        score[0] = 0

        rows = make()(self.location(), score, self.PRIOR)

        assert set(rows[:, 0]) == {1}

    def test_no_detections_at_all_give_a_row_for_each_image(self):
        rows = make(confidence=1.0)(self.location(), self.SCORE, self.PRIOR)

        np.testing.assert_array_equal(rows, [[0, *[-1] * 6], [1, *[-1] * 6]])

    def test_of_equal_scores_the_first_prior_and_class_win(self):
        score = np.full((1, self.PRIORS, 3), 0.5)
        detector = make(overlap=1.0, keep=self.PRIORS + 1)

        rows = detector(self.location()[:1], score, self.PRIOR)

        assert list(rows[:, 1]) == [1] * self.PRIORS + [2]

    def test_an_empty_prior_is_refused(self):
        prior = self.PRIOR.copy()
        prior[0, 7, 2] = prior[0, 7, 0]

        with expect_error(NetError, mentions="7"):
            make()(self.location(), self.SCORE, prior)

    def test_corners_do_not_need_priors_with_a_size(self):
        detector = make(code="CORNER")

        rows = detector(self.location(), self.SCORE, np.zeros_like(self.PRIOR))

        assert rows.shape[1] == 7
