"""Softmax along an axis and its gradient, on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.arrays import aligned
from demitasse.backends.kernels import softmax as kernels
from demitasse.backends.kernels.softmax import MOST_CLASSES, Softmax
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])
SHAPES = pytest.mark.parametrize(
    "shape",
    [(16, 1, 1), (17, 2, 1), (1000, 21, 1), (4421, 2, 1), (50, MOST_CLASSES, 1), (3, 7, 1),
     (2, MOST_CLASSES + 1, 1), (5, 1000, 1), (64, 48, 1), (1, 2, 16), (3, 21, 50), (2, 5, 4421),
     (2, 100, 3), (1, 1000, 17), (3, 1, 20)],
    ids=str,
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_each(monkeypatch):
    """Let threads divide few rows too."""
    monkeypatch.setattr(kernels, "FEWEST_EACH", 1)


def between(count):
    """Return memory of so many elements, and of one more on both sides, which are 77."""
    memory = aligned(count + 2)
    memory[:] = 77.0
    return memory


def softmax(x, width, threads=1):
    """Return that of an array (outer, length, inner), and touch nothing around the result."""
    source, target = aligned(x.size), between(x.size)
    source[:] = x.reshape(-1)

    Softmax(*x.shape, Tuning(width, threads)).forward(source, target[1:-1])

    assert (target[0], target[-1]) == (77, 77)
    return target[1:-1].reshape(x.shape).copy()


def expected(x):
    wide = x.astype(float)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@WIDTH
@THREADS
@SHAPES
def test_every_row_adds_up_to_1(shape, threads, width):
    x = normal(*shape) * 5

    got = softmax(x, width, threads)

    rtol = 2e-6 if shape[1] <= MOST_CLASSES else 5e-6  # of so many additions
    np.testing.assert_allclose(got, expected(x), rtol=rtol)


@WIDTH
@THREADS
@SHAPES
def test_gradients(shape, threads, width):
    y, dy = expected(normal(*shape) * 3).astype(np.float32), normal(*shape, seed=1)
    dx = between(y.size)

    kernel = Softmax(*shape, Tuning(width, threads))
    kernel.backward(y.reshape(-1), dy.reshape(-1), dx[1:-1])

    wide, gradient = y.astype(float), dy.astype(float)
    want = wide * (gradient - (wide * gradient).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(dx[1:-1].reshape(shape), want, rtol=1e-5, atol=1e-6)
    assert (dx[0], dx[-1]) == (77, 77)


@WIDTH
@pytest.mark.parametrize("place", [(slice(None), 0), (0, slice(None))], ids=["rows", "planes"])
@pytest.mark.parametrize("length", [3, 37, 100])
def test_large_and_small_numbers_do_not_overflow(length, place, width):
    x = normal(20, length, 1)
    x[3, :3, 0], x[4, :, 0], x[19, :, 0] = (1e30, 0, -1e30), -1e38, 90
    x[5, 1] = -np.inf
    if place[0] == 0:
        x = np.ascontiguousarray(x.transpose(2, 1, 0))

    np.testing.assert_allclose(softmax(x, width), expected(x), rtol=2e-6, atol=1e-30)


@WIDTH
@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("length", [3, 16, 21, 48, 1001])
def test_rows_of_nan_and_infinity_are_nan(length, planes, width):
    x = normal(40, length, 1)
    x[5, 2], x[20, 0], x[39, -1], x[7] = np.nan, np.inf, -np.nan, -np.inf
    x[8, 1] = -np.inf
    if planes:
        x = np.ascontiguousarray(x.transpose(2, 1, 0))

    lost = np.isnan(softmax(x, width))

    rows = lost.any(axis=1).reshape(-1)
    assert rows.nonzero()[0].tolist() == [5, 7, 20, 39]
    assert lost.sum() == 4 * length


@WIDTH
@SHAPES
def test_any_number_of_threads_gives_the_same_bits(shape, width):
    x = normal(*shape)

    one, *others = (softmax(x, width, threads) for threads in (1, 2, 5))

    for other in others:
        np.testing.assert_array_equal(other, one)
