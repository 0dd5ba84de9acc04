"""ArgMax."""

import numpy as np
import pytest
from expect_error import expect_error

from demitasse import Net
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3, 4, 5))


def layer(fields, x=X, **options):
    return make_layer(f'type: "ArgMax" argmax_param {{ {fields} }}', [x], **options)


def test_finds_the_largest_of_each_item(backend):
    [y] = layer("", device=backend).forward()

    assert y.shape == (2, 1, 1, 1)
    np.testing.assert_array_equal(y.ravel(), X.reshape(2, -1).argmax(axis=1))


@pytest.mark.parametrize(
    ("bottom", "top"),
    [((2, 7), (2, 1, 3)), ((2, 7, 3), (2, 1, 3)), ((2, 2, 2, 2, 2), (2, 1, 3, 1, 1))],
)
def test_the_top_has_at_least_three_axes(bottom, top):
    x = np.arange(np.prod(bottom), dtype=float).reshape(bottom)

    [y] = layer("top_k: 3", x).forward()

    assert y.shape == top
    n = x[0].size
    np.testing.assert_array_equal(y.reshape(2, 3), [[n - 1, n - 2, n - 3]] * 2)


def test_gives_the_values_behind_the_indices(backend):
    [y] = layer("top_k: 4 out_max_val: true", device=backend).forward()

    rows = X.reshape(2, -1)
    order = np.argsort(-rows, axis=1)[:, :4]
    assert y.shape == (2, 2, 4, 1)
    np.testing.assert_array_equal(y[:, 0, :, 0], order)
    np.testing.assert_array_equal(y[:, 1, :, 0], np.take_along_axis(rows, order, axis=1))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_along_an_axis_gives_indices_or_values(axis, k, backend):
    order = np.take(np.argsort(-X, axis=axis), range(k), axis=axis)

    [indices] = layer(f"top_k: {k} axis: {axis}", device=backend).forward()
    [values] = layer(f"top_k: {k} axis: {axis} out_max_val: true", device=backend).forward()

    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(X, order, axis=axis))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_of_equal_values_the_last_comes_first(k, backend):
    [y] = layer(f"top_k: {k}", np.array([[3.0, 7, 1, 7, 7]]), device=backend).forward()

    np.testing.assert_array_equal(y.ravel(), [4, 3, 1][:k])


def test_along_an_axis_the_last_of_equal_values_or_nan_is_the_largest(backend):
    x = np.array([[[3.0, 7, np.nan], [3, 1, 9], [3, 7, np.nan], [2, 7, 8]]])

    [indices] = layer("axis: 1", x, device=backend).forward()
    [values] = layer("axis: 1 out_max_val: true", x, device=backend).forward()

    np.testing.assert_array_equal(indices, [[[2, 3, 2]]])
    np.testing.assert_array_equal(values, [[[3, 7, np.nan]]])


def test_has_no_gradient():
    one = layer("")
    one.forward()

    with expect_error(NetError, ErrorCode.NO_GRADIENT, type="ArgMax"):
        one.backward(propagate_down=[True])


@pytest.mark.parametrize("fields", ["top_k: 61", "top_k: 4 axis: 1"])
def test_refuses_to_choose_more_than_there_are(fields):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="argmax_param.top_k"):
        layer(fields)


@pytest.mark.parametrize(
    ("fields", "shape", "error", "mentions"),
    [
        ("top_k: 61", (2, 3, 4, 4), ConfigError, ["argmax_param.top_k", "48"]),
        ("top_k: 3 axis: 1", (2, 2, 4, 5), ConfigError, ["argmax_param.top_k", "2"]),
        ("axis: 3", (2, 3, 4), ShapeError, ["axis 3"]),
    ],
)
def test_refuses_a_later_bottom_that_is_too_small(fields, shape, error, mentions):
    text = f"""
layer {{ name: "x" type: "Input" top: "x"
  input_param {{ shape {{ dim: 2 dim: 3 dim: 5 dim: 5 }} }} }}
layer {{ name: "best" type: "ArgMax" bottom: "x" top: "best" argmax_param {{ {fields} }} }}"""
    net = Net(text, "TEST", device="numpy")
    net.blobs["x"].reshape(shape)

    with expect_error(error, mentions=["layer 'best'", *mentions]):
        net.forward()


def test_refuses_to_choose_none():
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="argmax_param.top_k"):
        layer("top_k: 0")


def test_refuses_an_axis_that_is_not_there():
    with expect_error(ShapeError, mentions="axis 4"):
        layer("axis: 4")
