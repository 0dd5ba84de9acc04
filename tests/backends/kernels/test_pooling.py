"""Pooling of vectors of channels, forward and backward, against loops over windows in numpy."""

from itertools import product

import numpy as np
import pytest
from stages import WIDTH, in_memory, normal, out_of_memory

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pooling import Pooling
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.windows import Window

METHOD = pytest.mark.parametrize("method", ["MAX", "AVE"])


def pool(shape, method, kernel, stride, pad, *, ceil=True, counts_pads=True):
    """Return a pooling of images of this shape, with Caffe's number of windows."""
    window = Window(kernel, stride, pad, (1,) * len(kernel))
    top = *shape[:2], *window.pooled(shape[2:], ceil=ceil)
    return ops.Pool(
        "float32", method, shape, top, kernel, stride, pad, tops=1, train=True,
        counts_pads=counts_pads,
    )  # fmt: skip


def taps(op, place):
    """Yield the elements of a window on the image, in C order."""
    axes = zip(place, op.kernel, op.stride, op.pad, op.bottom[2:], strict=True)
    spans = [range(max(i * s - p, 0), min(i * s - p + k, n)) for i, k, s, p, n in axes]
    return product(*spans)


def divisors(op):
    window = Window(op.kernel, op.stride, op.pad, (1,) * len(op.kernel), op.after)
    return window.divisors(op.bottom[2:], op.top[2:], pads=op.counts_pads)


def expected(op, x, dy):
    """Return y and dx in float64, the first of equal elements taking the gradient."""
    y, dx = np.zeros(op.top), np.zeros(op.bottom)
    for place in np.ndindex(*op.top[2:]):
        here = (..., *place)
        seen = [x[(..., *tap)] for tap in taps(op, place)]
        if op.method == "AVE":
            y[here] = sum(seen, np.zeros(op.top[:2])) / divisors(op)[place]
            for tap in taps(op, place):
                dx[(..., *tap)] += dy[here] / divisors(op)[place]
            continue
        best, winner = np.full(op.top[:2], ops.LOWEST), np.full(op.top[:2], -1)
        for number, value in enumerate(seen):
            better = value > best
            best, winner = np.where(better, value, best), np.where(better, number, winner)
        y[here] = best
        for number, tap in enumerate(taps(op, place)):
            dx[(..., *tap)] += np.where(winner == number, dy[here], 0)
    return y, dx


def folded(shape):
    """Return a shape whose rows are those of all planes of depth."""
    n, c, *spatial = shape
    return n, c, int(np.prod(spatial[:-1])), spatial[-1]


def run(op, x, dy, tuning, *, trains=True):
    """Return y and dx by the kernel."""
    ends = [Images.channels_last(folded(each)) for each in (op.bottom, op.top)]
    kernel = Pooling(op, *ends, tuning, trains=trains)
    memory = in_memory(x.reshape(folded(op.bottom)), ends[0])
    y, dx = np.full(int(np.prod(op.top)), 77, np.float32), np.full(x.size, 77, np.float32)
    kernel.forward(memory, y)
    found = [out_of_memory(y, ends[1]).reshape(op.top)]
    if trains:
        kernel.backward(in_memory(dy.reshape(folded(op.top)), ends[1]), dx)
        found.append(out_of_memory(dx, ends[0]).reshape(op.bottom))
    return found


