"""Losses and metrics of the forks, against plain loops."""

import math

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
N, C = 6, 4
X = RNG.normal(0, 1.5, (N, C))
Y = RNG.normal(0, 1.5, (N, C))


class TestSmoothL1:
    INSIDE, OUTSIDE = RNG.uniform(0.5, 2, (N, C)), RNG.uniform(0.5, 2, (N, C))

    @staticmethod
    def text(sigma=1):
        return f'type: "SmoothL1Loss" smooth_l1_loss_param {{ sigma: {sigma} }}'

    @staticmethod
    def loop(x, y, inside, outside, sigma):
        total = 0.0
        for a, b, i, o in zip(x.flat, y.flat, inside.flat, outside.flat, strict=True):
            d = i * (a - b)
            if abs(d) < 1 / sigma**2:
                total += o * (sigma * d) ** 2 / 2
            else:
                total += o * (abs(d) - 0.5 / sigma**2)
        return total / len(x)

    @pytest.mark.parametrize("sigma", [1, 2, 0.5])
    @pytest.mark.parametrize("weights", [0, 1, 2])
    def test_against_a_loop(self, sigma, weights, backend):
        given = [self.INSIDE, self.OUTSIDE][:weights]
        ones = [np.ones_like(X)] * (2 - weights)
        one = make_layer(self.text(sigma), [X, Y, *given], device=backend)

        assert one.forward()[0] == pytest.approx(self.loop(X, Y, *given, *ones, sigma))

    @pytest.mark.parametrize("sigma", [1, 2])
    @pytest.mark.parametrize("weights", [0, 1, 2])
    def test_gradients(self, sigma, weights, backend):
        given = [self.INSIDE, self.OUTSIDE][:weights]

        expect_gradients(self.text(sigma), X, Y, *given, step=1e-5, threshold=1e-4, device=backend)

    def test_gradients_of_weights_are_asked_for_in_vain(self):
        wanted = [True, True, True, True]
        flags = "propagate_down: true " * 4
        one = make_layer(f"{self.text()} {flags}", [X, Y, self.INSIDE, self.OUTSIDE])
        one.forward()

        *gradients, inside, outside = one.backward(1, propagate_down=wanted)

        assert all(gradient.any() for gradient in gradients)
        assert not inside.any()
        assert not outside.any()

    def test_other_counts_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="SmoothL1Loss"):
            make_layer(self.text(), [X, Y, X[:, :3]])

    def test_sigma_0_is_refused(self):
        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="smooth_l1_loss_param.sigma"):
            make_layer(self.text(0), [X, Y])


