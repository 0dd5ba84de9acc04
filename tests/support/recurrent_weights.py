"""Weights of the hidden state in the order in which kernels of LSTM and RNN read them."""

import numpy as np

from demitasse.backends.kernels.recurrence import VECTORS

__all__ = ["backward_weights", "forward_weights"]


def forward_weights(weight, width):
    """Return weights (G * H, H) in blocks of a vector's hidden values."""
    h = weight.shape[1]
    padded = [_filled_up(gate.T, width) for gate in weight.reshape(-1, h, h)]
    return np.stack([each.reshape(h, -1, width).swapaxes(0, 1) for each in padded])


def backward_weights(weight, width, packed):
    """Return weights (G * H, H) in blocks of several vectors, of each row or of all."""
    padded = _filled_up(weight, VECTORS * width)
    if packed:
        padded = padded.reshape(len(weight), -1, VECTORS * width).swapaxes(0, 1)
    return padded


def _filled_up(matrix, width):
    """Return a matrix with columns of zeros behind, to a multiple of the width."""
    return np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % width)))
