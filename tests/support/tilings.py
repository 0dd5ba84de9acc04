"""Convolutions over tiles, for tests of their stages."""

from dataclasses import replace

from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd.matrices import matrices
from demitasse.backends.kernels.winograd.tiling import Tiling


def tiling(x, m, taps, width, pad=(1, 1), group=1, threads=1, **tuning):
    """A convolution of images of shape ``x`` = (N, C, H, W) with m filters."""
    n, c, h, w = x
    output = h + 2 * pad[0] - taps + 1, w + 2 * pad[1] - taps + 1
    tuned = replace(Tuning(width, threads=threads), **tuning)
    return Tiling(matrices(taps), n, c, (h, w), m, group, pad, output, tuned)