class TestFocal:
    LABELS = np.array([0, 3, 2, 2, 1, 3])
    TARGETS = RNG.integers(0, 2, (N, C))

    @staticmethod
    def text(fields="", loss=""):
        return f'type: "FocalLoss" focal_loss_param {{ {fields} }} loss_param {{ {loss} }}'

    @staticmethod
    def softmax_losses(x, labels, alpha, gamma):
        losses = []
        for row, label in zip(x, labels, strict=True):
            p = math.exp(row[label]) / sum(math.exp(v) for v in row)
            losses.append(-alpha * (1 - p) ** gamma * math.log(p))
        return np.array(losses)

    @staticmethod
    def sigmoid_losses(x, targets, alpha, gamma):
        losses = np.empty(x.shape)
        for place, value in np.ndenumerate(x):
            p = 1 / (1 + math.exp(-value))
            p, weight = (p, alpha) if targets[place] == 1 else (1 - p, 1 - alpha)
            losses[place] = -weight * (1 - p) ** gamma * math.log(p)
        return losses

    @pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
    def test_with_labels_it_is_a_softmax_loss(self, gamma, backend):
        one = make_layer(self.text(f"alpha: 0.75 gamma: {gamma}"), [X, self.LABELS], device=backend)

        expected = self.softmax_losses(X, self.LABELS, 0.75, gamma).mean()

        assert one.forward()[0] == pytest.approx(expected)

    @pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
    def test_with_targets_each_score_is_on_its_own(self, gamma, backend):
        one = make_layer(
            self.text(f"alpha: 0.75 gamma: {gamma}"), [X, self.TARGETS], device=backend
        )

        expected = self.sigmoid_losses(X, self.TARGETS, 0.75, gamma).sum() / N

        assert one.forward()[0] == pytest.approx(expected)

    def test_defaults_are_those_of_the_paper(self):
        one = make_layer(self.text(), [X, self.LABELS])

        expected = self.softmax_losses(X, self.LABELS, 0.25, 2).mean()

        assert one.forward()[0] == pytest.approx(expected)

    def test_with_gamma_0_it_is_softmax_with_loss(self, backend):
        focal = make_layer(self.text("alpha: 1 gamma: 0"), [X, self.LABELS], device=backend)
        plain = make_layer('type: "SoftmaxWithLoss"', [X, self.LABELS], device=backend)

        np.testing.assert_allclose(focal.forward(), plain.forward())
        np.testing.assert_allclose(focal.backward()[0], plain.backward()[0], atol=1e-15)

    @pytest.mark.parametrize("gamma", [0, 0.5, 2])
    @pytest.mark.parametrize("loss", ["", "ignore_label: 2", "normalization: FULL"])
    def test_gradients_with_labels(self, gamma, loss, backend):
        x = RNG.normal(0, 1, (2, C, 3))
        labels = self.LABELS.reshape(2, 3)

        expect_gradients(
            self.text(f"gamma: {gamma}", loss), x, labels, threshold=1e-5, device=backend
        )

    @pytest.mark.parametrize("gamma", [0, 0.5, 2])
    @pytest.mark.parametrize("loss", ["", "ignore_label: 0", "normalization: VALID"])
    def test_gradients_with_targets(self, gamma, loss, backend):
        expect_gradients(
            self.text(f"gamma: {gamma}", loss), X, self.TARGETS, threshold=1e-5, device=backend
        )

    def test_ignored_labels_do_not_count(self, backend):
        one = make_layer(self.text("", "ignore_label: 2"), [X, self.LABELS], device=backend)

        expected = self.softmax_losses(X, self.LABELS, 0.25, 2)[self.LABELS != 2].mean()

        assert one.forward()[0] == pytest.approx(expected)

    @pytest.mark.parametrize("label", [0, 1])
    def test_certainty_gives_numbers(self, label, backend):
        one = make_layer(self.text("gamma: 0.5"), [[[1e4, -1e4]], [label]], device=backend)

        assert np.isfinite(one.forward()[0])
        assert np.isfinite(one.backward()[0]).all()

    def test_a_label_that_is_no_class_makes_the_loss_nan(self, backend):
        one = make_layer(self.text(), [X, [0, 1, 2, 3, 4, 0]], device=backend)

        assert np.isnan(one.forward()[0])

    def test_other_counts_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom1", got=12, expected=6):
            make_layer(self.text(), [X, self.TARGETS[:, :2]])

    def test_a_negative_gamma_is_refused(self):
        with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="focal_loss_param.gamma"):
            make_layer(self.text("gamma: -1"), [X, self.LABELS])


class TestCenter:
    LABELS = np.array([0, 3, 2, 2, 1, 3])

    @staticmethod
    def text(fields="num_output: 5"):
        filler = 'center_filler { type: "gaussian" }'
        return f'type: "CenterLoss" center_loss_param {{ {fields} {filler} }} loss_weight: 0.5'

    def test_value(self, backend):
        one = make_layer(self.text(), [X, self.LABELS], device=backend)
        centres = np.array(one.params[0].data)

        expected = ((X - centres[self.LABELS]) ** 2).sum() / (2 * N)

        assert centres.shape == (5, C)
        assert one.forward()[0] == pytest.approx(expected)

    def test_gradient_of_the_features(self, backend):
        expect_gradients(
            self.text(), X, self.LABELS, check_params=False, threshold=1e-7, device=backend
        )

    def test_centres_move_by_a_rule_of_their_own(self, backend):
        one = make_layer(self.text(), [X, self.LABELS], device=backend)
        centres = np.array(one.params[0].data)
        one.params[0].diff = 1.0  # gradients are added up
        expected = np.ones_like(centres)
        for j in range(5):
            members = X[j == self.LABELS]
            expected[j] += sum(centres[j] - x for x in members) / (len(members) + 1)

        one.forward()
        one.backward()

        np.testing.assert_allclose(one.params[0].diff, expected)

    def test_an_infinite_feature_moves_the_centre_of_its_own_class_only(self, backend):
        x = X.copy()
        x[0] = np.inf  # of class 0
        one = make_layer(self.text(), [x, self.LABELS], device=backend)

        one.forward()
        one.backward()

        assert np.isinf(one.params[0].diff[0]).all()
        assert np.isfinite(one.params[0].diff[1:]).all()

    def test_features_may_have_more_axes(self, backend):
        one = make_layer(self.text(), [X.reshape(N, 2, 2), self.LABELS], device=backend)
        plain = make_layer(self.text(), [X, self.LABELS], device=backend)

        assert one.forward()[0] == plain.forward()[0]

    def test_a_label_that_is_no_class_is_refused(self):
        one = make_layer(self.text("num_output: 3"), [X, self.LABELS])

        with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, blob="bottom1", got=3.0):
            one.forward()

    def test_labels_of_another_count_are_refused(self):
        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["CenterLoss", "4 features"]
        ):
            make_layer(self.text(), [X, X])

    def test_no_classes_are_refused(self):
        with expect_error(
            ConfigError, ErrorCode.OUT_OF_RANGE, field="center_loss_param.num_output"
        ):
            make_layer(self.text(""), [X, self.LABELS])


