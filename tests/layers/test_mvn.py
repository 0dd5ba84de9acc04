"""MVN."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ShapeError
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(3, 2, (2, 3, 4, 5))


def layer(fields, x=X, **options):
    return make_layer(f'type: "MVN" mvn_param {{ {fields} }}', [x], **options)


@pytest.mark.parametrize(("fields", "axes"), [("", (2, 3)), ("across_channels: true", (1, 2, 3))])
def test_each_channel_or_each_item_gets_mean_0_and_variance_1(fields, axes, backend):
    [y] = layer(fields, device=backend).forward()

    np.testing.assert_allclose(y.mean(axis=axes), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=axes), 1)


def test_may_leave_the_variance_alone(backend):
    [y] = layer("normalize_variance: false", device=backend).forward()

    np.testing.assert_allclose(y, X - X.mean(axis=(2, 3), keepdims=True))


def test_eps_is_added_to_the_deviation(backend):
    [y] = layer("eps: 0.5", device=backend).forward()

    centred = X - X.mean(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(y, centred / (X.std(axis=(2, 3), keepdims=True) + 0.5))


def test_a_constant_channel_becomes_0(backend):
    [y] = layer("", np.ones((1, 2, 3, 3)), device=backend).forward()

    np.testing.assert_array_equal(y, 0)


def test_the_top_has_four_axes():
    [y] = layer("across_channels: true", X[:, :, 0, 0]).forward()

    assert y.shape == (2, 3, 1, 1)


@pytest.mark.parametrize(
    "fields",
    ["", "across_channels: true", "normalize_variance: false"],
)
def test_gradients(fields, backend):
    expect_gradients(f'type: "MVN" mvn_param {{ {fields} }}', X[..., :3], device=backend)


def test_refuses_more_than_four_axes():
    with expect_error(ShapeError, mentions="4"):
        layer("", X[None])
