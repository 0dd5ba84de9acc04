"""Convolution by its definition, in float64."""

import numpy as np


def correlated(x, w, pad, group=1, stride=(1, 1), dilation=(1, 1)):
    """Convolve x (N, C, H, W) with w (M, C / group, kh, kw). Shape: (N, M, OH, OW)."""
    c, m = x.shape[1] // group, w.shape[0] // group
    parts = []
    for g in range(group):
        taken = windows(x[:, g * c : (g + 1) * c], w.shape[2:], pad, stride, dilation)
        parts.append(
            np.einsum(
                "nchwij,mcij->nmhw", taken, w[g * m : (g + 1) * m].astype(float), optimize=True
            )
        )
    return np.concatenate(parts, axis=1)


def correlated_slopes(x, dy, kernel, pad, group=1, stride=(1, 1), dilation=(1, 1)):
    """The gradient of the filters. Shape: (M, C / group, kh, kw)."""
    c, m = x.shape[1] // group, dy.shape[1] // group
    parts = []
    for g in range(group):
        taken = windows(x[:, g * c : (g + 1) * c], kernel, pad, stride, dilation)
        parts.append(
            np.einsum(
                "nchwij,nmhw->mcij", taken, dy[:, g * m : (g + 1) * m].astype(float), optimize=True
            )
        )
    return np.concatenate(parts)


def windows(x, kernel, pad, stride=(1, 1), dilation=(1, 1)):
    """The windows of padded images. Shape: (N, C, OH, OW, kh, kw)."""
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    return found[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def images(shape, seed=0):
    """Random images (N, C, H, W), and the memory in which they lie with the channels last."""
    n, c, h, w = shape
    memory = np.random.default_rng(seed).normal(size=(n, h, w, c)).astype(np.float32)
    return memory.transpose(0, 3, 1, 2).copy(), memory
