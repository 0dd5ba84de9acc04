"""MultiBoxLoss: values computed by hand, gradients, and what it refuses."""

import math

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

CLASSES = 3
PRIOR = np.array([[0, 0, 0.4, 0.4], [0.1, 0.1, 0.5, 0.5], [0.5, 0.5, 0.9, 0.9], [0.6, 0, 1, 0.4]])
VARIANCE = np.tile([0.1, 0.1, 0.2, 0.2], (4, 1))
PRIORS = np.stack([PRIOR, VARIANCE]).reshape(1, 2, -1)
# image, class, instance, box, difficult
OBJECTS = np.array(
    [
        [0, 1, 0, 0, 0, 0.4, 0.5, 0],
        [0, 2, 0, 0.5, 0.6, 0.9, 0.9, 0],
        [1, 1, 0, 0.1, 0.1, 0.5, 0.4, 1],
    ]
).reshape(1, 1, -1, 8)
RNG = np.random.default_rng(4)
LOCATION = RNG.normal(0, 0.7, (2, 4 * 4))
SCORES = RNG.permutation(np.linspace(-2, 2, 2 * 4 * CLASSES)).reshape(2, -1)


def text(fields="", more=""):
    if "num_classes" not in fields:
        fields += f" num_classes: {CLASSES}"
    return f'type: "MultiBoxLoss" {more} multibox_loss_param {{ {fields} }}'


def loss(fields="", more="", bottoms=None, **options):
    one = make_layer(text(fields, more), bottoms or [LOCATION, SCORES, PRIORS, OBJECTS], **options)
    [value] = one.forward()
    return float(value)


def cross_entropy(scores, label):
    return math.log(sum(math.exp(s) for s in scores)) - scores[label]


def smooth(x):
    return x * x / 2 if abs(x) < 1 else abs(x) - 0.5


def overlap(a, b):
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if w <= 0 or h <= 0:
        return 0.0
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return w * h / (sum(areas) - w * h)


def center_size(box, prior, variance):
    size = [prior[2] - prior[0], prior[3] - prior[1]]
    wide, tall = box[2] - box[0], box[3] - box[1]
    x = (box[0] + box[2] - prior[0] - prior[2]) / 2 / size[0]
    y = (box[1] + box[3] - prior[1] - prior[3]) / 2 / size[1]
    code = [x, y, math.log(wide / size[0]), math.log(tall / size[1])]
    return [c / v for c, v in zip(code, variance, strict=True)]


CODES = {
    "CORNER": lambda box, prior, variance: (box - prior) / variance,
    "CORNER_SIZE": lambda box, prior, variance: (box - prior) / 0.4 / variance,
    "CENTER_SIZE": center_size,
}
BOXES = [OBJECTS[0, 0, i, 3:7] for i in range(3)]


