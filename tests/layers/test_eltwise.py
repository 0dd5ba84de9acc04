"""Eltwise."""

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, ShapeError
from demitasse.testing import make_layer

A = np.array([[1.0, 5.0, -2.0], [0.5, 3.0, 4.0]])
B = np.array([[2.0, 5.0, -3.0], [0.5, 1.0, 4.0]])
C = np.array([[0.0, 6.0, -2.0], [0.5, 2.0, 4.0]])


def layer(fields, *bottoms, **options):
    return make_layer(f'type: "Eltwise" eltwise_param {{ {fields} }}', bottoms, **options)


def test_sums_by_default(backend):
    [y] = layer("", A, B, C, device=backend).forward()

    np.testing.assert_allclose(y, A + B + C)


def test_a_sum_takes_a_coefficient_for_every_bottom(backend):
    [y] = layer("coeff: 2 coeff: -1 coeff: 0.5", A, B, C, device=backend).forward()

    np.testing.assert_allclose(y, 2 * A - B + 0.5 * C)


def test_multiplies(backend):
    [y] = layer("operation: PROD", A, B, C, device=backend).forward()

    np.testing.assert_allclose(y, A * B * C)


def test_takes_the_maximum(backend):
    [y] = layer("operation: MAX", A, B, C, device=backend).forward()

    np.testing.assert_array_equal(y, np.maximum(np.maximum(A, B), C))


def test_of_equal_maxima_the_second_bottom_wins_and_later_ones_lose(backend):
    one = layer("operation: MAX", [7.0, 7.0, 1.0], [7.0, 1.0, 7.0], [7.0, 7.0, 7.0], device=backend)
    one.forward()

    first, second, third = one.backward([1.0, 1.0, 1.0])

    np.testing.assert_array_equal(first, [0, 1, 0])
    np.testing.assert_array_equal(second, [1, 0, 1])
    np.testing.assert_array_equal(third, [0, 0, 0])


@pytest.mark.parametrize(
    "fields",
    [
        "",
        "coeff: 2 coeff: -1 coeff: 0.5",
        "operation: PROD",
        "operation: PROD stable_prod_grad: false",
        "operation: MAX",
        "operation: MAX coeff: 1 coeff: 1 coeff: 1",
    ],
)
def test_gradients(fields, backend):
    rng = np.random.default_rng(0)
    bottoms = [rng.uniform(0.5, 2, (2, 3, 4)) for _ in range(3)]

    expect_gradients(f'type: "Eltwise" eltwise_param {{ {fields} }}', *bottoms, device=backend)


def test_only_the_wanted_gradients_are_computed():
    one = layer("operation: PROD", A, B)
    one.forward()
    one.bottom[0].diff = 9

    below = one.backward(np.ones_like(A), propagate_down=[False, True])

    np.testing.assert_array_equal(below[1], A)
    np.testing.assert_array_equal(one.bottom[0].diff, 9)


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX"])
def test_in_place_gives_the_same_as_apart(operation, backend):
    dy = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, 6.0]])
    apart = layer(f"operation: {operation}", A, B, C, device=backend)
    text = f'type: "Eltwise" bottom: "x" top: "x" eltwise_param {{ operation: {operation} }}'
    in_place = make_layer(text, [A, B, C], device=backend)
    assert in_place.top[0] is in_place.bottom[0]

    np.testing.assert_array_equal(in_place.forward(), apart.forward())
    np.testing.assert_allclose(in_place.backward(dy), apart.backward(dy))


def test_refuses_bottoms_of_different_shapes():
    with expect_error(
        ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["0", "(2, 3)", "1", "(3, 2)"]
    ):
        layer("", A, B.T)


def test_refuses_coefficients_for_some_bottoms():
    with expect_error(ConfigError, ErrorCode.COUNT_MISMATCH, field="eltwise_param.coeff"):
        layer("coeff: 1", A, B)


def test_refuses_coefficients_of_a_product():
    with expect_error(ConfigError, ErrorCode.CONFLICT, field="eltwise_param.coeff"):
        layer("operation: PROD coeff: 1 coeff: 2", A, B)
