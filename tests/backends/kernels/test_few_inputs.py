"""Direct convolution of few channels and its gradients, on arrays, against the definition."""

import numpy as np
import pytest
from bandings import banding
from correlate import correlated, correlated_slopes, images
from rectifiers import NOT_NUMBERS, THEN, rectified
from stages import WIDTH, images_of, normal

from demitasse.backends.kernels import few_inputs
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.few_inputs import DirectConvolution, DirectGradient
from demitasse.backends.kernels.images import Images

ROUNDING = 5e-6
"""Of the largest value."""

SHAPE = (3, 3, 14, 15)

WINDOWS = pytest.mark.parametrize(
    "window",
    [
        {"kernel": (5, 5), "pad": (2, 2)},
        {"kernel": (3, 4), "stride": (2, 3), "pad": (0, 1)},
        {"kernel": (1, 3), "dilation": (1, 2)},
        {"kernel": (3, 3), "pad": (4, 9)},
    ],
    ids=["square", "strides", "dilation", "wide padding"],
)
THREADS = pytest.mark.parametrize("threads", [1, 3])


def expect_close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


def definition(of, x, weights):
    op = of.op
    return correlated(x, weights, op.pad, 1, op.stride, op.dilation)


def convolved(of, x, weights, offsets, target, out, then=NOTHING):
    convolve = DirectConvolution(of, target, then)
    convolve.update(weights.reshape(-1))
    convolve(x, out, offsets)


@WIDTH
@WINDOWS
@THREADS
@THEN
def test_the_output_is_that_of_the_definition(then, window, threads, width):
    m = width + 5
    of = banding(SHAPE, m, width, threads=threads, **window)
    x, weights, offsets = normal(*SHAPE), normal(m, 3, *of.op.kernel), normal(m, seed=1)
    out = np.zeros((3, *of.y[2:], m), np.float32)

    target = images_of(out.transpose(0, 3, 1, 2))
    convolved(of, x, weights, offsets, target, out, then)

    want = definition(of, x, weights) + offsets[:, None, None]
    expect_close(out.transpose(0, 3, 1, 2), rectified(then, want))


@WIDTH
@THEN
def test_what_is_no_number_is_rectified_as_layers_do(then, width):
    of = banding(SHAPE, width, width, kernel=(3, 3))
    out, offsets = np.zeros((3, *of.y[2:], width), np.float32), np.zeros(width, np.float32)
    offsets[:3] = NOT_NUMBERS

    target = images_of(out.transpose(0, 3, 1, 2))
    convolved(of, normal(*SHAPE), normal(width, 3, 3, 3), offsets, target, out, then)

    want = rectified(then, offsets[:3])
    np.testing.assert_array_equal(out[..., :3], np.broadcast_to(want, (*out.shape[:3], 3)))
    assert np.isfinite(out[..., 3:]).all()


@WIDTH
@WINDOWS
@THREADS
@pytest.mark.parametrize("band", [16, 1024])
@pytest.mark.parametrize("bias", [False, True])
def test_the_gradients_of_weights_and_bias(bias, band, window, threads, width, monkeypatch):
    monkeypatch.setattr(few_inputs, "BAND", band)
    m = width + 5
    of = banding(SHAPE, m, width, threads=threads, **window)
    op, x, (dy, slopes) = of.op, normal(*SHAPE), images(of.y, seed=1)
    weight, offsets = np.zeros(m * of.taps, np.float32), np.zeros(m, np.float32)

    gradient = DirectGradient(of, Images.channels_last(of.y), bias=bias)
    gradient(x, slopes, weight, offsets if bias else None)

    want = correlated_slopes(x, dy, op.kernel, op.pad, 1, op.stride, op.dilation)
    expect_close(weight.reshape(want.shape), want)
    expect_close(offsets, dy.sum(axis=(0, 2, 3), dtype=float) * bias)


TAPS = (3, 4)
"""Rows and columns of a window."""

STEPS = pytest.mark.parametrize(("dilation", "stride"), [(1, 1), (2, 1), (1, 2)])


def of_columns(columns, m, width, dilation=1, stride=1):
    """A convolution of one image whose rows of outputs have so many columns."""
    size = (columns - 1) * stride + (TAPS[1] - 1) * dilation + 1
    steps = {"dilation": (1, dilation), "stride": (1, stride)}
    return banding((1, 2, 6, size), m, width, kernel=TAPS, pad=(0, 0), **steps)


def filters_of(width):
    """Numbers of filters: whole vectors, up to two panels; the last vector begins early."""
    return [width, width + 1, 2 * width, 3 * width, 4 * width, 5 * width + 3]


@WIDTH
@STEPS
@pytest.mark.parametrize("columns", [1, 2, 7, 31])
def test_rows_of_any_number_of_columns(columns, dilation, stride, width):
    for m in (1, width // 2 + 1, width - 1, *filters_of(width)):
        of = of_columns(columns, m, width, dilation, stride)
        x, weights, offsets = normal(*of.x), normal(m, 2, *TAPS), normal(m, seed=1)
        out = np.zeros((of.y[2] * columns + 1, m), np.float32)

        target = Images.channels_last(of.y)
        convolved(of, x, weights, offsets, target, out, Rectifier(slope=0.25))

        want = rectified(Rectifier(slope=0.25), definition(of, x, weights)[0].T + offsets)
        expect_close(out[:-1].reshape(-1, columns, m).transpose(1, 0, 2), want)
        assert not out[-1].any()


@WIDTH
@STEPS
@pytest.mark.parametrize("columns", [1, 6, 31])
def test_gradients_of_any_number_of_filters(columns, dilation, stride, width):
    for m in filters_of(width):
        of = of_columns(columns, m, width, dilation, stride)
        op, x, (dy, slopes) = of.op, normal(*of.x), images(of.y, seed=1)
        weight = np.full(m * of.taps + 1, 77, np.float32)

        gradient = DirectGradient(of, Images.channels_last(of.y), bias=False)
        gradient(x, slopes, weight, None)

        want = correlated_slopes(x, dy, op.kernel, op.pad, 1, op.stride, op.dilation)
        expect_close(weight[:-1].reshape(want.shape), want)
        assert weight[-1] == 77


def test_code_names_the_instructions():
    assert banding(SHAPE, 16, 8).code == "direct llvm:avx2"
    assert banding(SHAPE, 16, 16).code == "direct llvm:avx512"
