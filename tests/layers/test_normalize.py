"""Normalize."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ErrorCode, ShapeError
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3, 2, 4))
IN_PLACE = 'bottom: "x" top: "x"'


def text(fields="", more=""):
    return f'type: "Normalize" norm_param {{ {fields} }} {more}'


def loop(x, across, eps):
    """Every item, or every place, divided by its length."""
    y = np.empty_like(x)
    for n in range(x.shape[0]):
        if across:
            y[n] = x[n] / np.sqrt((x[n] ** 2).sum() + eps)
            continue
        for h in range(x.shape[2]):
            for w in range(x.shape[3]):
                place = x[n, :, h, w]
                y[n, :, h, w] = place / np.sqrt((place**2).sum() + eps)
    return y


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("eps", [1e-10, 0.5])
def test_against_a_loop(across, eps, backend):
    fields = f"across_spatial: {str(across).lower()} eps: {eps}"
    one = make_layer(text(fields), [X], device=backend)

    [y] = one.forward()

    np.testing.assert_allclose(y, loop(X, across, np.float32(eps)))
    assert one.params[0].shape == ()


@pytest.mark.parametrize("more", ["", IN_PLACE])
def test_one_scale_for_each_channel(more, backend):
    one = make_layer(text("channel_shared: false across_spatial: false", more), [X], device=backend)
    one.params[0].data = scale = np.array([2.0, -1.0, 0.5])

    [y] = one.forward(X)

    np.testing.assert_allclose(y, loop(X, False, 1e-10) * scale[:, None, None])


def test_the_filler_gives_the_scale(backend):
    one = make_layer(text("scale_filler { value: 20 }"), [X], device=backend)

    np.testing.assert_allclose(one.forward()[0], 20 * loop(X, True, 1e-10))


@pytest.mark.parametrize("across", ["true", "false"])
@pytest.mark.parametrize("shared", ["true", "false"])
@pytest.mark.parametrize("more", ["", IN_PLACE])
def test_gradients(across, shared, more, backend):
    filler = 'scale_filler { type: "uniform" min: 0.5 max: 2 }'
    fields = f"across_spatial: {across} channel_shared: {shared} {filler}"

    expect_gradients(text(fields, more), X, step=1e-4, threshold=1e-6, device=backend)


def test_two_axes_are_enough(backend):
    expect_gradients(text("channel_shared: false"), X[:, :, 0, 0], device=backend)


def test_an_item_of_zeros_stays_one(backend):
    one = make_layer(text(), [np.zeros((1, 2, 1, 1))], device=backend)

    np.testing.assert_array_equal(one.forward()[0], 0)


def test_a_bottom_without_channels_is_refused():
    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["(N, C, ...)", "(4,)"]):
        make_layer(text(), [np.ones(4)])


def test_other_channels_are_refused():
    one = make_layer(text("channel_shared: false"), [X])

    with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=2, mentions="3"):
        one.forward(X[:, :2])
