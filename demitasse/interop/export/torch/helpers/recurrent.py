"""Recurrent layers: ``cont`` is 0 where a sequence begins anew."""

import torch


def lstm_step(gates, cells, cont):
    """Return the cells and the hidden state after one step.

    Shapes: gates (N, 4 H), cells (N, H), cont (N, 1) -> twice (N, H).
    """
    i, f, o, g = gates.chunk(4, dim=1)
    cells = cont * torch.sigmoid(f) * cells + torch.sigmoid(i) * torch.tanh(g)
    return cells, torch.sigmoid(o) * torch.tanh(cells)


def gate_inputs(x, weights, static):
    """Return what every step reads, but for the hidden state. Shape: (T, N, G)."""
    z = x.flatten(2) @ weights["weight"].T + weights["bias"]
    if static is None:
        return z
    return z + static.flatten(1) @ weights["static_weight"].T


def lstm(x, cont, weights, static=None, hidden=None, cells=None):
    """Run an LSTM over time.

    Shapes: x (T, N, ...), cont (T, N) -> outputs (T, N, H), and the hidden state and
    the cells at the end, (1, N, H).
    """
    z, recurrent = gate_inputs(x, weights, static), weights["hidden_weight"].T
    nothing = z.new_zeros((z.shape[1], recurrent.shape[0]))
    h = nothing if hidden is None else hidden.reshape(nothing.shape)
    c = nothing if cells is None else cells.reshape(nothing.shape)
    outputs = []
    for inputs, goes_on in zip(z, cont[..., None], strict=True):
        c, h = lstm_step(inputs + (goes_on * h) @ recurrent, c, goes_on)
        outputs.append(h)
    return torch.stack(outputs), h[None], c[None]


def rnn(x, cont, weights, static=None, hidden=None):
    """Run a simple recurrent layer over time.

    Shapes: x (T, N, ...), cont (T, N) -> outputs (T, N, H), and the hidden state at
    the end, (1, N, H).
    """
    z, recurrent = gate_inputs(x, weights, static), weights["hidden_weight"].T
    nothing = z.new_zeros((z.shape[1], recurrent.shape[0]))
    h = nothing if hidden is None else hidden.reshape(nothing.shape)
    states = []
    for inputs, goes_on in zip(z, cont[..., None], strict=True):
        h = torch.tanh(inputs + (goes_on * h) @ recurrent)
        states.append(h)
    outputs = torch.stack(states) @ weights["output_weight"].T + weights["output_bias"]
    return torch.tanh(outputs), h[None]
