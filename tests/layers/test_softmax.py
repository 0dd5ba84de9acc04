"""Softmax and SoftmaxWithLoss."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ErrorCode, NetError, ShapeError
from demitasse.testing import check_gradients, make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(0, 2, (2, 5, 3, 4))
LABELS = RNG.integers(0, 5, (2, 3, 4))
SMALLEST = np.finfo(np.float32).tiny


def softmax(x, axis=1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class TestSoftmax:
    @pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4])
    def test_values_along_an_axis(self, axis, backend):
        one = make_layer(f'type: "Softmax" softmax_param {{ axis: {axis} }}', [X], device=backend)

        [y] = one.forward()

        np.testing.assert_allclose(y, softmax(X, axis))

    @pytest.mark.parametrize("axis", [0, 1, -1])
    @pytest.mark.parametrize("names", ["", 'bottom: "x" top: "x"'])
    def test_gradients(self, axis, names, backend):
        text = f'type: "Softmax" softmax_param {{ axis: {axis} }} {names}'

        expect_gradients(text, X[:, :, 0], exhaustive=True, threshold=1e-5, device=backend)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_huge_scores_do_not_overflow(self, dtype, backend):
        one = make_layer(
            'type: "Softmax"', [[[1e30, 0, -1e30], [-3e38, 3e38, 0]]], dtype=dtype,
            device=backend,
        )  # fmt: skip

        np.testing.assert_array_equal(one.forward()[0], [[1, 0, 0], [0, 1, 0]])

    def test_a_missing_axis_is_refused(self):
        with expect_error(ShapeError, mentions="axis 2"):
            make_layer('type: "Softmax" softmax_param { axis: 2 }', [[[1.0]]])


def loss_text(fields="", more=""):
    return f'type: "SoftmaxWithLoss" loss_param {{ {fields} }} {more}'


def picked(x, labels):
    """-log p of each label; (N, H, W)."""
    return -np.log(np.take_along_axis(softmax(x), labels[:, None], axis=1))[:, 0]


class TestLoss:
    @pytest.mark.parametrize("shape", [(2, 3, 4), (2, 1, 3, 4), (2, 12)])
    def test_the_labels_may_have_any_shape_of_the_right_count(self, shape, backend):
        one = make_layer(loss_text(), [X, LABELS.reshape(shape)], device=backend)

        [loss] = one.forward()

        assert loss.shape == ()
        assert loss == pytest.approx(picked(X, LABELS).mean())

    @pytest.mark.parametrize("axis", [1, 2, -1])
    def test_the_classes_may_be_on_any_axis(self, axis, backend):
        moved = np.moveaxis(X, 1, axis)
        one = make_layer(
            f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }}',
            [moved, LABELS], device=backend,
        )  # fmt: skip

        assert one.forward()[0] == pytest.approx(picked(X, LABELS).mean())

    @pytest.mark.parametrize(
        ("fields", "divisor"),
        [
            ("", 24),
            ("normalization: FULL", 24),
            ("normalization: VALID", 24),
            ("normalization: BATCH_SIZE", 2),
            ("normalization: NONE", 1),
            ("normalize: true", 24),
            ("normalize: false", 2),
            ("normalize: false normalization: FULL", 24),
        ],
    )
    @pytest.mark.parametrize("ignored", [None, 2])
    def test_normalisation(self, fields, divisor, ignored, backend):
        losses = picked(X, LABELS)
        if ignored is not None:
            fields += f" ignore_label: {ignored}"
            losses = losses * (ignored != LABELS)
            valid = "FULL" not in fields and divisor == 24
            divisor = (ignored != LABELS).sum() if valid else divisor
        one = make_layer(loss_text(fields), [X, LABELS], device=backend)

        [loss] = one.forward()

        assert loss == pytest.approx(losses.sum() / divisor)

    @pytest.mark.parametrize(
        "fields",
        ["", "ignore_label: 2", "normalization: BATCH_SIZE", "ignore_label: 1 normalization: FULL"],
    )
    def test_gradients(self, fields, backend):
        expect_gradients(loss_text(fields), X, LABELS, threshold=1e-6, device=backend)

    @pytest.mark.parametrize("axis", [2, -1])
    def test_gradients_along_another_axis(self, axis):
        text = f'type: "SoftmaxWithLoss" softmax_param {{ axis: {axis} }}'

        check_gradients(text, np.moveaxis(X, 1, axis), LABELS, threshold=1e-6)

    def test_ignored_labels_need_not_be_classes(self, backend):
        labels = LABELS.copy()
        labels[0] = 255
        one = make_layer(loss_text("ignore_label: 255"), [X, labels], device=backend)

        [loss] = one.forward()
        [dx, _] = one.backward()

        assert loss == pytest.approx(picked(X[1:], LABELS[1:]).mean())
        assert not dx[0].any()

    def test_a_batch_of_ignored_labels_has_loss_0_and_gradient_0(self, backend):
        one = make_layer(loss_text("ignore_label: 1"), [X, np.ones((2, 12))], device=backend)

        assert one.forward()[0] == 0
        assert not one.backward()[0].any()

    @pytest.mark.parametrize("label", [-1, 5, 255])
    def test_a_label_that_is_no_class_makes_the_loss_nan(self, label, backend):
        labels = LABELS.copy()
        labels[1, 2, 3] = label

        one = make_layer(loss_text(), [X, labels], device=backend)

        assert np.isnan(one.forward()[0])

    def test_fractions_of_labels_are_cut(self, backend):
        whole = make_layer(loss_text(), [X, LABELS], device=backend)
        cut = make_layer(loss_text(), [X, LABELS + 0.9], device=backend)

        assert cut.forward()[0] == whole.forward()[0]

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_vanishing_probability_costs_what_the_smallest_float_does(self, dtype, backend):
        one = make_layer(loss_text(), [[[0, 1e5]], [0]], dtype=dtype, device=backend)

        assert one.forward()[0] == pytest.approx(-np.log(SMALLEST))
        np.testing.assert_array_equal(one.backward()[0], [[-1, 1]])

    def test_the_loss_weight_scales_the_gradient(self, backend):
        once = make_layer(loss_text(), [X, LABELS], device=backend)
        thrice = make_layer(loss_text(more="loss_weight: 3"), [X, LABELS], device=backend)
        once.forward()
        thrice.forward()

        np.testing.assert_allclose(thrice.backward()[0], 3 * once.backward()[0])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_second_top_holds_the_probabilities(self, dtype, backend):
        one = make_layer(
            loss_text(more='top: "loss" top: "prob"'), [X, LABELS], dtype=dtype, device=backend
        )

        prob = one.forward()[1]

        np.testing.assert_allclose(prob, softmax(X), rtol=1e-5)
        assert [one.layer.loss(top) for top in range(2)] == [1.0, 0.0]

    def test_the_second_top_follows_a_growing_batch(self, backend):
        one = make_layer(loss_text(more='top: "loss" top: "prob"'), [X, LABELS], device=backend)
        one.forward()
        x, labels = np.tile(X, (3, 1, 1, 1)), np.tile(LABELS, (3, 1, 1))

        loss, prob = one.forward(x, labels)
        [dx, _] = one.backward(1, np.zeros_like(x))

        assert loss == pytest.approx(picked(x, labels).mean())
        np.testing.assert_allclose(prob, softmax(x))
        np.testing.assert_allclose(dx[:2], dx[2:4])

    def test_missing_tops_are_made_up(self):
        assert make_layer(loss_text(), [X, LABELS]).top[0].shape == ()

    def test_the_labels_have_no_gradient(self):
        one = make_layer(loss_text(), [X, LABELS])
        one.forward()

        with expect_error(NetError, ErrorCode.NO_GRADIENT, blob="bottom1"):
            one.backward(propagate_down=[True, True])

    def test_too_few_labels_are_refused(self):
        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom1", got=2, mentions=["12", "(2,)"]
        ):
            make_layer(loss_text(), [X, [0, 1]])

    def test_another_batch_size_is_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions="SoftmaxWithLoss"):
            make_layer(loss_text(), [X, np.zeros(24)])
