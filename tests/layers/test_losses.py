"""Losses other than SoftmaxWithLoss."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, DataError, ErrorCode, NetError, ShapeError
from demitasse.io.proto import BlobProto, write_binary
from demitasse.testing import check_gradients, make_layer

RNG = np.random.default_rng(0)
N, K = 6, 5
X = RNG.normal(0, 1.5, (N, K))
Y = RNG.normal(0, 1.5, (N, K))
LABELS = np.array([0, 4, 2, 2, 1, 3])
PROBABILITIES = RNG.dirichlet(np.ones(K), N)


class TestEuclidean:
    def test_value(self, backend):
        one = make_layer('type: "EuclideanLoss"', [X, Y], device=backend)

        assert one.forward()[0] == pytest.approx(((X - Y) ** 2).sum() / (2 * N))

    def test_gradients_of_both_bottoms(self, backend):
        expect_gradients('type: "EuclideanLoss"', X, Y, threshold=1e-7, device=backend)

    def test_one_gradient_at_a_time(self, backend):
        expect_gradients('type: "EuclideanLoss"', X, Y, check_bottom=0, device=backend)
        expect_gradients('type: "EuclideanLoss"', X, Y, check_bottom=1, device=backend)

    def test_shapes_may_differ_where_the_counts_agree(self, backend):
        wide = Y.reshape(N, K, 1, 1)
        one = make_layer('type: "EuclideanLoss"', [X, wide], device=backend)

        assert one.forward()[0] == pytest.approx(((X - Y) ** 2).sum() / (2 * N))
        check_gradients(one)

    def test_other_counts_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="EuclideanLoss"):
            make_layer('type: "EuclideanLoss"', [X, Y[:, :4]])


class TestSigmoidCrossEntropy:
    TARGETS = RNG.uniform(0, 1, (N, K))

    @staticmethod
    def text(fields=""):
        return f'type: "SigmoidCrossEntropyLoss" loss_param {{ {fields} }}'

    @staticmethod
    def losses(x, t):
        p = 1 / (1 + np.exp(-x))
        return -(t * np.log(p) + (1 - t) * np.log(1 - p))

    @pytest.mark.parametrize(
        ("fields", "divisor"),
        [
            ("", N),  # not VALID, as in the other losses
            ("normalization: BATCH_SIZE", N),
            ("normalization: FULL", N * K),
            ("normalization: VALID", N * K),
            ("normalization: NONE", 1),
            ("normalize: true", N * K),
            ("normalize: false", N),
        ],
    )
    def test_normalisation(self, fields, divisor, backend):
        one = make_layer(self.text(fields), [X, self.TARGETS], device=backend)

        assert one.forward()[0] == pytest.approx(self.losses(X, self.TARGETS).sum() / divisor)

    @pytest.mark.parametrize("mode", ["VALID", "FULL", "BATCH_SIZE"])
    def test_targets_with_the_ignored_whole_part_do_not_count(self, mode, backend):
        targets = self.TARGETS.copy()
        targets[0], targets[1, 1] = 7, 7.75
        fields = f"ignore_label: 7 normalization: {mode}"
        one = make_layer(self.text(fields), [X, targets], device=backend)
        valid = targets < 7
        divisor = {"VALID": valid.sum(), "FULL": N * K, "BATCH_SIZE": N}[mode]

        [loss] = one.forward()
        dx = one.backward()[0]

        assert loss == pytest.approx(self.losses(X, self.TARGETS)[valid].sum() / divisor)
        assert not dx[~valid].any()
        assert dx[valid].all()

    def test_a_batch_of_ignored_targets_has_loss_0(self, backend):
        one = make_layer(
            self.text("ignore_label: 1 normalization: VALID"), [X, np.ones_like(X)], device=backend
        )

        assert one.forward()[0] == 0

    @pytest.mark.parametrize("fields", ["", "ignore_label: 0 normalization: VALID"])
    def test_gradients(self, fields, backend):
        targets = self.TARGETS + (self.TARGETS > 0.5)

        expect_gradients(self.text(fields), X, targets, threshold=1e-6, device=backend)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_huge_scores(self, dtype, backend):
        x, t = [[1e4, 1e4, -1e4, -1e4]], [[1, 0, 1, 0]]
        one = make_layer(self.text(), [x, t], dtype=dtype, device=backend)

        assert one.forward()[0] == pytest.approx(2e4)
        np.testing.assert_allclose(one.backward()[0], [[0, 1, -1, 0]])

    def test_other_counts_are_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="SigmoidCrossEntropyLoss"):
            make_layer(self.text(), [X, Y[:, :4]])


@pytest.mark.parametrize(
    "field", ["label_smoothing: 0.1", "class_weighting: 2", "weight_by_label_freqs: true"]
)
@pytest.mark.parametrize("kind", ["SigmoidCrossEntropyLoss", "InfogainLoss", "FocalLoss"])
def test_weights_and_smoothing_are_refused_where_they_would_be_passed_over(kind, field):
    with expect_error(
        ConfigError, ErrorCode.UNSUPPORTED, field=f"loss_param.{field.split(':')[0]}"
    ):
        make_layer(f'type: "{kind}" loss_param {{ {field} }}', [X, Y])


class TestHinge:
    @pytest.mark.parametrize(("norm", "power"), [("L1", 1), ("L2", 2)])
    @pytest.mark.parametrize("shape", [(N, K), (N, K, 1, 1)])
    def test_value(self, norm, power, shape, backend):
        sign = np.where(np.arange(K) == LABELS[:, None], 1, -1)
        expected = (np.maximum(0, 1 - sign * X) ** power).sum() / N
        text = f'type: "HingeLoss" hinge_loss_param {{ norm: {norm} }}'

        one = make_layer(text, [X.reshape(shape), LABELS], device=backend)

        assert one.forward()[0] == pytest.approx(expected)

    @pytest.mark.parametrize("norm", ["L1", "L2"])
    def test_gradients(self, norm, backend):
        text = f'type: "HingeLoss" hinge_loss_param {{ norm: {norm} }}'

        expect_gradients(
            text, X, LABELS, step=1e-4, kink=1, kink_range=1e-3, threshold=1e-5, device=backend
        )

    def test_the_margin_itself_has_gradient_0(self, backend):
        one = make_layer('type: "HingeLoss"', [[[1.0, -1.0]], [0]], device=backend)
        one.forward()

        np.testing.assert_array_equal(one.backward()[0], [[0, 0]])

    def test_a_label_that_is_no_class_makes_the_loss_nan(self, backend):
        one = make_layer('type: "HingeLoss"', [X, [0, 1, 2, 3, 4, 5]], device=backend)

        assert np.isnan(one.forward()[0])

    def test_too_many_labels_are_refused(self):
        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom1", got=12, mentions="6"
        ):
            make_layer('type: "HingeLoss"', [X, np.zeros((N, 2))])


class TestContrastive:
    A = RNG.normal(0, 1, (8, 4))
    B = RNG.normal(0, 1, (8, 4))
    SIMILAR = np.array([0, 1, 0, 0, 2, 0, 1, 0.5])  # the last is not similar: cut to 0

    @staticmethod
    def text(fields=""):
        return f'type: "ContrastiveLoss" contrastive_loss_param {{ {fields} }}'

    @pytest.mark.parametrize("margin", [1, 3])
    @pytest.mark.parametrize("legacy", ["false", "true"])
    def test_value(self, margin, legacy, backend):
        square = ((self.A - self.B) ** 2).sum(axis=1)
        if legacy == "true":
            apart = np.maximum(margin - square, 0)
        else:
            apart = np.maximum(margin - np.sqrt(square), 0) ** 2
        expected = np.where(self.SIMILAR >= 1, square, apart).sum() / 16
        text = self.text(f"margin: {margin} legacy_version: {legacy}")

        one = make_layer(text, [self.A, self.B, self.SIMILAR], device=backend)

        assert one.forward()[0] == pytest.approx(expected)

    @pytest.mark.parametrize("legacy", ["false", "true"])
    def test_gradients_of_both_features(self, legacy, backend):
        text = self.text(f"margin: 4 legacy_version: {legacy}")

        expect_gradients(text, self.A, self.B, self.SIMILAR, step=1e-4, device=backend)

    def test_equal_dissimilar_features_have_a_finite_gradient(self, backend):
        one = make_layer(self.text(), [self.A, self.A, np.zeros(8)], device=backend)
        one.forward()

        np.testing.assert_array_equal(one.backward()[0], np.zeros_like(self.A))

    def test_old_four_axis_features_are_taken(self, backend):
        wide = [self.A[:, :, None, None], self.B[:, :, None, None], self.SIMILAR]
        plain = make_layer(self.text(), [self.A, self.B, self.SIMILAR], device=backend)

        one = make_layer(self.text(), wide, device=backend)

        assert one.forward() == plain.forward()
        assert one.backward()[0].shape == (8, 4, 1, 1)

    @pytest.mark.parametrize(
        "shapes", [((8, 4), (8, 3), (8,)), ((8, 4, 2), (8, 4, 2), (8,)), ((8, 4), (8, 4), (8, 2))]
    )
    def test_other_shapes_are_refused(self, shapes):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="(N, C)"):
            make_layer(self.text(), [np.zeros(shape) for shape in shapes])

    def test_the_similarity_has_no_gradient(self):
        one = make_layer(self.text(), [self.A, self.B, self.SIMILAR])
        one.forward()

        with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom2"):
            one.backward(propagate_down=[True, True, True])


class TestMultinomialLogistic:
    TEXT = 'type: "MultinomialLogisticLoss"'

    def test_value(self, backend):
        one = make_layer(self.TEXT, [PROBABILITIES, LABELS], device=backend)

        assert one.forward()[0] == pytest.approx(
            -np.log(PROBABILITIES[np.arange(N), LABELS]).mean()
        )

    def test_gradients(self, backend):
        expect_gradients(
            self.TEXT, PROBABILITIES + 0.2, LABELS, step=1e-5, threshold=1e-6, device=backend
        )

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_probability_of_0_has_a_finite_loss(self, dtype, backend):
        one = make_layer(self.TEXT, [[[0.0, 1.0]], [0]], dtype=dtype, device=backend)

        assert one.forward()[0] == pytest.approx(-np.log(1e-20))
        assert one.backward()[0] == pytest.approx(np.array([[-1e20, 0]]))

    def test_a_label_that_is_no_class_makes_the_loss_nan(self, backend):
        one = make_layer(self.TEXT, [PROBABILITIES, LABELS - 1], device=backend)

        assert np.isnan(one.forward()[0])


class TestInfogain:
    H = RNG.uniform(0, 1, (K, K))
    TEXT = 'type: "InfogainLoss" infogain_loss_param { %s } loss_param { %s } '

    def expected(self, x, labels):
        """Loss of each place; x (..., K)."""
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        p = e / e.sum(axis=-1, keepdims=True)
        return -(self.H[labels] * np.log(p)).sum(axis=-1)

    @pytest.fixture
    def source(self, tmp_path):
        message = BlobProto(num=1, channels=1, height=K, width=K, data=self.H.ravel())
        write_binary(tmp_path / "H.binaryproto", message)
        return tmp_path / "H.binaryproto"

    def test_the_matrix_may_be_a_bottom(self, backend):
        one = make_layer(self.TEXT % ("", ""), [X, LABELS, self.H[None, None]], device=backend)

        assert one.forward()[0] == pytest.approx(self.expected(X, LABELS).mean())

    def test_the_matrix_may_be_a_file(self, source, backend):
        one = make_layer(
            self.TEXT % (f'source: "{source.as_posix()}"', ""), [X, LABELS], device=backend
        )

        assert one.forward()[0] == pytest.approx(self.expected(X, LABELS).mean(), rel=1e-6)
        check_gradients(one, threshold=1e-6)

    def test_the_file_may_lie_beside_the_prototxt(self, source):
        text = self.TEXT % ('source: "H.binaryproto"', "")

        one = make_layer(text, [X, LABELS], base_dir=source.parent)

        assert one.forward()[0] == pytest.approx(self.expected(X, LABELS).mean(), rel=1e-6)

    def test_a_missing_file_is_refused(self):
        with expect_error(DataError, mentions="nowhere.binaryproto"):
            make_layer(self.TEXT % ('source: "nowhere.binaryproto"', ""), [X, LABELS])

    @pytest.mark.parametrize(
        ("fields", "divisor"),
        [("", 6), ("normalization: FULL", 6), ("normalization: BATCH_SIZE", 2),
         ("normalization: NONE", 1), ("ignore_label: 2", 4)],
    )  # fmt: skip
    @pytest.mark.parametrize("axis", [1, -1])
    def test_classes_on_an_axis_and_normalisation(self, fields, divisor, axis, backend):
        x, labels = X.reshape(2, 3, K), LABELS.reshape(2, 3)
        losses = self.expected(x, labels)
        counted = losses[labels != 2] if "ignore" in fields else losses
        text = self.TEXT % (f"axis: {axis}", fields)
        bottoms = [np.moveaxis(x, -1, axis), labels, self.H]
        if "BATCH_SIZE" in fields and axis == -1:
            divisor = 6  # everything before the classes is the batch

        one = make_layer(text, bottoms, device=backend)

        assert one.forward()[0] == pytest.approx(counted.sum() / divisor)
        expect_gradients(text, *bottoms, check_bottom=0, threshold=1e-6, device=backend)

    def test_the_matrix_may_change_between_passes(self, backend):
        one = make_layer(self.TEXT % ("", ""), [X, LABELS, self.H], device=backend)
        [loss] = one.forward()

        assert one.forward(X, LABELS, 2 * self.H)[0] == pytest.approx(2 * loss)
        expect_gradients(
            self.TEXT % ("", ""), X, LABELS, 2 * self.H, check_bottom=0, device=backend
        )

    def test_a_second_top_holds_the_probabilities(self, backend):
        text = self.TEXT % ("", "") + 'top: "loss" top: "prob"'

        prob = make_layer(text, [X, LABELS, self.H], device=backend).forward()[1]

        np.testing.assert_allclose(prob.sum(axis=1), np.ones(N))

    def test_the_identity_is_the_softmax_loss(self, backend):
        softmax = make_layer('type: "SoftmaxWithLoss"', [X, LABELS], device=backend)

        one = make_layer(self.TEXT % ("", ""), [X, LABELS, np.eye(K)], device=backend)

        assert one.forward()[0] == pytest.approx(softmax.forward()[0])
        np.testing.assert_allclose(one.backward()[0], softmax.backward()[0])

    def test_a_label_that_is_no_class_makes_the_loss_nan(self, backend):
        one = make_layer(self.TEXT % ("", ""), [X, LABELS + 1, self.H], device=backend)

        assert np.isnan(one.forward()[0])

    def test_no_matrix_is_refused(self):
        with expect_error(ConfigError, ErrorCode.MISSING, field="infogain_loss_param.source"):
            make_layer(self.TEXT % ("", ""), [X, LABELS])

    def test_the_deprecated_normalize_is_refused(self):
        with expect_error(ConfigError, ErrorCode.UNSUPPORTED, field="loss_param.normalize"):
            make_layer(self.TEXT % ("", "normalize: true"), [X, LABELS, self.H])

    def test_a_matrix_of_another_size_is_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["InfogainLoss", "5 x 5"]):
            make_layer(self.TEXT % ("", ""), [X, LABELS, self.H[:4]])

    def test_labels_and_matrix_have_no_gradient(self):
        one = make_layer(self.TEXT % ("", ""), [X, LABELS, self.H])
        one.forward()

        with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom1"):
            one.backward(propagate_down=[True, True, False])
        with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom2"):
            one.backward(propagate_down=[True, False, True])


@pytest.mark.parametrize(
    ("text", "bottoms"),
    [
        ('type: "EuclideanLoss"', (X, Y)),
        ('type: "SigmoidCrossEntropyLoss"', (X, PROBABILITIES)),
        ('type: "HingeLoss"', (X, LABELS)),
        ('type: "ContrastiveLoss"', (X, Y, LABELS)),
        ('type: "MultinomialLogisticLoss"', (PROBABILITIES, LABELS)),
        ('type: "InfogainLoss"', (X, LABELS, np.eye(K))),
    ],
)
def test_the_loss_weight_scales_the_gradient(text, bottoms, backend):
    once = make_layer(text, bottoms, device=backend)
    half = make_layer(text + " loss_weight: 0.5", bottoms, device=backend)
    once.forward()
    half.forward()

    np.testing.assert_allclose(half.backward()[0], once.backward()[0] / 2)


@pytest.mark.parametrize(
    "kind", ["EuclideanLoss", "SigmoidCrossEntropyLoss", "HingeLoss", "MultinomialLogisticLoss"]
)
def test_a_loss_needs_a_batch(kind):
    with expect_error(ShapeError, mentions="axis 0"):
        make_layer(f'type: "{kind}"', [1.0, 1.0])


@pytest.mark.parametrize(
    ("kind", "bottoms", "wanted", "refused"),
    [
        ("SigmoidCrossEntropyLoss", (X, PROBABILITIES), (True, True), 1),
        ("HingeLoss", (X, LABELS), (True, True), 1),
        ("MultinomialLogisticLoss", (PROBABILITIES, LABELS), (False, True), 1),
        ("SoftmaxWithLoss", (X, LABELS), (True, True), 1),
        ("FocalLoss", (X, LABELS), (True, True), 1),
        ("InfogainLoss", (X, LABELS, np.eye(K)), (True, False, True), 2),
        ("ContrastiveLoss", (X, Y, LABELS), (True, True, True), 2),
    ],
)
def test_a_gradient_that_there_is_not_is_refused_at_once(kind, bottoms, wanted, refused):
    names = " ".join(f'bottom: "blob{index}"' for index in range(len(bottoms)))
    flags = " ".join(f"propagate_down: {str(flag).lower()}" for flag in wanted)

    with expect_error(NetError, ErrorCode.NO_GRADIENT, blob=f"blob{refused}", mentions=kind):
        make_layer(f'type: "{kind}" {names} {flags}', bottoms)
