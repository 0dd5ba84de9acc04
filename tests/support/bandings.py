"""Direct convolutions, for tests of their stages."""

from dataclasses import replace

from demitasse.backends import ops
from demitasse.backends.kernels.few_inputs import DirectSchedule
from demitasse.backends.kernels.tuning import Tuning


def banding(x, m, width, *, kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1), **tuning):
    """A convolution of images of shape ``x`` = (N, C, H, W) with m filters."""
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = [
        (side + 2 * p - r) // s + 1 for side, p, r, s in zip(x[2:], pad, reach, stride, strict=True)
    ]
    y = (x[0], m, *size)
    op = ops.Conv("float32", x, y, 1, kernel, stride, pad, dilation, group=1, bias=True)
    return DirectSchedule(op, x, y, replace(Tuning(width), **tuning))
