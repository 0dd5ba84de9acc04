"""RNN: h = tanh(W_x x + b_h (+ W_s static) + W_h (cont * h_before)), o = tanh(W_o h + b_o).

Source: Caffe, ``src/caffe/layers/rnn_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs
from demitasse.layers.recurrent import RecurrentLayer
from demitasse.layers.registry import register

__all__ = ["RNN"]


@register("RNN")
class RNN(RecurrentLayer):
    """Sequences through a plain recurrent layer and an output layer; the state is h.

    Shapes: bottoms x (T, N, ...), cont (T, N), optionally static (N, ...), optionally h (1, N, H)
    -> tops o (T, N, H), optionally last h (1, N, H). Parameters W_x (H, D), b_h (H,), W_s (H, S)
    where there is a static bottom, W_h (H, H), W_o (H, H), b_o (H,).
    """

    gates, states = 1, 1
    cell = "RNN"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        super().setup(bottom, top)
        p = self.param.recurrent_param
        self.add_param((self.h, self.h), p.weight_filler)
        self.add_param((self.h,), p.bias_filler)
        self.output_index = self.recurrent_index + 1

    def unroll(self, z: Array, cont: Array, states: list[Array]) -> tuple[Array, list[Array]]:
        xp, weight = self.xp, self.blobs[self.recurrent_index].read().T
        [h] = states
        before, hidden = [], []
        for t in range(self.t):
            before.append(cont[t, ...] * h)
            h = xp.tanh(z[t, ...] + xp.matmul(before[t], weight))
            hidden.append(h)
        all_h = xp.stack(hidden)
        outputs, bias = (self.blobs[self.output_index + i].read() for i in range(2))
        y = xp.tanh(xp.matmul(all_h, outputs.T) + bias)
        self.steps("before").write(xp.stack(before))
        self.steps("hidden").write(all_h)
        self.steps("output").write(y)
        return y, [h]

    def unroll_back(self, dy: Array, cont: Array) -> Array:
        xp, many = self.xp, self.t * self.n
        hidden, y = self.steps("hidden").read(), self.steps("output").read()
        dy = dy * (1 - y * y)
        flat = xp.reshape(dy, (many, self.h))
        if self.param_propagate_down(self.output_index):
            rows = xp.reshape(hidden, (many, self.h))
            self.blobs[self.output_index].add_diff(xp.matmul(flat.T, rows))
        if self.param_propagate_down(self.output_index + 1):
            self.blobs[self.output_index + 1].add_diff(xp.sum(flat, axis=0))
        d_hidden = xp.matmul(dy, self.blobs[self.output_index].read())  # (T, N, H)
        weight = self.blobs[self.recurrent_index].read()
        dh = self.zeros((self.n, self.h))
        gradients = []
        for t in reversed(range(self.t)):
            h = hidden[t, ...]
            dz = (d_hidden[t, ...] + dh) * (1 - h * h)
            dh = cont[t, ...] * xp.matmul(dz, weight)
            gradients.append(dz)
        return xp.stack(gradients[::-1])
