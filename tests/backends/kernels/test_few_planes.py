"""Convolution of few channels to few, on arrays, against the definition."""

import numpy as np
import pytest
from bandings import banding
from correlate import correlated
from rectifiers import THEN, rectified
from stages import WIDTH, normal

from demitasse.backends.kernels.epilogue import NOTHING
from demitasse.backends.kernels.few_planes import FewPlanesConvolution, FewPlanesSchedule

ROUNDING = 5e-6
"""Of the largest value."""

WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {"kernel": (1, 1), "pad": (0, 0)},
        {"kernel": (3, 3), "pad": (1, 1)},
        {"kernel": (7, 5), "pad": (0, 4)},
        {"kernel": (3, 3), "pad": (2, 1), "dilation": (2, 3)},
        {"kernel": (2, 4), "pad": (1, 0), "stride": (3, 1)},
    ],
    ids=["pixels", "square", "wide padding", "dilation", "every third row"],
)


def convolved(schedule, x, weights, offsets, then=NOTHING):
    convolve, out = FewPlanesConvolution(schedule, then), np.zeros(schedule.y, np.float32)
    convolve.update(weights.reshape(-1))
    convolve(x, out, offsets)
    return out


def expect_definition(x, m, width, then=NOTHING, threads=1, **window):
    of = banding(x, m, width, threads=threads, **window)
    schedule = FewPlanesSchedule(of.op, of.x, of.y, of.tuning)
    images, weights = normal(*x), normal(m, x[1], *of.op.kernel, seed=1)
    offsets = normal(m, seed=2)

    got = convolved(schedule, images, weights, offsets, then)

    op = of.op
    want = correlated(images, weights, op.pad, 1, op.stride, op.dilation)
    want = rectified(then, want + offsets[:, None, None])
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


@WIDTH
@WINDOWS
@THEN
@pytest.mark.parametrize("threads", [1, 3])
def test_the_output_is_that_of_the_definition(threads, then, window, width):
    expect_definition((2, 3, 11, width + 21), 3, width, then, threads, **window)


@WIDTH
@pytest.mark.parametrize("m", range(1, 8))
@pytest.mark.parametrize("c", [1, 2, 7, 12, 15])
def test_any_number_of_channels(c, m, width):
    expect_definition((1, c, 5, 2 * width + 3), m, width, kernel=(3, 3), pad=(1, 1))


@WIDTH
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("m", [1, 4])
def test_any_number_of_columns(m, pad, width):
    for columns in range(width, 6 * width + 2):
        expect_definition((1, 2, 4, columns + 2 - 2 * pad), m, width, kernel=(3, 3), pad=(pad, pad))