class TestValues:
    """Priors 0 and 2 have the objects of the first image, prior 1 that of the second."""

    MATCHED = ((0, 0, 0, 1), (0, 2, 1, 2), (1, 1, 2, 1))  # image, prior, object, class

    def of_boxes(self, code="CORNER", one=smooth):
        return sum(
            one(p - w)
            for n, i, j, _ in self.MATCHED
            for p, w in zip(
                LOCATION[n].reshape(4, 4)[i],
                CODES[code](BOXES[j], PRIOR[i], VARIANCE[i]),
                strict=True,
            )
        )

    def of_classes(self, chosen):
        return sum(cross_entropy(SCORES[n].reshape(4, -1)[i], c) for n, i, c in chosen)

    def every(self):
        labels = {(n, i): c for n, i, _, c in self.MATCHED}
        return [(n, i, labels.get((n, i), 0)) for n in range(2) for i in range(4)]

    @pytest.mark.parametrize("code", CODES)
    def test_boxes_are_compared_in_their_code(self, code, backend):
        fields = f"code_type: {code} match_type: BIPARTITE mining_type: NONE"

        value = loss(fields, device=backend)

        expected = (self.of_boxes(code) + self.of_classes(self.every())) / 3
        assert value == pytest.approx(expected, rel=1e-5)

    def test_variances_on_both_sides_make_no_difference(self):
        fields = "code_type: CENTER_SIZE match_type: BIPARTITE mining_type: NONE"
        scaled = (LOCATION.reshape(2, 4, 4) * VARIANCE).reshape(2, -1)

        value = loss(
            fields + " encode_variance_in_target: true", bottoms=[scaled, SCORES, PRIORS, OBJECTS]
        )

        assert value == pytest.approx(loss(fields), rel=1e-5)

    def test_squared_errors_weights_and_the_whole_number_of_priors(self):
        fields = "loc_loss_type: L2 loc_weight: 2.5 match_type: BIPARTITE mining_type: NONE"

        value = loss(fields, "loss_param { normalization: FULL }")

        boxes = self.of_boxes(one=lambda x: x * x / 2)
        assert value == pytest.approx((2.5 * boxes + self.of_classes(self.every())) / 8, rel=1e-5)

    @pytest.mark.parametrize(
        ("mode", "divisor"), [("VALID", 3), ("BATCH_SIZE", 2), ("FULL", 8), ("NONE", 1)]
    )
    def test_normalizations(self, mode, divisor):
        fields = "match_type: BIPARTITE mining_type: NONE"

        value = loss(fields, f"loss_param {{ normalization: {mode} }}")

        assert value * divisor == pytest.approx(loss(fields) * 3, rel=1e-5)

    def test_a_prior_that_overlaps_an_object_enough_has_it_too(self):
        assert overlap(PRIOR[1], BOXES[0]) == pytest.approx(0.12 / 0.24)
        fields = "mining_type: NONE overlap_threshold: "

        wide, narrow = loss(fields + "0.49"), loss(fields + "0.51")

        more = sum(
            smooth(p - w)
            for p, w in zip(
                LOCATION[0].reshape(4, 4)[1], (BOXES[0] - PRIOR[1]) / VARIANCE[1], strict=True
            )
        )
        labels = [(n, i, 1 if (n, i) == (0, 1) else c) for n, i, c in self.every()]
        expected = (self.of_boxes() + more + self.of_classes(labels)) / 4
        assert wide == pytest.approx(expected, rel=1e-5)
        assert narrow == pytest.approx(loss("match_type: BIPARTITE mining_type: NONE"), rel=1e-6)

    def test_of_unmatched_priors_the_worst_count(self):
        value = loss("match_type: BIPARTITE neg_pos_ratio: 0.5 neg_overlap: 0.9")

        negatives = []
        for n, taken in ((0, (0, 2)), (1, (1,))):
            left = [(n, i, 0) for i in range(4) if i not in taken]
            left.sort(key=lambda one: -self.of_classes([one]))
            negatives += left[: int(len(taken) * 0.5)]
        assert len(negatives) == 1
        chosen = [(n, i, c) for n, i, _, c in self.MATCHED] + negatives
        assert value == pytest.approx((self.of_boxes() + self.of_classes(chosen)) / 3, rel=1e-5)

    def test_a_prior_that_nearly_fits_is_no_negative(self):
        fields = "match_type: BIPARTITE neg_pos_ratio: 9 neg_overlap: "

        none, some = loss(fields + "0"), loss(fields + "0.4")

        matched = [(n, i, c) for n, i, _, c in self.MATCHED]
        assert none == pytest.approx((self.of_boxes() + self.of_classes(matched)) / 3, rel=1e-5)
        far = [
            (n, i, 0)
            for n, i, c in self.every()
            if c == 0 and max(overlap(PRIOR[i], BOXES[j]) for j in ((0, 1), (2,))[n]) < 0.4
        ]
        assert 0 < len(far) < 5
        chosen = matched + far
        assert some == pytest.approx((self.of_boxes() + self.of_classes(chosen)) / 3, rel=1e-5)

    def test_hard_examples_are_the_worst_of_all(self):
        value = loss("match_type: BIPARTITE mining_type: HARD_EXAMPLE sample_size: 2")

        boxes, classes, matches = 0.0, 0.0, 0
        for n in range(2):
            each = []
            for i in range(4):
                found = [(j, c) for m, k, j, c in self.MATCHED if (m, k) == (n, i)]
                label = found[0][1] if found else 0
                box = 0.0
                for j, _ in found:
                    wanted = (BOXES[j] - PRIOR[i]) / VARIANCE[i]
                    box = sum(map(smooth, LOCATION[n].reshape(4, 4)[i] - wanted))
                each.append((box, self.of_classes([(n, i, label)]), len(found)))
            each.sort(key=lambda one: -one[0] - one[1])
            for box, kind, found in each[:2]:
                boxes, classes, matches = boxes + box, classes + kind, matches + found
        assert value == pytest.approx((boxes + classes) / max(matches, 1), rel=1e-5)

    def test_yes_or_no_for_every_class(self):
        value = loss("conf_loss_type: LOGISTIC match_type: BIPARTITE mining_type: NONE")

        classes = sum(
            math.log1p(math.exp(s)) - s * (k == c)
            for n, i, c in self.every()
            for k, s in enumerate(SCORES[n].reshape(4, -1)[i])
        )
        assert value == pytest.approx((self.of_boxes() + classes) / 3, rel=1e-5)

    def test_difficult_objects_may_be_left_out(self):
        fields = "match_type: BIPARTITE mining_type: NONE use_difficult_gt: false"

        assert loss(fields) == pytest.approx(
            loss(
                "match_type: BIPARTITE mining_type: NONE",
                bottoms=[LOCATION, SCORES, PRIORS, OBJECTS[:, :, :2]],
            ),
            rel=1e-6,
        )

    def test_without_objects_there_is_nothing_to_lose_but_classes(self):
        bottoms = [LOCATION, SCORES, PRIORS, np.full((1, 1, 1, 8), -1.0)]

        background = self.of_classes([(n, i, 0) for n in range(2) for i in range(4)])
        assert loss("mining_type: NONE", bottoms=bottoms) == pytest.approx(background, rel=1e-5)
        assert loss(bottoms=bottoms) == 0

    def test_a_part_that_is_not_trained_does_not_count(self):
        fields = "match_type: BIPARTITE mining_type: NONE"
        flags = " ".join(f"propagate_down: {flag}" for flag in ("true", "false", "false", "false"))

        assert loss(fields, flags) == pytest.approx(self.of_boxes() / 3, rel=1e-5)


