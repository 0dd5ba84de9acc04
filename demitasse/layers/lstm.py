"""LSTM: long short-term memory; see LSTMUnit for one step.

The gate inputs of step t are W_x x + b (+ W_s static) + W_h (cont * h_before), in the order input,
forget, output, new value.

Source: Caffe, ``src/caffe/layers/lstm_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.lstm_unit import step, step_back
from demitasse.layers.recurrent import RecurrentLayer
from demitasse.layers.registry import register

__all__ = ["LSTM"]


@register("LSTM")
class LSTM(RecurrentLayer):
    """Sequences through memory cells; a state is h and c.

    Shapes: bottoms x (T, N, ...), cont (T, N), optionally static (N, ...), optionally h (1, N, H)
    and c (1, N, H) -> tops h (T, N, H), optionally last h (1, N, H) and last c (1, N, H).
    Parameters W_x (4H, D), b (4H,), W_s (4H, S) where there is a static bottom, W_h (4H, H).
    """

    gates, states = 4, 2
    cell = "LSTM"

    def unroll(self, z: Array, cont: Array, states: list[Array]) -> tuple[Array, list[Array]]:
        xp, weight = self.xp, self.blobs[self.recurrent_index].read().T
        h, c = states
        before, cells_before, gates, cells, hidden = [], [], [], [], []
        for t in range(self.t):
            before.append(cont[t, ...] * h)
            cells_before.append(c)
            inputs = z[t, ...] + xp.matmul(before[t], weight)
            opened, c, h = step(xp, inputs, c, cont[t, ...])
            gates.append(opened)
            cells.append(c)
            hidden.append(h)
        self.steps("before").write(xp.stack(before))
        self.steps("cells before").write(xp.stack(cells_before))
        self.steps("cells").write(xp.stack(cells))
        self.steps("gates", 4).write(xp.stack(gates))
        return xp.stack(hidden), [h, c]

    def unroll_back(self, dy: Array, cont: Array) -> Array:
        xp, weight = self.xp, self.blobs[self.recurrent_index].read()
        before, cells = self.steps("cells before").read(), self.steps("cells").read()
        gates = self.steps("gates", 4).read()
        dh = dc = self.zeros((self.n, self.h))
        gradients = []
        for t in reversed(range(self.t)):
            gate = cont[t, ...]
            dz, dc = step_back(
                xp, gates[t, ...], cells[t, ...], before[t, ...], gate, dc, dy[t, ...] + dh
            )
            dh = gate * xp.matmul(dz, weight)
            gradients.append(dz)
        return xp.stack(gradients[::-1])
