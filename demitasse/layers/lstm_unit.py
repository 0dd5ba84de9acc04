"""LSTMUnit: one time step of an LSTM, without the products with its weights.

With gate inputs i', f', o', g' beside each other and cont 0 where a sequence begins, else 1::

    i, f, o = sigmoid(i', f', o')    g = tanh(g')
    c = cont * f * c_before + i * g  h = o * tanh(c)

Source: Caffe, ``src/caffe/layers/lstm_unit_layer.cpp``.
"""

from __future__ import annotations

from typing import Any

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes
from demitasse.layers.registry import register

__all__ = ["LSTMUnit", "step", "step_back"]


def step(xp: Any, inputs: Array, c_before: Array, cont: Array) -> tuple[Array, Array, Array]:
    """Compute one step.

    Returns:
        The gates i, f, o and g beside each other, (N, 4H), and c and h, each (N, H).

    Shapes: inputs of the gates (N, 4H), c_before (N, H), cont (N, 1).
    """
    size = c_before.shape[1]
    # sigmoid by way of tanh, which cannot overflow
    opened = 0.5 * xp.tanh(0.5 * inputs[:, : 3 * size]) + 0.5
    gates = xp.concat([opened, xp.tanh(inputs[:, 3 * size :])], axis=1)
    i, f, o, g = quarters(gates)
    c = cont * f * c_before + i * g
    return gates, c, o * xp.tanh(c)


def step_back(
    xp: Any, gates: Array, c: Array, c_before: Array, cont: Array, dc: Array, dh: Array
) -> tuple[Array, Array]:
    """Return the gradients of the gates' inputs, (N, 4H), and of c_before, (N, H)."""
    i, f, o, g = quarters(gates)
    squashed = xp.tanh(c)
    dc = dc + dh * o * (1 - squashed * squashed)
    d_gates = [
        dc * g * i * (1 - i),
        dc * cont * c_before * f * (1 - f),
        dh * squashed * o * (1 - o),
        dc * i * (1 - g * g),
    ]
    return xp.concat(d_gates, axis=1), dc * cont * f


def quarters(gates: Array) -> tuple[Array, Array, Array, Array]:
    """Return i, f, o and g. Shapes: (N, 4H) -> four (N, H)."""
    size = gates.shape[1] // 4
    return (
        gates[:, :size],
        gates[:, size : 2 * size],
        gates[:, 2 * size : 3 * size],
        gates[:, 3 * size :],
    )


@register("LSTMUnit")
class LSTMUnit(Layer):
    """One step of an LSTM.

    Shapes: bottoms c_before (1, N, H), gate inputs (1, N, 4H), cont (1, N) -> tops c (1, N, H),
    h (1, N, H).

    Raises:
        ShapeError: The bottoms do not have these shapes.
    """

    bottoms = Exactly(3)
    tops = Exactly(2)
    differentiable = (0, 1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        cell, gates, cont = (blob.shape for blob in bottom)
        wanted = ((1, *cell[1:2], 4 * cell[-1]), (1, *cell[1:2])) if len(cell) == 3 else None
        if cell[:1] != (1,) or (gates, cont) != wanted:
            expected = "a cell state (1, N, H), gate inputs (1, N, 4 * H) and cont (1, N)"
            raise wrong_shapes("LSTMUnit", expected, *bottom)
        for blob in top:
            blob.reshape(cell)
        self.n, self.h = cell[1:]

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        cell, gates, cont = self._rows(bottom)
        opened, c, h = step(self.xp, gates, cell, cont)
        self.saved("gates", (self.n, 4 * self.h)).write(opened)
        for blob, value in zip(top, (c, h), strict=True):
            blob.write(self.xp.reshape(value, blob.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, shape = self.xp, (self.n, self.h)
        cell, _, cont = self._rows(bottom)
        gates = self.saved("gates", (self.n, 4 * self.h)).read()
        c = xp.reshape(top[0].read(), shape)
        dc, dh = (xp.reshape(blob.read_diff(), shape) for blob in top)
        d_gates, d_cell = step_back(xp, gates, c, cell, cont, dc, dh)
        for blob, value, wanted in zip(bottom, (d_cell, d_gates), propagate_down, strict=False):
            if wanted:
                blob.write_diff(xp.reshape(value, blob.shape))

    def _rows(self, bottom: Blobs) -> list[Array]:
        """Return the bottoms without the time axis, cont as (N, 1)."""
        widths = (self.h, 4 * self.h, 1)
        return [
            self.xp.reshape(blob.read(), (self.n, width))
            for blob, width in zip(bottom, widths, strict=True)
        ]
