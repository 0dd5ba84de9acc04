"""Convolutions over tiles, for tests of their stages."""

from dataclasses import replace

from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import WinogradSchedule
from demitasse.backends.kernels.winograd.matrices import filtering

KERNELS = [(3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (7, 7), (5, 3)]
"""Filters' rows and columns: squares, lines, and others."""


def tiling(x, m, kernel, width, pad=(1, 1), group=1, threads=1, **tuning):
    """A convolution of images of shape ``x`` = (N, C, H, W) with m filters."""
    n, c, h, w = x
    output = h + 2 * pad[0] - kernel[0] + 1, w + 2 * pad[1] - kernel[1] + 1
    tuned = replace(Tuning(width, threads=threads), **tuning)
    return WinogradSchedule(filtering(kernel), n, c, (h, w), m, group, pad, output, tuned)
