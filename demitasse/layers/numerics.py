"""Numerical limits and functions that several layers share."""

from typing import Any

from demitasse.backends.arrays import Array

FLT_MIN = 1.1754943508222875e-38
"""Smallest normal number in single precision."""

LOG_THRESHOLD = 1e-20
"""Least probability of which older losses take the logarithm, by Caffe's name."""


def sigmoid(xp: Any, x: Array) -> Array:
    """Return the logistic function of ``x``, by tanh, which cannot overflow."""
    return 0.5 * xp.tanh(0.5 * x) + 0.5


def sigmoid_cross_entropy(xp: Any, x: Array, target: Array) -> Array:
    """Return -(t log s(x) + (1 - t) log(1 - s(x))) of scores x and targets t, without overflow."""
    return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0.0) - x * target


def softmax(xp: Any, x: Array, axis: int) -> Array:
    """Return the softmax of ``x`` along ``axis``; the largest value is subtracted first."""
    if 0 in x.shape:
        return x
    y = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return y / xp.sum(y, axis=axis, keepdims=True)


def normalization_backward(xp: Any, dy: Array, y: Array, axes: tuple[int, ...]) -> Array:
    """Return the gradient of y = (x - mean) / deviation by x, times the deviation.

    Mean and deviation are functions of x, over ``axes``. Shapes: any -> the same.
    """
    along = xp.mean(dy * y, axis=axes, keepdims=True)
    return dy - xp.mean(dy, axis=axes, keepdims=True) - along * y
