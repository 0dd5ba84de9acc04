"""Accuracy."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (4, 5, 3))
LABELS = RNG.integers(0, 5, (4, 3))
RANKS = (np.take_along_axis(X, LABELS[:, None], axis=1) < X).sum(axis=1)  # 0 is the best


def text(fields="", more=""):
    return f'type: "Accuracy" accuracy_param {{ {fields} }} {more}'


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k(k, backend):
    one = make_layer(text(f"top_k: {k}"), [X, LABELS], device=backend)

    [accuracy] = one.forward()

    assert accuracy.shape == ()
    assert accuracy == pytest.approx((k > RANKS).mean())


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_the_classes_may_be_on_any_axis(axis, backend):
    one = make_layer(text(f"axis: {axis}"), [np.moveaxis(X, 1, axis), LABELS], device=backend)

    assert one.forward()[0] == pytest.approx((RANKS < 1).mean())


def test_labels_may_have_any_shape_of_the_right_count(backend):
    one = make_layer(text(), [X, LABELS.reshape(4, 1, 3, 1)], device=backend)

    assert one.forward()[0] == pytest.approx((RANKS < 1).mean())


@pytest.mark.parametrize(("k", "expected"), [(1, 0), (2, 0.5), (3, 1)])
def test_ties_count_against_the_prediction(k, expected, backend):
    scores = [[1.0, 1, 0], [1, 1, 1]]

    one = make_layer(text(f"top_k: {k}"), [scores, [0, 2]], device=backend)

    assert one.forward()[0] == expected


def test_ignored_labels_do_not_count(backend):
    labels = LABELS.copy()
    labels[0] = 255
    one = make_layer(text("ignore_label: 255"), [X, labels], device=backend)

    assert one.forward()[0] == pytest.approx((RANKS[1:] < 1).mean())


def test_a_batch_of_ignored_labels_has_accuracy_0(backend):
    one = make_layer(
        text("ignore_label: 1", 'top: "a" top: "b"'), [X, np.ones_like(LABELS)], device=backend
    )

    accuracy, each = one.forward()

    assert accuracy == 0
    assert not each.any()


@pytest.mark.parametrize("ignored", [None, 3])
def test_a_second_top_has_the_accuracy_of_each_class(ignored, backend):
    fields = "top_k: 2" + (f" ignore_label: {ignored}" if ignored is not None else "")
    one = make_layer(text(fields, 'top: "a" top: "b"'), [X, LABELS], device=backend)

    each = one.forward()[1]

    assert each.shape == (5,)
    for k in range(5):
        mine = k == LABELS
        there = mine.any() and k != ignored
        assert each[k] == pytest.approx((RANKS[mine] < 2).mean() if there else 0)


def test_a_label_that_is_no_class_is_wrong(backend):
    one = make_layer(text("top_k: 2"), [[[1.0, 2], [2, 1], [1, 2]], [0, 5, -1]], device=backend)

    assert one.forward()[0] == pytest.approx(1 / 3)


def test_top_k_above_the_number_of_classes_is_refused():
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="accuracy_param.top_k"):
        make_layer(text("top_k: 6"), [X, LABELS])


def test_too_few_labels_are_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom1", got=4, mentions="3"):
        make_layer(text(), [X, np.zeros(4)])


def test_it_has_no_gradient():
    one = make_layer(text(), [X, LABELS])
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, type="Accuracy", mentions="force_backward"):
        one.backward(1, propagate_down=[True, False])
    one.backward(1, propagate_down=[False, False])


def test_scores_that_are_not_numbers_are_right_but_not_believable(backend):
    one = make_layer(text(), [X, LABELS], device=backend)
    one.forward()
    assert one.layer.believable()

    [accuracy] = one.forward(np.full_like(X, np.nan), LABELS)

    assert accuracy == 1  # as in Caffe
    assert not one.layer.believable()


def test_ignored_scores_may_be_anything(backend):
    x = X.copy()
    x[0] = np.nan
    labels = LABELS.copy()
    labels[0] = 7

    one = make_layer(text("ignore_label: 7"), [x, labels], device=backend)
    one.forward()

    assert one.layer.believable()