class TestMatching:
    def test_boxes_of_each_class_have_objects_of_their_own(self):
        location = np.tile(LOCATION.reshape(2, 4, 1, 4), (1, 1, CLASSES, 1)).reshape(2, -1)
        bottoms = [location, SCORES, PRIORS, OBJECTS]
        shared = "match_type: BIPARTITE mining_type: NONE"

        value = loss(shared + " share_location: false", bottoms=bottoms)

        assert value == pytest.approx(loss(shared), rel=1e-6)

    def test_predicted_boxes_that_leave_the_picture_are_no_match_of_any_class(self):
        away = np.zeros((2, 4, CLASSES, 4))
        away[:, 0] = -1  # class 1 has one object in either image, class 0 none
        fields = "share_location: false use_prior_for_matching: false mining_type: NONE"
        bottoms = [away.reshape(2, -1), SCORES, PRIORS, OBJECTS]

        one = make_layer(text(f"{fields} ignore_cross_boundary_bbox: true"), bottoms)
        one.forward()

        assert not one.backward(1.0)[0].reshape(away.shape)[:, 0].any()

    def test_predicted_boxes_may_be_matched(self):
        away = np.zeros((2, 4, 4))
        away[0, 3] = (BOXES[0] - PRIOR[3]) / VARIANCE[3]  # says where the object is
        bottoms = [away.reshape(2, -1), SCORES, PRIORS, OBJECTS[:, :, :1]]
        fields = "match_type: BIPARTITE mining_type: NONE use_prior_for_matching: false"

        value = loss(fields, bottoms=bottoms)

        labels = [(n, i, 1 if (n, i) == (0, 3) else 0) for n in range(2) for i in range(4)]
        assert value == pytest.approx(TestValues().of_classes(labels), rel=1e-5)

    def test_priors_that_leave_the_picture_are_no_match(self):
        priors = PRIORS.copy()
        priors[0, 0, :4] -= 0.1
        fields = "match_type: BIPARTITE mining_type: NONE ignore_cross_boundary_bbox: true"
        bottoms = [LOCATION, SCORES, priors, OBJECTS[:, :, :1]]

        one = make_layer(text(fields), bottoms)
        one.forward()
        gradient = one.backward(1.0)[0].reshape(2, 4, 4)

        assert [(n, i) for n in range(2) for i in range(4) if gradient[n, i].any()] == [(0, 1)]

    def test_corners_outside_the_picture_want_nothing(self):
        priors = PRIORS.copy()
        priors[0, 0, :4] -= (0.1, 0.1, 0, 0)
        fields = "match_type: BIPARTITE mining_type: NONE bp_inside: true"

        one = make_layer(text(fields), [LOCATION, SCORES, priors, OBJECTS[:, :, :1]])
        one.forward()
        gradient = one.backward(1.0)[0].reshape(2, 4, 4)[0, 0]

        assert (gradient != 0).tolist() == [False, False, True, True]

    def test_all_objects_may_be_one_class(self):
        scores = SCORES.reshape(2, 4, CLASSES)[..., :2].reshape(2, -1)
        objects = OBJECTS.copy()
        objects[..., 1] = 1
        fields = "num_classes: 2 match_type: BIPARTITE mining_type: NONE"
        bottoms = [LOCATION, scores, PRIORS, objects]

        agnostic = loss(fields + " map_object_to_agnostic: true", bottoms=bottoms)

        assert agnostic == pytest.approx(loss(fields, bottoms=bottoms))

    def test_of_negatives_that_overlap_one_is_mined(self):
        priors = np.stack([PRIOR[[0, 2, 2, 3]], VARIANCE]).reshape(1, 2, -1)
        bottoms = [LOCATION, SCORES, priors, OBJECTS[:, :, :1]]
        fields = "match_type: BIPARTITE neg_pos_ratio: 3 use_prior_for_nms: true nms_param {"

        one = make_layer(text(fields + " nms_threshold: 0.9 }"), bottoms)
        one.forward()
        counted = one.backward(1.0)[1].reshape(2, 4, CLASSES)[0].any(axis=1)

        assert counted[[0, 3]].all()
        assert counted[[1, 2]].sum() == 1


