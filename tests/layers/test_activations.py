"""Elementwise layers: values, gradients, in place, refusals."""

import math

import numpy as np
import pytest
from expect_error import expect_error
from gradients import expect_gradients

from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError
from demitasse.testing import make_layer

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1.5, (2, 3, 4))
POSITIVE = RNG.uniform(0.5, 2, (2, 3, 4))

CASES = [  # name, text, input, the same in numpy, places of kinks
    ("relu", 'type: "ReLU"', X, lambda x: np.maximum(x, 0), 0),
    (
        "relu_leaky",
        'type: "ReLU" relu_param { negative_slope: 0.25 }',
        X,
        lambda x: np.where(x > 0, x, x / 4),
        0,
    ),
    (
        "relu_mirrored",
        'type: "ReLU" relu_param { negative_slope: -0.5 }',
        X,
        lambda x: np.where(x > 0, x, -x / 2),
        0,
    ),
    ("sigmoid", 'type: "Sigmoid"', X, lambda x: 1 / (1 + np.exp(-x)), None),
    ("tanh", 'type: "TanH"', X, np.tanh, None),
    ("bnll", 'type: "BNLL"', X, lambda x: np.log(1 + np.exp(x)), None),
    (
        "elu",
        'type: "ELU" elu_param { alpha: 0.5 }',
        X,
        lambda x: np.where(x > 0, x, (np.exp(x) - 1) / 2),
        0,
    ),
    (
        "elu_negative",
        'type: "ELU" elu_param { alpha: -0.5 }',
        X,
        lambda x: np.where(x > 0, x, -(np.exp(x) - 1) / 2),
        0,
    ),
    ("gelu", 'type: "GELU"', X, lambda x: x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2, None),
    ("swish", 'type: "Swish"', X, lambda x: x / (1 + np.exp(-x)), None),
    (
        "swish_beta",
        'type: "Swish" swish_param { beta: 2.5 }',
        X,
        lambda x: x / (1 + np.exp(-2.5 * x)),
        None,
    ),
    (
        "clip",
        'type: "Clip" clip_param { min: -0.5 max: 1.25 }',
        X,
        lambda x: np.clip(x, -0.5, 1.25),
        (0.5, 1.25),
    ),
    ("power", 'type: "Power"', X, lambda x: x, None),
    (
        "power_linear",
        'type: "Power" power_param { scale: 2 shift: -1 }',
        X,
        lambda x: 2 * x - 1,
        None,
    ),
    (
        "power_0",
        'type: "Power" power_param { power: 0 scale: 2 }',
        X,
        np.ones_like,
        None,
    ),
    (
        "power_scale_0",
        'type: "Power" power_param { power: 2 scale: 0 shift: 3 }',
        X,
        lambda x: np.full_like(x, 9),
        None,
    ),
    ("power_2", 'type: "Power" power_param { power: 2 }', X, lambda x: x**2, None),
    (
        "power_3",
        'type: "Power" power_param { power: 3 scale: -0.5 shift: 1 }',
        X,
        lambda x: (1 - x / 2) ** 3,
        None,
    ),
    (
        "power_fraction",
        'type: "Power" power_param { power: -1.5 shift: 0.5 }',
        POSITIVE,
        lambda x: (0.5 + x) ** -1.5,
        None,
    ),
    ("exp", 'type: "Exp"', X, np.exp, None),
    (
        "exp_e_shifted",
        'type: "Exp" exp_param { scale: 0.5 shift: 2 }',
        X,
        lambda x: np.exp(2 + x / 2),
        None,
    ),
    (
        "exp_base",
        'type: "Exp" exp_param { base: 2 scale: 0.5 shift: -1 }',
        X,
        lambda x: 2 ** (x / 2 - 1),
        None,
    ),
    ("exp_base_1", 'type: "Exp" exp_param { base: 1 }', X, np.ones_like, None),
    ("log", 'type: "Log"', POSITIVE, np.log, None),
    (
        "log_base",
        'type: "Log" log_param { base: 10 scale: 2 shift: 0.5 }',
        POSITIVE,
        lambda x: np.log10(2 * x + 0.5),
        None,
    ),
    ("prelu", 'type: "PReLU"', X, lambda x: np.where(x > 0, x, x / 4), 0),
    (
        "prelu_shared",
        'type: "PReLU" prelu_param { channel_shared: true filler { value: 2 } }',
        X,
        lambda x: np.where(x > 0, x, 2 * x),
        0,
    ),
]
every_case = pytest.mark.parametrize(
    ("text", "x", "function", "kink"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)


def in_place(text):
    return f'{text} bottom: "x" top: "x"'


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values(text, x, function, kink, dtype, backend):
    one = make_layer(text, [x], dtype=dtype, device=backend)

    [y] = one.forward()

    assert y.dtype == dtype
    np.testing.assert_allclose(y, function(x), rtol=2e-5, atol=1e-6)


@every_case
def test_in_place_gives_the_same_values_and_gradients(text, x, function, kink, backend):
    apart = make_layer(text, [x], device=backend)
    one = make_layer(in_place(text), [x], device=backend)
    dy = RNG.normal(0, 1, x.shape)

    np.testing.assert_array_equal(one.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(one.backward(dy)[0], apart.backward(dy)[0])
    for mine, other in zip(one.params, apart.params, strict=True):
        np.testing.assert_array_equal(mine.diff, other.diff)


@every_case
def test_gradients(text, x, function, kink, backend):
    near = {} if kink is None else {"kink": kink, "kink_range": 5e-3}

    expect_gradients(text, x, step=1e-4, threshold=1e-6, device=backend, **near)


def test_the_gradient_of_each_element_is_its_own(backend):
    expect_gradients('type: "PReLU"', X, kink_range=5e-3, exhaustive=True, device=backend)


GELU = {  # x: y and its derivative, computed with 50 digits
    -12.0: (-2.1317785344932147e-32, -2.5578956616748956e-31),
    -5.0: (-1.4332578593959695e-06, -7.146946001792295e-06),
    -2.5: (-0.015524163314440337, -0.03761108590814521),
    -1.0: (-0.15865525393145705, -0.0833154705876863),
    -0.75: (-0.16997051428265114, 0.0007742782607648957),
    -0.125: (-0.056282721896235885, 0.4007820643017934),
    0.0: (0.0, 0.5),
    0.3: (0.1853734266566858, 0.7323277668271099),
    1.0: (0.8413447460685429, 1.0833154705876864),
    2.0: (1.9544997361036416, 1.085231801078197),
    4.5: (4.4999847104709385, 1.0000685291618563),
}


@pytest.mark.parametrize("place", ["", in_place("")], ids=["apart", "in place"])
def test_gelu_is_exact_in_float64(place, backend):
    y, dy = np.transpose(list(GELU.values()))
    one = make_layer(f'type: "GELU" {place}', [list(GELU)], dtype="float64", device=backend)

    np.testing.assert_allclose(one.forward()[0], y, rtol=1e-14)
    np.testing.assert_allclose(one.backward(np.ones_like(y))[0], dy, rtol=1e-12)


@pytest.mark.parametrize("place", ["", in_place("")], ids=["apart", "in place"])
def test_gelu_is_right_to_seven_digits_after_the_point_in_float32(place, backend):
    y, dy = np.transpose(list(GELU.values()))
    one = make_layer(f'type: "GELU" {place}', [list(GELU)], dtype="float32", device=backend)

    np.testing.assert_allclose(one.forward()[0], y, rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(one.backward(np.ones_like(y))[0], dy, rtol=2e-7, atol=1e-7)


def test_gelu_of_what_is_not_finite(backend):
    one = make_layer('type: "GELU"', [[math.inf, -math.inf, math.nan]], device=backend)

    np.testing.assert_array_equal(one.forward()[0], [math.inf, 0, math.nan])
    np.testing.assert_array_equal(one.backward([1, 1, 1])[0], [1, 0, math.nan])


def test_absval(backend):
    one = make_layer('type: "AbsVal"', [[-2.0, 0.0, 3.0]], device=backend)

    np.testing.assert_array_equal(one.forward()[0], [2, 0, 3])
    np.testing.assert_array_equal(one.backward([1, 1, 1])[0], [-1, 0, 1])


def test_absval_cannot_run_in_place():
    with expect_error(NetError, ErrorCode.CONFLICT, blob="x", mentions="AbsVal"):
        make_layer(in_place('type: "AbsVal"'), [X])


def test_threshold_is_strict_and_has_no_gradient(backend):
    one = make_layer(
        'type: "Threshold" threshold_param { threshold: 0.5 }', [[0.5, 0.75, -1.0]], device=backend
    )

    np.testing.assert_array_equal(one.forward()[0], [0, 1, 0])
    with expect_error(NetError, ErrorCode.NO_GRADIENT, type="Threshold"):
        one.backward([1, 1, 1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["Sigmoid", "TanH", "BNLL", "ELU", "GELU", "Swish"])
def test_large_inputs_stay_finite(kind, dtype, backend):
    x = [-1e4, -100.0, 100.0, 1e4]
    one = make_layer(f'type: "{kind}"', [x], dtype=dtype, device=backend)

    [y] = one.forward()
    [dx] = one.backward([1, 1, 1, 1])

    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()


def test_what_overflows_becomes_infinite_and_what_is_undefined_nan(backend):
    power = make_layer('type: "Power" power_param { power: 0.5 }', [[-1.0, 4.0]], device=backend)
    exp = make_layer('type: "Exp"', [[1000.0]], device=backend)
    log = make_layer('type: "Log"', [[0.0, -1.0]], device=backend)

    np.testing.assert_array_equal(power.forward()[0], [np.nan, 2])
    np.testing.assert_array_equal(exp.forward()[0], [np.inf])
    np.testing.assert_array_equal(log.forward()[0], [-np.inf, np.nan])


def test_the_gradient_of_a_power_is_right_at_0(backend):
    one = make_layer('type: "Power" power_param { power: 3 }', [[0.0, 2.0]], device=backend)
    one.forward()

    np.testing.assert_allclose(one.backward([1, 1])[0], [0, 12])


def test_clip_passes_the_gradient_at_its_ends(backend):
    one = make_layer(
        'type: "Clip" clip_param { min: -1 max: 2 }', [[-1.5, -1, 0, 2, 2.5]], device=backend
    )
    one.forward()

    np.testing.assert_array_equal(one.backward([3] * 5)[0], [0, 3, 3, 3, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layers_without_a_bottom_gradient_leave_it_alone(dtype):
    for _, text, x, _, _ in CASES:
        one = make_layer(text, [x], dtype=dtype)
        one.forward()
        one.bottom[0].diff[...] = 7

        one.backward(np.ones_like(x), propagate_down=[False])

        assert (one.bottom[0].diff == 7).all()


class TestPReLU:
    def test_one_slope_per_channel_begins_at_a_quarter(self):
        one = make_layer('type: "PReLU"', [X])

        assert one.params[0].shape == (3,)
        np.testing.assert_array_equal(one.params[0].data, [0.25] * 3)

    def test_a_shared_slope_is_a_scalar(self):
        one = make_layer('type: "PReLU" prelu_param { channel_shared: true }', [X])

        assert one.params[0].shape == ()

    def test_slopes_are_applied_to_their_channels(self, backend):
        one = make_layer('type: "PReLU"', [-np.ones((1, 3, 2))], device=backend)
        one.params[0].data = [1, 2, 3]

        np.testing.assert_array_equal(one.forward()[0], [[[-1, -1], [-2, -2], [-3, -3]]])

    def test_slope_gradients_add_up(self, backend):
        one = make_layer('type: "PReLU"', [X], device=backend)
        one.forward()
        one.backward(np.ones_like(X))
        once = np.array(one.params[0].diff)

        one.backward(np.ones_like(X))

        np.testing.assert_allclose(one.params[0].diff, 2 * once)
        np.testing.assert_allclose(once, np.minimum(X, 0).sum(axis=(0, 2)))

    def test_a_frozen_slope_gets_no_gradient(self):
        one = make_layer('type: "PReLU"', [X])
        one.layer.set_param_propagate_down(0, False)
        one.forward()

        one.backward(np.ones_like(X))

        assert not one.params[0].diff.any()

    def test_one_axis_is_refused(self):
        with expect_error(ShapeError, ErrorCode.SHAPE_MISMATCH, mentions=["PReLU", "(N, C, ...)"]):
            make_layer('type: "PReLU"', [[1.0, 2, 3]])

    def test_other_channels_are_refused(self):
        one = make_layer('type: "PReLU"', [X])

        with expect_error(
            ShapeError, ErrorCode.SHAPE_MISMATCH, blob="bottom0", got=5, mentions="3"
        ):
            one.forward(np.ones((2, 5)))


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ('type: "Exp" exp_param { base: 0 }', ErrorCode.OUT_OF_RANGE, "exp_param.base"),
        ('type: "Exp" exp_param { base: -2 }', ErrorCode.OUT_OF_RANGE, "exp_param.base"),
        ('type: "Log" log_param { base: 0 }', ErrorCode.OUT_OF_RANGE, "log_param.base"),
        ('type: "Log" log_param { base: 1 }', ErrorCode.OUT_OF_RANGE, "log_param.base"),
        ('type: "Clip"', ErrorCode.MISSING, "clip_param.min"),
    ],
)
def test_constants_that_cannot_be_are_refused(text, code, field):
    with expect_error(ConfigError, code, field=field):
        make_layer(text, [POSITIVE])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elu_of_small_inputs_is_not_rounded_to_steps(dtype, backend):
    x = -np.array([1e-3, 1e-5, 3e-8])
    one = make_layer('type: "ELU"', [x], dtype=dtype, device=backend)

    np.testing.assert_allclose(one.forward()[0], np.expm1(x), rtol=1e-5)
