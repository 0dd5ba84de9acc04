"""Windows that overlap, added up on arrays, against numpy."""

import numpy as np
import pytest
from stages import WIDTH, normal

from demitasse.backends.kernels.col2im import Col2Im
from demitasse.backends.kernels.tuning import Tuning

THREADS = pytest.mark.parametrize("threads", [1, 3])
CASES = [  # bottom, kernel, stride, pad
    ((2, 4, 5), (4, 4), (2, 2), (1, 1)),
    ((1, 1, 1), (2, 2), (2, 2), (0, 0)),
    ((3, 3, 2), (3, 6), (1, 3), (2, 4)),
    ((1, 2, 7), (8, 12), (4, 4), (3, 5)),
    ((1, 5, 3), (3, 3), (1, 1), (1, 1)),
    ((1, 4, 3), (3, 3), (2, 2), (0, 1)),
    ((2, 2, 4), (7, 11), (3, 4), (2, 1)),
    ((1, 3, 3), (40, 63), (32, 32), (0, 0)),
]


def added_up(windows, stride, pad):
    """Return the sum of windows (N, H, W, rows, columns, C) over each pixel, in float64."""
    n, h, w, *kernel, c = windows.shape
    whole = np.zeros((n, stride[0] * (h - 1) + kernel[0], stride[1] * (w - 1) + kernel[1], c))
    for y, x in np.ndindex(h, w):
        top, left = y * stride[0], x * stride[1]
        whole[:, top : top + kernel[0], left : left + kernel[1]] += windows[:, y, x]
    return whole[:, pad[0] : whole.shape[1] - pad[0], pad[1] : whole.shape[2] - pad[1]]


def check(windows, stride, pad, tuning):
    want = added_up(windows, stride, pad)
    *bottom, rows, columns, c = windows.shape
    offsets = np.linspace(-1, 1, c).astype(np.float32)
    got = np.full(want.size, 77.0, np.float32)
    run = Col2Im(tuple(bottom), want.shape, (rows, columns), stride, pad, tuning)
    run.take_offsets(offsets)

    run(windows.reshape(-1), got)

    np.testing.assert_allclose(got.reshape(want.shape), want + offsets, rtol=1e-5, atol=1e-6)


@WIDTH
@THREADS
@pytest.mark.parametrize("channels", [1, 3, 8, 15, 20])
@pytest.mark.parametrize(("bottom", "kernel", "stride", "pad"), CASES, ids=str)
def test_windows_are_added_up(bottom, kernel, stride, pad, channels, threads, width):
    check(normal(*bottom, *kernel, channels), stride, pad, Tuning(width, threads))


@WIDTH
def test_nan_stays_in_its_window_and_what_lies_outside_is_not_read_for_others(width):
    windows = normal(1, 3, 3, 4, 4, 2)
    windows[0, 0, 0, 0] = np.nan  # above the image
    windows[0, 1, 1, 2, 3, 1] = np.inf

    check(windows, (2, 2), (1, 1), Tuning(width))
