"""Permute."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3, 4, 5))


def text(order, more=""):
    fields = " ".join(f"order: {axis}" for axis in order)
    return f'type: "Permute" permute_param {{ {fields} }} {more}'


@pytest.mark.parametrize(
    ("order", "whole"),
    [
        ((0, 2, 3, 1), (0, 2, 3, 1)),
        ((3, 2, 1, 0), (3, 2, 1, 0)),
        ((2,), (2, 0, 1, 3)),
        ((1, 3), (1, 3, 0, 2)),
        ((), (0, 1, 2, 3)),
    ],
)
def test_axes_that_are_not_named_follow(order, whole, backend):
    one = make_layer(text(order), [X], device=backend)

    [y] = one.forward()

    np.testing.assert_array_equal(y, np.transpose(X, whole))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1), ()])
def test_gradients(order, backend):
    expect_gradients(text(order), X[:, :, :2, :2], threshold=1e-8, device=backend)


def test_other_sizes_of_the_same_axes(backend):
    one = make_layer(text((1, 0)), [X], device=backend)

    [y] = one.forward(X[:1, :2])

    np.testing.assert_array_equal(y, X[:1, :2].transpose(1, 0, 2, 3))


def test_an_axis_named_twice_is_refused():
    with expect_error(ConfigError, ErrorCode.DUPLICATE, field="permute_param.order"):
        make_layer(text((0, 0)), [X])


def test_an_axis_that_is_not_there_is_refused():
    with expect_error(ShapeError, ErrorCode.OUT_OF_RANGE, field="permute_param.order"):
        make_layer(text((0, 4)), [X])


def test_another_number_of_axes_is_refused():
    one = make_layer(text((1, 0)), [X])

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["Permute", "4 axes"]):
        one.forward(X[0])


def test_in_place_is_refused():
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        make_layer(text((1, 0), 'bottom: "x" top: "x"'), [X])