class TestHardExamples:
    """SmoothL1LossOHEM and SoftmaxWithLossOHEM: losses that also say what each region loses."""

    BOXES, WANTED = RNG.normal(0, 1.5, (2, N, C, 2, 3))
    WEIGHTS = RNG.integers(0, 2, (N, C, 2, 3)).astype(float)
    SCORES, LABELS = RNG.normal(0, 2, (N, C, 2, 3)), RNG.integers(0, C, (N, 1, 2, 3))

    @staticmethod
    def text(kind, tops=1, fields=""):
        names = " ".join(f'top: "{name}"' for name in ("loss", "prob", "each")[:tops])
        return f'type: "{kind}" {names} loss_param {{ {fields} }}'

    @pytest.fixture(params=["float32", "float64"])
    def dtype(self, request):
        return request.param

    @pytest.mark.parametrize(
        ("fields", "divisor"),
        [
            ("", N * 6),
            ("normalization: FULL", N * 6),
            ("normalization: BATCH_SIZE", N),
            ("normalize: false", N),
            ("normalization: NONE", 1),
            ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128),
            ("normalization: PRE_FIXED pre_fixed_normalizer: 0.5", 1),
        ],
    )
    def test_boxes_lose_what_a_loop_says(self, fields, divisor, dtype, backend):
        bottoms = [self.BOXES, self.WANTED, self.WEIGHTS]
        text = self.text("SmoothL1LossOHEM", 2, fields)
        one = make_layer(text, bottoms, dtype=dtype, device=backend)
        each = np.zeros((N, 1, 2, 3))
        for place in np.ndindex(self.BOXES.shape):
            d = abs(self.WEIGHTS[place] * (self.BOXES[place] - self.WANTED[place]))
            each[place[0], 0, place[2], place[3]] += d * d / 2 if d < 1 else d - 0.5

        loss, found = one.forward()

        assert loss == pytest.approx(each.sum() / divisor, rel=1e-5)
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("fields", "divisor"),
        [
            ("", N * 6),
            ("ignore_label: 1", (LABELS != 1).sum()),
            ("ignore_label: 1 normalization: PRE_FIXED pre_fixed_normalizer: 128", 128),
        ],
    )
    def test_labels_lose_what_a_loop_says(self, fields, divisor, dtype, backend):
        text = self.text("SoftmaxWithLossOHEM", 3, fields)
        one = make_layer(text, [self.SCORES, self.LABELS], dtype=dtype, device=backend)
        probabilities = np.exp(self.SCORES) / np.exp(self.SCORES).sum(axis=1, keepdims=True)
        each = -np.log(np.take_along_axis(probabilities, self.LABELS, axis=1))
        if fields:
            each[self.LABELS == 1] = 0

        loss, prob, found = one.forward()

        assert loss == pytest.approx(each.sum() / divisor, rel=1e-5)
        np.testing.assert_allclose(prob, probabilities, rtol=1e-4)
        np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("kind", ["SmoothL1LossOHEM", "SoftmaxWithLossOHEM"])
    def test_further_tops_change_no_gradient(self, kind, dtype, backend):
        boxes = kind == "SmoothL1LossOHEM"
        bottoms = [self.BOXES, self.WANTED] if boxes else [self.SCORES, self.LABELS]
        fewest, most = (
            make_layer(self.text(kind, tops), bottoms, dtype=dtype, device=backend)
            for tops in (1, 2 if boxes else 3)
        )
        fewest.forward()
        most.forward()

        [expected, *_] = fewest.backward(2.0)
        [found, *_] = most.backward(2.0, *[0.5] * (1 if boxes else 2))

        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)

    def test_two_tops_are_caffes_loss(self, dtype, backend):
        bottoms = [self.SCORES, self.LABELS]
        mined, plain = (
            make_layer(self.text(kind, 2), bottoms, dtype=dtype, device=backend)
            for kind in ("SoftmaxWithLossOHEM", "SoftmaxWithLoss")
        )

        for found, expected in zip(mined.forward(), plain.forward(), strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(mined.backward()[0], plain.backward()[0])

    @pytest.mark.parametrize(
        ("kind", "fields", "bottoms", "error", "code", "mentions"),
        [
            (
                "SmoothL1LossOHEM",
                "} smooth_l1_loss_param { sigma: 0",
                (X, Y),
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                "smooth_l1_loss_param.sigma",
            ),
            (
                "SmoothL1LossOHEM",
                "",
                (X, Y[:, :2]),
                ShapeError,
                ErrorCode.SHAPE_MISMATCH,
                "SmoothL1LossOHEM",
            ),
            (
                "SmoothL1LossOHEM",
                "",
                (X[:, 0], Y[:, 0]),
                ShapeError,
                ErrorCode.SHAPE_MISMATCH,
                "SmoothL1LossOHEM",
            ),
            ("SoftmaxWithLossOHEM", "", (X, Y), ShapeError, ErrorCode.SHAPE_MISMATCH, "(6, 4)"),
        ],
    )
    def test_refused(self, kind, fields, bottoms, error, code, mentions):
        with expect_error(error, code, mentions=mentions):
            make_layer(self.text(kind, 1, fields), list(bottoms))


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "FocalLoss", "InfogainLoss"])
def test_losses_may_be_divided_by_a_given_number(kind, backend):
    bottoms = [X, np.arange(N) % C, *([np.eye(C)] if kind == "InfogainLoss" else [])]
    text = 'type: "{}" loss_param {{ normalization: {} pre_fixed_normalizer: 8 }}'
    fixed, undivided = (
        make_layer(text.format(kind, mode), bottoms, device=backend)
        for mode in ("PRE_FIXED", "NONE")
    )

    np.testing.assert_allclose(fixed.forward()[0], undivided.forward()[0] / 8)
    np.testing.assert_allclose(fixed.backward()[0], undivided.backward()[0] / 8)


