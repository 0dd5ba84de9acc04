"""Pooling with windows that PyTorch has no form for."""

import torch
import torch.nn.functional as F  # noqa: N812


def caffe_windows(length, kernel, stride, pad, padded, ceil):
    """Return how many windows Caffe lays along an axis, and the zeros behind it.

    Where there are pads on some axis, a window that begins behind the image is dropped.
    """
    span = length + 2 * pad - kernel
    count = (-(-span // stride) if ceil else span // stride) + 1
    if padded and (count - 1) * stride >= length + pad:
        count -= 1
    return count, max(0, (count - 1) * stride + kernel - length - pad)


def caffe_pool(x, mode, kernel, stride, pad, ceil):
    """Pool an image as Caffe does, whose last windows may lie beyond it.

    Shapes: (N, C, H, W) -> (N, C, rows, columns).
    """
    along = zip(x.shape[2:], kernel, stride, pad, strict=True)
    fits = [caffe_windows(*each, any(pad), ceil) for each in along]
    (rows, below), (columns, right) = fits
    edges = (pad[1], right, pad[0], below)
    if mode == "max":
        lowest = torch.finfo(x.dtype).min
        return F.max_pool2d(F.pad(x, edges, value=lowest), kernel, stride)
    area = torch.ones((), dtype=x.dtype, device=x.device)
    axes = zip((rows, columns), stride, kernel, pad, x.shape[2:], strict=True)
    for count, step, size, before, length in axes:
        start = torch.arange(count, dtype=x.dtype, device=x.device) * step - before
        area = area[..., None] * ((start + size).clamp(max=length + before) - start)
    sums = F.avg_pool2d(F.pad(x, edges), kernel, stride, divisor_override=1)
    return sums / torch.where(area == 0, torch.nan, area)


def expected_pool(x, kernel, stride, pad, ceil):
    """Return what is expected of stochastic pooling: sum of squares over the sum."""
    squares = caffe_pool(x * x, "mean", kernel, stride, pad, ceil)
    return squares / (caffe_pool(x, "mean", kernel, stride, pad, ceil) + 1.1754944e-38)


def unpool(x, mask, height, width):
    """Put every value where the mask of its pooling says; zeros elsewhere.

    Shapes: x and mask (N, C, h, w) -> (N, C, height, width).
    """
    empty = x.new_zeros((*x.shape[:-2], height * width))
    filled = empty.scatter(-1, mask.flatten(-2).long(), x.flatten(-2))
    return filled.unflatten(-1, (height, width))
