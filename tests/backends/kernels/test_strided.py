"""Convolution of stride 2 over tiles of an image's phases, and its gradients, on arrays."""

import numpy as np
import pytest
from correlate import correlated, correlated_slopes, images
from stages import WIDTH, normal

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import plan_winograd, polyphase
from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
from demitasse.backends.kernels.winograd.gradient import StridedGradient
from demitasse.backends.step import Declined

ROUNDING = 5e-5
"""Of the largest value."""

CASES = pytest.mark.parametrize(
    ("c", "m", "pad", "threads", "tuning"),
    [
        (32, 64, (1, 1), 1, {}),
        (48, 16, (0, 2), 2, {}),
        (16, 96, (2, 1), 3, {"shared_stack_bytes": 1, "fewest_tiles": 1}),
        (48, 32, (1, 0), 2, {"transformed_bytes": 1}),
    ],
    ids=["whole panels", "odd panels", "short blocks", "a vector of channels at a time"],
)
WINDOWS = pytest.mark.parametrize("window", [4, 5, 6])
N, SIZE = 3, (12, 19)


def strided(c, m, pad, threads, tuning, width, window=4, size=SIZE, **changes):
    """The tiling of a convolution of N images by windows of stride 2."""
    x = (N, c, *size)
    y = (
        N,
        m,
        *((side + 2 * zeros - window) // 2 + 1 for side, zeros in zip(size, pad, strict=True)),
    )
    options = {
        "kernel": (window, window),
        "stride": (2, 2),
        "dilation": (1, 1),
        "group": 1,
    } | changes
    op = ops.Conv("float32", x, y, 1, pad=pad, bias=True, **options)
    tuned = Tuning(width, threads=threads, winograd="always", **tuning)
    return plan_winograd(op, x, y, tuned, training=True)


def unset(*sizes):
    return [np.full(size, np.nan, np.float32) for size in sizes]


def expect_close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= ROUNDING * np.abs(want).max()


def convolved(of, memory, shape, block, target, weights, offsets):
    """What the kernel writes for images in blocks of channels."""
    convolve = WinogradConvolution(of, Images.in_blocks(shape, block), target)
    out, scratch = unset(
        (target.shape[0], *target.shape[2:], target.shape[1]), convolve.scratch_size
    )
    convolve.take_offsets(offsets)
    convolve(memory, out, weights, scratch)
    return out.transpose(0, 3, 1, 2)


def last(shape):
    """Images of a shape with the channels last."""
    n, c, h, w = shape
    return Images((n, c, h, w), h * w * c, w * c, c, c)


@WIDTH
@CASES
@WINDOWS
def test_the_output_is_that_of_the_definition(window, c, m, pad, threads, tuning, width):
    of = strided(c, m, pad, threads, tuning, width, window)
    (x, memory), weights, offsets = (
        images((N, c, *SIZE), width),
        normal(m, c, window, window),
        normal(m),
    )

    got = convolved(of, memory, x.shape, width, last((N, m, *of.output)), weights, offsets)

    expect_close(got, correlated(x, weights, pad, stride=(2, 2)) + offsets[:, None, None])


@WIDTH
@CASES
@WINDOWS
def test_the_gradient_of_the_input_is_a_convolution_for_each_phase(
    window, c, m, pad, threads, tuning, width
):
    of = strided(c, m, pad, threads, tuning, width, window)
    shape = (N, m, *of.output)
    (dy, memory), weights, offsets = images(shape, width), normal(m, c, window, window), normal(c)

    got = convolved(of.backward, memory, shape, width, last((N, c, *SIZE)), weights, offsets)

    apart = np.zeros((N, m, *(2 * side - 1 for side in of.output)))
    apart[:, :, ::2, ::2] = dy
    rest = window - 1
    around = [(rest - zeros, side) for zeros, side in zip(pad, SIZE, strict=True)]
    padded = np.pad(apart, [(0, 0), (0, 0), *around])[:, :, : SIZE[0] + rest, : SIZE[1] + rest]
    flipped = weights[..., ::-1, ::-1].transpose(1, 0, 2, 3)
    expect_close(got, correlated(padded, flipped, (0, 0)) + offsets[:, None, None])


@WIDTH
@CASES
@WINDOWS
def test_the_gradients_of_weights_and_bias(window, c, m, pad, threads, tuning, width):
    of = strided(c, m, pad, threads, tuning, width, window)
    (x, memory), (dy, slopes) = images((N, c, *SIZE), width), images((N, m, *of.output), seed=1)

    gradient = StridedGradient(of, Images.in_blocks(x.shape, width), Images.in_blocks(dy.shape, m))
    weight, bias, scratch = unset((m, c, window, window), m, gradient.scratch_size)
    gradient(memory, slopes, weight, bias, scratch)

    expect_close(weight, correlated_slopes(x, dy, (window, window), pad, stride=(2, 2)))
    expect_close(bias, dy.sum(axis=(0, 2, 3), dtype=float))


@WIDTH
def test_gradients_have_the_same_bits_for_any_number_of_threads(width):
    found = []
    for threads in (1, 2, 7):
        tuning = {"shared_stack_bytes": 1 << 17, "fewest_tiles": 1}
        of = strided(32, 96, (1, 1), threads, tuning, width)
        assert of.strips_per_block < of.strips
        (_, memory), (dy, slopes) = images((N, 32, *SIZE)), images((N, 96, *of.output), seed=1)
        x, y = Images.in_blocks((N, 32, *SIZE), 32), Images.in_blocks(dy.shape, 96)
        gradient = StridedGradient(of, x, y)
        weight, scratch = unset((96, 32, 4, 4), gradient.scratch_size)
        gradient(memory, slopes, weight, None, scratch)
        found.append(weight)

    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("pad", [0, 1, 2])
def test_phases_are_the_taps_of_windows(pad):
    side = 10
    image = np.arange(1, side + 1)
    padded = np.pad(image, pad)

    for tap, phase in zip((0, 1), polyphase((pad, pad))[::3], strict=True):
        begin, zeros = phase.first[0], phase.pad[0]
        seen = np.concatenate([np.zeros(zeros, int), image[begin :: phase.step]])
        there = padded[tap::2]
        np.testing.assert_array_equal(seen[: len(there)], there[: len(seen)])


@pytest.mark.parametrize(
    "changes",
    [
        {"c": 19}, {"m": 24, "width": 16}, {"pad": (3, 1)}, {"group": 2},
        {"stride": (2, 1)}, {"dilation": (2, 2)}, {"kernel": (4, 3)}, {"kernel": (3, 3)},
    ],
    ids=str,
)  # fmt: skip
def test_other_windows_and_channels_are_declined(changes):
    taken = {"c": 32, "m": 32, "pad": (1, 1), "threads": 1, "tuning": {}, "width": 8}
    assert strided(**taken).stride == 2

    with pytest.raises(Declined, match="6x6 of stride 2"):
        strided(**taken | changes)