class TestTriplet:
    Z = RNG.normal(0, 1.5, (N, C))

    @staticmethod
    def text(margin=1):
        return f'type: "TripletLoss" triplet_loss_param {{ margin: {margin} }}'

    @pytest.mark.parametrize("margin", [0, 1, 10])
    def test_against_a_loop(self, margin, backend):
        one = make_layer(self.text(margin), [X, Y, self.Z], device=backend)
        total = 0.0
        for a, p, n in zip(X, Y, self.Z, strict=True):
            total += max(((a - p) ** 2).sum() - ((a - n) ** 2).sum() + margin, 0)

        assert one.forward()[0] == pytest.approx(total / (2 * N))

    @pytest.mark.parametrize("margin", [0, 1, 10])
    def test_gradients(self, margin, backend):
        expect_gradients(self.text(margin), X, Y, self.Z, step=1e-5, threshold=1e-6, device=backend)

    def test_satisfied_triplets_have_no_gradient(self, backend):
        one = make_layer(self.text(), [X, X, X + 10], device=backend)

        assert one.forward()[0] == 0
        assert all((diff == 0).all() for diff in one.backward())

    def test_other_shapes_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="TripletLoss"):
            make_layer(self.text(), [X, Y, Y[:, :2]])


class TestSegAccuracy:
    SCORES = RNG.normal(0, 1, (2, C, 3, 5))
    LABELS = RNG.integers(0, C - 1, (2, 1, 3, 5))  # one class has no pixel

    @staticmethod
    def text(fields=""):
        return f'type: "SegAccuracy" seg_accuracy_param {{ {fields} }}'

    @staticmethod
    def loop(scores, labels, ignored):
        confusion = np.zeros((scores.shape[1],) * 2)
        for n, _, h, w in np.ndindex(labels.shape):
            if labels[n, 0, h, w] not in ignored:
                best = max(range(scores.shape[1]), key=lambda c: (scores[n, c, h, w], c))
                confusion[labels[n, 0, h, w], best] += 1
        recalls, overlaps = [], []
        for c in range(len(confusion)):
            hits, true, guess = confusion[c, c], confusion[c].sum(), confusion[:, c].sum()
            if true:
                recalls.append(hits / true)
            union = true + guess - hits
            overlaps.append(1.0 if hits == union else hits / union)
        accuracy = np.trace(confusion) / confusion.sum()
        return accuracy, np.mean(recalls), np.mean(overlaps)

    @pytest.mark.parametrize("ignored", [(), (1,), (0, 255)])
    def test_against_a_loop(self, ignored, backend):
        labels = self.LABELS.copy()
        if 255 in ignored:
            labels[0, 0, 0] = 255
        fields = " ".join(f"ignore_label: {label}" for label in ignored)
        one = make_layer(self.text(fields), [self.SCORES, labels], device=backend)

        [found] = one.forward()

        assert found.shape == (1, 1, 1, 3)
        np.testing.assert_allclose(found.reshape(-1), self.loop(self.SCORES, labels, ignored))

    def test_of_equal_scores_the_last_is_the_best(self, backend):
        scores = np.round(self.SCORES)
        one = make_layer(self.text(), [scores, self.LABELS], device=backend)

        found = one.forward()[0].reshape(-1)

        np.testing.assert_allclose(found, self.loop(scores, self.LABELS, ()))

    def test_nothing_counted(self, backend):
        labels = np.full((2, 1, 3, 5), 255)
        one = make_layer(self.text("ignore_label: 255"), [self.SCORES, labels], device=backend)

        np.testing.assert_array_equal(one.forward()[0].reshape(-1), [0, 0, 1])

    def test_a_label_that_is_no_class_makes_it_nan(self, backend):
        one = make_layer(self.text(), [self.SCORES, self.LABELS + 2], device=backend)

        assert np.isnan(one.forward()[0]).all()

    def test_there_is_no_gradient(self):
        one = make_layer(self.text(), [self.SCORES, self.LABELS])

        with expect_error(NetError, ErrorCode.NO_GRADIENT, type="SegAccuracy"):
            one.backward(1.0, propagate_down=[True, False])

    def test_other_shapes_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(N, C, H, W)"):
            make_layer(self.text(), [self.SCORES, self.LABELS[:, 0]])


