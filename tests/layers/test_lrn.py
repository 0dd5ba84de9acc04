"""LRN, held against its definition."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 7, 5, 4))

WIDEST = 2**32 - 1
"""The largest odd number that the field holds."""


def text(fields):
    return f'type: "LRN" lrn_param {{ {fields} }}'


def across(x, size, alpha, beta, k):
    y = np.zeros_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - size // 2) : c + size // 2 + 1]
        y[:, c] = x[:, c] * (k + alpha / size * (near**2).sum(axis=1)) ** -beta
    return y


def within(x, size, alpha, beta):
    y, reach = np.zeros_like(x), size // 2
    for h in range(x.shape[2]):
        for w in range(x.shape[3]):
            rows = slice(max(0, h - reach), h + reach + 1)
            near = x[:, :, rows, max(0, w - reach) : w + reach + 1]
            mean = (near**2).sum(axis=(2, 3)) / size**2
            y[:, :, h, w] = x[:, :, h, w] * (1 + alpha * mean) ** -beta
    return y


@pytest.mark.parametrize("size", [1, 3, 5, 15, WIDEST])
@pytest.mark.parametrize(("alpha", "beta", "k"), [(1, 0.75, 1), (0.25, 1.5, 2)])
def test_across_channels(size, alpha, beta, k, backend):
    fields = f"local_size: {size} alpha: {alpha} beta: {beta} k: {k}"

    [y] = make_layer(text(fields), [X], device=backend).forward()

    np.testing.assert_allclose(y, across(X, size, alpha, beta, k), rtol=1e-9)


@pytest.mark.parametrize("size", [1, 3, 5, 15, WIDEST])
@pytest.mark.parametrize("k", [1, 7])
def test_within_a_channel_k_is_one_whatever_is_given(size, k, backend):
    fields = f"norm_region: WITHIN_CHANNEL local_size: {size} alpha: 0.5 beta: 0.6 k: {k}"

    [y] = make_layer(text(fields), [X], device=backend).forward()

    # beta is a float32 in the message
    np.testing.assert_allclose(y, within(X, size, 0.5, np.float32(0.6)), rtol=1e-9)


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("size", [1, 3, 7, WIDEST])
def test_gradients(region, size, backend):
    fields = f"norm_region: {region} local_size: {size} alpha: 3 beta: 0.6 k: 1.5"

    expect_gradients(text(fields), X[:1, :5, :3], device=backend)


def test_in_place_it_computes_but_has_no_gradient():
    one = make_layer('type: "LRN" bottom: "x" top: "x"', [X])

    [y] = one.forward()

    np.testing.assert_allclose(y, across(X, 5, 1, 0.75, 1), rtol=1e-9)
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x"):
        one.backward(y)


@pytest.mark.parametrize("size", [0, 4])
def test_an_even_neighbourhood_is_refused(size):
    with expect_error(ConfigError, ErrorCode.OUT_OF_RANGE, field="lrn_param.local_size"):
        make_layer(text(f"local_size: {size}"), [X])


def test_other_numbers_of_axes_are_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["LRN", "(N, C, H, W)"]):
        make_layer(text(""), [X[0]])