@pytest.mark.parametrize(
    "fields",
    [
        "",
        "code_type: CENTER_SIZE loc_weight: 2",
        "code_type: CORNER_SIZE encode_variance_in_target: true",
        "loc_loss_type: L2 mining_type: NONE",
        "conf_loss_type: LOGISTIC neg_pos_ratio: 1",
        "mining_type: HARD_EXAMPLE sample_size: 3",
        "match_type: BIPARTITE bp_inside: true",
    ],
)
def test_gradients(fields, backend):
    expect_gradients(
        text(fields), LOCATION, SCORES, PRIORS, OBJECTS, check_bottom=(0, 1), device=backend
    )


def test_whoever_asks_for_gradients_of_labels_and_priors_gets_none():
    one = make_layer(text(), [LOCATION, SCORES, PRIORS, OBJECTS])
    one.forward()

    gradients = one.backward(1.0, propagate_down=[True] * 4)

    assert gradients[0].any()
    assert not gradients[2].any()
    assert not gradients[3].any()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ("num_classes: 0", ErrorCode.OUT_OF_RANGE, "multibox_loss_param.num_classes"),
        (
            "background_label_id: 3",
            ErrorCode.OUT_OF_RANGE,
            "multibox_loss_param.background_label_id",
        ),
        ("share_location: false", ErrorCode.CONFLICT, "multibox_loss_param.mining_type"),
        ("do_neg_mining: false", ErrorCode.CONFLICT, "multibox_loss_param.do_neg_mining"),
        (
            "mining_type: HARD_EXAMPLE sample_size: 0",
            ErrorCode.OUT_OF_RANGE,
            "multibox_loss_param.sample_size",
        ),
        (
            "map_object_to_agnostic: true background_label_id: 2",
            ErrorCode.OUT_OF_RANGE,
            "multibox_loss_param.num_classes",
        ),
        ("neg_pos_ratio: -1", ErrorCode.OUT_OF_RANGE, "multibox_loss_param.neg_pos_ratio"),
        ("neg_pos_ratio: inf", ErrorCode.OUT_OF_RANGE, "multibox_loss_param.neg_pos_ratio"),
        ("neg_pos_ratio: nan", ErrorCode.OUT_OF_RANGE, "multibox_loss_param.neg_pos_ratio"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, code, field):
    with expect_error(ConfigError, code, field=field):
        loss(fields)