def check(op, tuning):
    x, dy = np.round(normal(*op.bottom) * 3), normal(*op.top)  # with equal elements
    want = expected(op, x, dy)

    y, dx = run(op, x, dy, tuning)
    [inference] = run(op, x, dy, tuning, trains=False)

    np.testing.assert_allclose(y, want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, want[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(inference, y)


WINDOWS = [
    # size, kernel, stride, pad
    ((8, 8), (2, 2), (2, 2), (0, 0)),
    ((13, 17), (3, 3), (2, 2), (0, 0)),
    ((14, 12), (3, 3), (2, 2), (0, 0)),
    ((11, 30), (3, 3), (1, 1), (1, 1)),
    ((7, 7), (3, 3), (1, 1), (1, 1)),
    ((7, 7), (7, 7), (1, 1), (0, 0)),
    ((14, 14), (14, 14), (1, 1), (0, 0)),
    ((17, 17), (17, 17), (1, 1), (0, 0)),
    ((9, 3), (9, 3), (1, 1), (0, 0)),
    ((4, 4), (4, 4), (5, 5), (1, 0)),
    ((13, 19), (5, 5), (1, 1), (2, 2)),
    ((13, 13), (5, 5), (3, 3), (2, 2)),
    ((20, 21), (13, 13), (1, 1), (6, 6)),
    ((9, 10), (1, 1), (2, 3), (0, 0)),
    ((6, 5), (2, 2), (3, 3), (1, 1)),
    ((5, 9), (1, 4), (1, 5), (0, 0)),
    ((1, 5), (1, 1), (3, 3), (0, 0)),
    ((12, 9), (3, 2), (1, 2), (1, 0)),
    ((1, 40), (1, 20), (1, 7), (0, 3)),
    ((9,), (3,), (2,), (1,)),
    ((5, 7, 6), (2, 3, 2), (2, 2, 1), (0, 1, 0)),
    ((4, 6, 9), (3, 3, 3), (1, 2, 2), (1, 1, 1)),
    ((3, 4, 5), (3, 4, 5), (1, 1, 1), (0, 0, 0)),
]


@WIDTH
@METHOD
@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), WINDOWS)
def test_every_window_of_channels_side_by_side(size, kernel, stride, pad, method, width):
    op = pool((2, 2 * width + 3, *size), method, kernel, stride, pad)

    check(op, Tuning(width, 3))


def test_other_channels_are_refused():
    op = pool((1, 24, 4, 4), "MAX", (2, 2), (2, 2), (0, 0))
    x, y = (Images.in_order(shape) for shape in (op.bottom, op.top))

    with pytest.raises(ValueError, match="side by side"):
        Pooling(op, x, y, Tuning(8))


@WIDTH
def test_windows_that_round_down_and_pads_that_do_not_count(width):
    shape = (2, width, 8, 10)
    check(pool(shape, "MAX", (3, 3), (2, 2), (0, 0), ceil=False), Tuning(width))
    check(pool(shape, "AVE", (4, 4), (3, 3), (1, 1), ceil=False), Tuning(width))
    check(pool(shape, "AVE", (3, 3), (2, 2), (1, 1), counts_pads=False), Tuning(width))


@WIDTH
def test_nan_wins_no_window_and_the_first_of_equal_elements_takes_the_gradient(width):
    op = pool((1, width, 3, 4), "MAX", (3, 2), (1, 2), (0, 0))
    x, dy = np.ones(op.bottom, np.float32), np.full(op.top, 2, np.float32)
    x[0, 0, 0, 0] = x[0, 1, :, :2] = np.nan
    x[0, 2, :, :2] = -np.inf
    x[0, 3, 2, 1] = np.inf

    y, dx = run(op, x, dy, Tuning(width))

    np.testing.assert_array_equal(y[0, :4, 0, 0], [1, ops.LOWEST, ops.LOWEST, np.inf])
    firsts = [np.argwhere(dx[0, channel, :, :2]).tolist() for channel in range(4)]
    assert firsts == [[[0, 1]], [], [], [[2, 1]]]
    assert np.argwhere(dx[0, 0, :, 2:]).tolist() == [[0, 0]]


@WIDTH
@METHOD
def test_any_number_of_threads_gives_the_same_bits(method, width):
    op = pool((2, 4 * width, 30, 31), method, (3, 3), (2, 2), (1, 1))
    x, dy = normal(*op.bottom), normal(*op.top)

    one, *others = (run(op, x, dy, Tuning(width, threads)) for threads in (1, 2, 3, 7))

    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
