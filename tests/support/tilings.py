"""Convolutions over tiles, for tests of their stages."""

from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import WinogradSchedule, plan_winograd
from demitasse.backends.kernels.winograd.matrices import filtering

KERNELS = [(3, 3), (5, 5), (1, 7), (7, 1), (1, 3), (7, 7), (5, 3), (4, 4), (2, 2)]
"""Filters' rows and columns: squares, lines, and others."""

LARGE = [(9, 9), (7, 7), (6, 3), (1, 11), (15, 8)]
"""Rows and columns of windows that have parts; in some, the last ones lack a row or a column."""

STRIDES = [
    ((4, 4), (2, 2), (1, 1)), ((6, 6), (3, 3), (1, 2)), ((5, 5), (2, 2), (2, 2)),
    ((3, 3), (2, 2), (1, 1)), ((4, 6), (2, 3), (3, 0)), ((2, 4), (1, 2), (1, 1)),
    ((7, 5), (3, 1), (2, 2)), ((8, 8), (4, 4), (2, 5)), ((9, 9), (1, 1), (4, 4)),
    ((6, 11), (1, 1), (0, 7)),
]  # fmt: skip
"""Rows and columns of windows, their strides, and zeros around the image; in some, phases or parts
have fewer rows or columns than others."""


def tiling(x, m, kernel, width, pad=(1, 1), group=1, threads=1, **tuning):
    """A convolution of images of shape ``x`` = (N, C, H, W) with m filters."""
    n, c, h, w = x
    output = h + 2 * pad[0] - kernel[0] + 1, w + 2 * pad[1] - kernel[1] + 1
    tuned = replace(Tuning(width, threads=threads), **tuning)
    of = filtering(kernel, output, whole=group > 1)
    return WinogradSchedule(of, n, c * of.filters, (h, w), m, group, pad, output, tuned)


def strided(x, m, kernel, stride, pad, width, **tuning):
    """A convolution of a stride."""
    sizes = zip(x[2:], kernel, stride, pad, strict=True)
    y = x[0], m, *((size + 2 * zeros - k) // step + 1 for size, k, step, zeros in sizes)
    op = ops.Conv("float32", x, y, 1, kernel, stride, pad, (1, 1), group=1, bias=True)
    tuned = Tuning(width, always=frozenset(("winograd",)))
    return plan_winograd(op, x, y, replace(tuned, **tuning), training=True)