def test_do_neg_mining_that_agrees_is_let_pass():
    assert loss("do_neg_mining: true") == loss()


@pytest.mark.parametrize(
    ("index", "shape", "mentions"),
    [
        (0, (2, 12), "4"),
        (1, (2, 8), "3"),
        (2, (2, 1, 16), "(1, 2, P 4)"),
        (3, (1, 1, 3, 7), "(1, 1, G, 8)"),
    ],
)
def test_bottoms_that_do_not_fit_are_refused(index, shape, mentions):
    bottoms = [LOCATION, SCORES, PRIORS, OBJECTS]
    bottoms[index] = np.zeros(shape)

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=mentions):
        make_layer(text(), bottoms)


@pytest.mark.parametrize(
    ("column", "value", "mentions"),
    [
        (1, 0, ["1", "0"]),
        (1, 3, ["3", "0"]),
        (0, 2, "2"),
    ],
)
def test_objects_that_cannot_be_are_refused(column, value, mentions):
    objects = OBJECTS.copy()
    objects[0, 0, 1, column] = value

    with expect_error(NetError, ErrorCode.OUT_OF_RANGE, mentions=mentions):
        loss(bottoms=[LOCATION, SCORES, PRIORS, objects])


def test_an_empty_object_is_no_match():
    objects = OBJECTS.copy()
    objects[0, 0, 0, 3] = objects[0, 0, 0, 5] + 0.1
    fields = "code_type: CENTER_SIZE match_type: BIPARTITE"

    without = loss(fields, bottoms=[LOCATION, SCORES, PRIORS, OBJECTS[:, :, 1:]])

    assert loss(fields, bottoms=[LOCATION, SCORES, PRIORS, objects]) == without


def test_nothing_is_in_proportion_to_an_empty_prior():
    priors = PRIORS.copy()
    priors[0, 0, 10] = priors[0, 0, 8]
    fields = "code_type: CENTER_SIZE use_prior_for_matching: false"

    with expect_error(
        NetError, ErrorCode.OUT_OF_RANGE, index=2, mentions=["code_type", "CENTER_SIZE"]
    ):
        loss(fields, bottoms=[LOCATION, SCORES, priors, OBJECTS])


def test_backward_needs_a_forward_pass():
    one = make_layer(text(), [LOCATION, SCORES, PRIORS, OBJECTS])

    with expect_error(NetError, ErrorCode.BAD_STATE, mentions="run forward"):
        one.layer.backward(one.top, [True, True, False, False], one.bottom)
