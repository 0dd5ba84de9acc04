"""Reduction."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse import Net
from demitasse.errors import ShapeError
from demitasse.io.proto import NetParameter, parse_text
from demitasse.testing import make_layer

X = np.random.default_rng(0).normal(0, 1, (2, 3, 4))
OPERATIONS = {
    "SUM": lambda x: x.sum(-1),
    "ASUM": lambda x: np.abs(x).sum(-1),
    "SUMSQ": lambda x: (x * x).sum(-1),
    "MEAN": lambda x: x.mean(-1),
}


def text(operation="SUM", fields=""):
    return f'type: "Reduction" reduction_param {{ operation: {operation} {fields} }}'


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("axis", "lead"), [(0, ()), (1, (2,)), (2, (2, 3)), (-1, (2, 3))])
def test_reduces_the_axes_from_axis_on(operation, axis, lead, backend):
    [y] = make_layer(text(operation, f"axis: {axis} coeff: 0.5"), [X], device=backend).forward()

    assert y.shape == lead
    np.testing.assert_allclose(y, 0.5 * OPERATIONS[operation](X.reshape(*lead, -1)))


def test_sums_everything_by_default():
    assert make_layer('type: "Reduction"', [X]).forward()[0] == pytest.approx(X.sum())


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradients(operation, axis, backend):
    expect_gradients(
        text(operation, f"axis: {axis} coeff: 0.5"), X, kink=0, kink_range=0.01, device=backend
    )


def test_the_sum_of_absolute_values_has_gradient_0_at_0():
    one = make_layer(text("ASUM"), [[-1.0, 0.0, 2.0]])
    one.forward()

    np.testing.assert_array_equal(one.backward(3)[0], [-3, 0, 3])


def test_with_a_loss_weight_it_is_a_loss(backend):
    net = Net(
        parse_text(
            """
            force_backward: true
            layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
            layer { name: "loss" type: "Reduction" bottom: "x" top: "loss" loss_weight: 3
                    reduction_param { operation: SUMSQ } }
            """,
            NetParameter,
        ),
        "TRAIN",
        device=backend,
    )
    net.blobs["x"].data = 2

    assert net.forward_backward() == 3 * 24
    np.testing.assert_array_equal(net.blobs["x"].diff, 3 * 2 * 2)


def test_follows_bottoms_of_other_shapes():
    one = make_layer(text("MEAN", "axis: 1"), [X])

    np.testing.assert_allclose(one.forward(np.ones((5, 7)))[0], np.ones(5))


def test_refuses_an_axis_that_is_not_there():
    with expect_error(ShapeError, mentions="axis 3"):
        make_layer(text("SUM", "axis: 3"), [X])