class TestWeightedSoftmax:
    """What SoftmaxWithLoss can do beyond Caffe's."""

    SCORES = RNG.normal(0, 1.5, (2, C, 3))
    LABELS = RNG.integers(0, C, (2, 3))
    WEIGHTS = RNG.uniform(0.1, 3, (2, 3))
    CLASS_WEIGHTS = (0.5, 2.0, 1.0, 0.25)
    CLASSES = "weight_by_label_freqs: true " + " ".join(
        f"class_weighting: {weight}" for weight in CLASS_WEIGHTS
    )

    @staticmethod
    def text(fields=""):
        return f'type: "SoftmaxWithLoss" loss_param {{ {fields} }}'

    def test_weights_of_classes_can_be_turned_off(self, backend):
        fields = self.CLASSES.replace("true", "false") + " normalization: NONE"
        one = make_layer(self.text(fields), [self.SCORES, self.LABELS], device=backend)

        np.testing.assert_allclose(one.forward()[0], self.losses().sum())

    def losses(self, smoothing=0.0, classes=False):
        """The loss of every place; (2, 3)."""
        losses = np.empty((2, 3))
        for n, i in np.ndindex(losses.shape):
            row, label = self.SCORES[n, :, i], self.LABELS[n, i]
            p = np.exp(row) / np.exp(row).sum()
            target = np.full(C, smoothing / C)
            target[label] += 1 - smoothing
            losses[n, i] = -(target * np.log(p)).sum()
            if classes:
                losses[n, i] *= self.CLASS_WEIGHTS[label]
        return losses

    @pytest.mark.parametrize(
        ("mode", "divisor"),
        [
            ("VALID", WEIGHTS.sum()),
            ("FULL", 6),
            ("BATCH_SIZE", 2),
            ("NONE", 1),
        ],
    )
    def test_a_third_bottom_weighs_places(self, mode, divisor, backend):
        bottoms = [self.SCORES, self.LABELS, self.WEIGHTS]
        one = make_layer(self.text(f"normalization: {mode}"), bottoms, device=backend)

        assert one.forward()[0] == pytest.approx((self.losses() * self.WEIGHTS).sum() / divisor)

    def test_weights_of_ignored_labels_do_not_count(self, backend):
        bottoms = [self.SCORES, self.LABELS, self.WEIGHTS]
        one = make_layer(self.text("ignore_label: 1"), bottoms, device=backend)
        valid = self.LABELS != 1

        expected = (self.losses() * self.WEIGHTS)[valid].sum() / self.WEIGHTS[valid].sum()

        assert one.forward()[0] == pytest.approx(expected)

    def test_weights_of_1_change_nothing(self, backend):
        plain = make_layer(self.text(), [self.SCORES, self.LABELS], device=backend)
        ones = make_layer(self.text(), [self.SCORES, self.LABELS, np.ones(6)], device=backend)

        np.testing.assert_allclose(ones.forward(), plain.forward(), rtol=1e-14)
        np.testing.assert_allclose(ones.backward()[0], plain.backward()[0], rtol=1e-14)

    def test_class_weights_do_not_change_the_normaliser(self, backend):
        one = make_layer(self.text(self.CLASSES), [self.SCORES, self.LABELS], device=backend)

        assert one.forward()[0] == pytest.approx(self.losses(classes=True).mean())

    @pytest.mark.parametrize("smoothing", [0.1, 0.5])
    def test_label_smoothing(self, smoothing, backend):
        one = make_layer(
            self.text(f"label_smoothing: {smoothing}"), [self.SCORES, self.LABELS], device=backend
        )

        assert one.forward()[0] == pytest.approx(self.losses(smoothing).mean())

    @pytest.mark.parametrize("fields", ["", "label_smoothing: 0.1", CLASSES, "ignore_label: 2"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_gradients(self, fields, weighted, backend):
        bottoms = [self.SCORES, self.LABELS, self.WEIGHTS][: 3 if weighted else 2]

        expect_gradients(self.text(fields), *bottoms, threshold=1e-6, device=backend)

    def test_a_second_top_still_has_the_probabilities(self, backend):
        one = make_layer(
            self.text("label_smoothing: 0.1") + ' top: "l" top: "p"',
            [self.SCORES, self.LABELS],
            device=backend,
        )

        np.testing.assert_allclose(one.forward()[1].sum(axis=1), 1)

    def test_backends_get_no_descriptor_of_it(self):
        plain = make_layer(self.text(), [self.SCORES, self.LABELS])
        others = [
            make_layer(self.text(), [self.SCORES, self.LABELS, self.WEIGHTS]),
            make_layer(self.text(self.CLASSES), [self.SCORES, self.LABELS]),
            make_layer(self.text("label_smoothing: 0.1"), [self.SCORES, self.LABELS]),
        ]

        assert plain.layer.op is not None
        assert [one.layer.op for one in others] == [None] * 3

    def test_weights_have_no_gradient(self):
        one = make_layer(self.text(), [self.SCORES, self.LABELS, self.WEIGHTS])
        one.forward()

        with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom2"):
            one.backward(propagate_down=[True, False, True])

    @pytest.mark.parametrize(
        ("fields", "error", "code", "field"),
        [
            ("class_weighting: 1", ConfigError, ErrorCode.CONFLICT, "loss_param.class_weighting"),
            (
                "weight_by_label_freqs: true",
                ConfigError,
                ErrorCode.CONFLICT,
                "loss_param.class_weighting",
            ),
            (
                "label_smoothing: 1",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                "loss_param.label_smoothing",
            ),
            (
                "label_smoothing: -0.1",
                ConfigError,
                ErrorCode.OUT_OF_RANGE,
                "loss_param.label_smoothing",
            ),
            (
                "weight_by_label_freqs: true class_weighting: 1",
                ShapeError,
                ErrorCode.COUNT_MISMATCH,
                "loss_param.class_weighting",
            ),
        ],
    )
    def test_refused(self, fields, error, code, field):
        with expect_error(error, code, field=field):
            make_layer(self.text(fields), [self.SCORES, self.LABELS])

    def test_other_counts_of_weights_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(2,)", "6"]):
            make_layer(self.text(), [self.SCORES, self.LABELS, [1, 1]])
