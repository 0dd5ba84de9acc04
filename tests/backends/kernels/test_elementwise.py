"""Functions of every element, on arrays, against numpy in double precision."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels import elementwise
from demitasse.backends.kernels.elementwise import (
    COMBINATIONS,
    FUNCTIONS,
    PAIRS,
    SLOPES,
    SLOPES_OF_BOTH,
    Elementwise,
)
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.normal import gelu, gelu_slope

COUNTS = pytest.mark.parametrize("count", [1, 7, 16, 21, 48, 1000])
THREADS = pytest.mark.parametrize("threads", [1, 3])
SPECIAL = np.array(
    [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 88.5, 89.5, -87.5, -105.0],
    np.float32,
)
NUMBERS = {
    "clip": (-0.5, 1.5),
    "elu": (0.75,),
    "exp": (0.5, 1.5),
    "linear": (1.0, 0.5, -0.25),
    "relu": (0.25,),
    "square": (2.0, 0.5, -0.25),
    "swish": (1.5,),
}


def sign(x):
    return np.where(np.isnan(x), x, np.sign(x))


def gate(x):
    return 1 / (1 + np.exp(-1.5 * x))


WANT = {
    "abs": np.abs,
    "bnll": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "clip": lambda x: np.maximum(np.minimum(x, 1.5), -0.5),
    "elu": lambda x: np.maximum(x, 0) + 0.75 * np.expm1(np.minimum(x, 0)),
    "exp": lambda x: np.exp(0.5 * x) * 1.5,
    "gelu": lambda x: gelu(np, x),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "linear": lambda x: 0.5 * x - 0.25,
    "relu": lambda x: np.maximum(x, 0) + 0.25 * np.minimum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "square": lambda x: (0.5 * x - 0.25) ** 2,
    "swish": lambda x: x * gate(x),
    "tanh": np.tanh,
}
WANT_SLOPES = {
    "abs_slope": sign,
    "bnll_slope": lambda x: 1 / (1 + np.exp(-np.minimum(x, 50.0))),
    "clip_slope": lambda x: ((x >= -0.5) & (x <= 1.5)).astype(float),
    "exp_slope": lambda y: 0.5 * y,
    "gelu_slope": lambda x: gelu_slope(np, x),
    "hard_swish_slope": lambda x: np.where(x >= 3, 1.0, np.where(x <= -3, 0.0, (2 * x + 3) / 6)),
    "inside_slope": lambda x: ((x > -0.5) & (x < 1.5)).astype(float),
    "linear_slope": lambda x: np.full_like(x, 0.5),
    "relu_slope": lambda x: np.where(x > 0, 1.0, np.where(x <= 0, 0.25, 0.0)),
    "sigmoid_slope": lambda y: y * (1 - y),
    "square_slope": lambda x: 0.5 * x - 0.25,
    "tanh_slope": lambda y: 1 - y * y,
}
WANT_SLOPES_OF_BOTH = {
    "elu_slope": lambda x, y: np.where(x > 0, 1.0, y + 0.75),
    "swish_slope": lambda x, y: 1.5 * y + gate(x) * (1 - 1.5 * y),
}
# as in Caffe, NaN is not larger than a number
WANT_COMBINATIONS = {
    "larger": lambda one, two: np.where(one > two, one, two),
    "marked": lambda mark, dy: np.where(mark > 0, dy, 0),
    "product": lambda one, two: one * two,
    "unmarked": lambda mark, dy: np.where(mark > 0, 0, dy),
}
WANT_PAIRS = {
    "larger_of_which": (WANT_COMBINATIONS["larger"], lambda one, two: (one > two).astype(float)),
    "parted": (WANT_COMBINATIONS["marked"], WANT_COMBINATIONS["unmarked"]),
}


def run(function, arrays, width, threads):
    numbers = NUMBERS.get(function.removesuffix("_slope").replace("inside", "clip"), ())
    tuning = Tuning(width=width, threads=threads)
    kernel = Elementwise([(function, numbers)], len(arrays), arrays[0].size, tuning)
    y = np.full_like(arrays[0], 7.0)
    kernel(*arrays, y)
    kernel(*arrays, arrays[0])  # in place
    np.testing.assert_array_equal(arrays[0], y)
    return y


def expect(y, want):
    with np.errstate(over="ignore"):
        want = want.astype(np.float32)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-36)


@pytest.fixture(autouse=True)
def few_each(monkeypatch):
    """Let threads divide few elements too."""
    monkeypatch.setattr(elementwise, "FEWEST_EACH", 1)


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_of_every_element(function, threads, count, width):
    x = 3 * normal(count)

    y = run(function, [x.copy()], width, threads)

    expect(y, WANT[function](x.astype(float)))


@WIDTH
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_stays_and_what_is_infinite_or_small_is_as_in_numpy(function, width):
    x = SPECIAL

    y = run(function, [x.copy()], width, 1)

    with np.errstate(all="ignore"):
        expect(y, WANT[function](x.astype(float)))


@WIDTH
@pytest.mark.parametrize("scale", [1e-7, 1e-3, 0.3, 3.0, 30.0])
def test_exponentials_are_right_to_the_last_places_whatever_their_size(scale, width):
    x = scale * normal(5000)

    for function in ("elu", "exp", "bnll"):
        y = run(function, [x.copy()], width, 1)

        expect(y, WANT[function](x.astype(float)))


@WIDTH
@COUNTS
@pytest.mark.parametrize(
    "names", [("linear", "clip", "square"), ("tanh", "linear", "clip", "product")], ids=str
)
def test_a_chain_has_the_bits_of_its_functions_one_by_one(names, count, width):
    x, other, tuning = 3 * normal(count), normal(count, seed=1), Tuning(width=width)
    chain = [(name, NUMBERS.get(name, ())) for name in names]
    more = [other] if names[-1] in COMBINATIONS else []
    y, expected = np.full_like(x, 7.0), x.copy()

    Elementwise(chain, 1 + len(more), count, tuning)(x, *more, y)
    for name, numbers in chain:
        arrays = [expected, other] if name in COMBINATIONS else [expected]
        Elementwise([(name, numbers)], len(arrays), count, tuning)(*arrays, expected)

    np.testing.assert_array_equal(y, expected)


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("function", SLOPES)
def test_a_gradient_is_multiplied_with_the_slope(function, threads, count, width):
    x, dy = 3 * normal(count), normal(count, seed=1)

    dx = run(function, [x.copy(), dy], width, threads)

    want = dy * WANT_SLOPES[function](x.astype(float))
    np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-6)


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("function", SLOPES_OF_BOTH)
def test_a_slope_of_input_and_result(function, threads, count, width):
    x, y, dy = 3 * normal(count), normal(count, seed=2), normal(count, seed=1)

    dx = run(function, [x.copy(), y, dy], width, threads)

    want = dy * WANT_SLOPES_OF_BOTH[function](x.astype(float), y.astype(float))
    np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-6)


@WIDTH
def test_slopes_at_kinks_and_of_nan(width):
    x = np.array([0.0, -0.0, -0.5, 1.5, np.nan], np.float32)
    dy = np.full_like(x, 2.0)

    for function, want in {
        "abs_slope": [0, 0, -2, 2, np.nan],
        "clip_slope": [2, 2, 2, 2, 0],
        "inside_slope": [2, 2, 0, 0, 0],
        "relu_slope": [0.5, 0.5, 0.5, 2, 0],
    }.items():
        np.testing.assert_array_equal(run(function, [x.copy(), dy], width, 1), want, function)


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("function", COMBINATIONS)
def test_a_combination_of_two_arrays(function, threads, count, width):
    one, two = normal(count), normal(count, seed=1)
    one[0] = np.nan

    y = run(function, [one.copy(), two], width, threads)

    np.testing.assert_array_equal(y, WANT_COMBINATIONS[function](one, two))


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_gives_two_results_that_may_overwrite_what_is_read(pair, threads, count, width):
    one, two = normal(count), normal(count, seed=1)
    one[0] = two[-1] = np.nan
    want = [function(one, two) for function in WANT_PAIRS[pair]]
    kernel = Elementwise([(pair, ())], 2, count, Tuning(width=width, threads=threads))

    kernel(one, two, two, one)

    np.testing.assert_array_equal(two, want[0])
    np.testing.assert_array_equal(one, want[1])


@WIDTH
@COUNTS
@THREADS
@pytest.mark.parametrize("arrays", [1, 2, 3, 4])
def test_sums_add_from_first_to_last(arrays, threads, count, width):
    given = [normal(count, seed=seed) for seed in range(arrays)]
    given[0][0] = np.nan
    total = given[0].copy()
    for array in given[1:]:
        total += array
    factors = 1.0, -2.0, 0.5, 3.0
    weighted = sum(
        factor * array.astype(float) for factor, array in zip(factors, given, strict=False)
    )
    tuning = Tuning(width=width, threads=threads)
    y = np.empty(count, np.float32)

    Elementwise([("weighted_sum", factors[:arrays])], arrays, count, tuning)(*given, y)
    np.testing.assert_allclose(y, weighted, rtol=1e-5, atol=1e-5)
    Elementwise([("sum", ())], arrays, count, tuning)(*given, y)
    np.testing.assert_array_equal(y, total)
    Elementwise([("rectified_sum", ())], arrays, count, tuning)(*given, y)
    np.testing.assert_array_equal(y, np.maximum(total, 0))


def test_all_functions_have_a_formula_here():
    assert WANT.keys() == FUNCTIONS.keys()
    assert WANT_SLOPES.keys() == SLOPES.keys()
    assert WANT_COMBINATIONS.keys() == COMBINATIONS.keys()
    assert WANT_PAIRS.keys() == PAIRS.keys()
