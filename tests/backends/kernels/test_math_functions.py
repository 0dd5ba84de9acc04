"""Functions of vectors, against numpy's in float64."""

import numpy as np
import pytest
from stages import WIDTH, called, exported

from demitasse.backends.kernels.math_functions import sigmoid, tanh

LARGE = np.finfo(np.float32).max
NUMBERS = np.concatenate(
    [np.linspace(-12, 12, 4001), *np.outer([1, -1], np.geomspace(1e-44, LARGE, 4095))]
).astype(np.float32)
NUMBERS = np.append(NUMBERS, np.zeros(-len(NUMBERS) % 16, np.float32))


def of_all(function, width, numbers):
    def write(k):
        source, target, end = k.arguments
        with k.loop(end, 0, k.vector_bytes) as vector:
            k.store(function(k.load(source + vector.i)), target + vector.i)

    result = np.empty_like(numbers)
    called(
        exported(f"{function.__name__}{width}", width, write, 3), numbers, result, numbers.nbytes
    )
    return result


@WIDTH
def test_tanh_is_off_by_two_units_of_the_last_place_at_most(width):
    got = of_all(tanh, width, NUMBERS)

    want, size = np.tanh(NUMBERS.astype(float)), np.abs(NUMBERS)
    np.testing.assert_allclose(got, want, rtol=2.4e-7, atol=2e-45)
    np.testing.assert_allclose(got[size > 2.5], want[size > 2.5], rtol=0, atol=3.2e-8)
    assert np.abs(got).max() == 1


@WIDTH
def test_sigmoid_is_off_by_three_units_of_the_last_place_at_most(width):
    got = of_all(sigmoid, width, NUMBERS)

    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-NUMBERS.astype(float)))
    np.testing.assert_allclose(got, want, rtol=3.6e-7, atol=1.2e-38)
    assert (got.min(), got.max()) == (0, 1)


@WIDTH
@pytest.mark.parametrize("function", [tanh, sigmoid])
def test_nan_stays_and_infinity_is_the_end(function, width):
    numbers = np.resize(np.array([np.nan, -np.inf, np.inf, -np.nan], np.float32), 16)

    got = of_all(function, width, numbers)

    low = -1 if function is tanh else 0
    np.testing.assert_array_equal(got, np.resize([np.nan, low, 1, np.nan], 16))
