"""Recurrent layers: sequences of T steps, computed inside one layer."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.layers.base import (
    AtLeast,
    Between,
    Blobs,
    Exactly,
    Flags,
    Layer,
    SavedForBackward,
)
from demitasse.layers.checks import check_row_size, positive, shape_mismatch, wrong_shapes
from demitasse.layers.numerics import sigmoid
from demitasse.layers.registry import register_layer


class RecurrentLayer(Layer):
    """Base class of layers for N sequences of T steps.

    A pass begins with the state at the end of the last pass. cont is 0 at the start of a sequence,
    which resets the state, and 1 elsewhere. Gradients do not cross passes. With ``expose_hidden``
    states come from the last bottoms and go to the last tops instead; these bottoms get no
    gradient, and the gradients of these tops are not used, as in Caffe.

    Shapes: bottoms x (T, N, ...), cont (T, N)[, static (N, ...)][, states (1, N, H)] -> tops
    (T, N, H)[, states (1, N, H)]. Parameters, G gates together: of x (G * H, D), bias (G * H,)
    [, of static (G * H, S)], of the hidden state (G * H, H); then the subclass's own.

    Raises:
        ConfigError: ``num_output`` is missing or 0.
        ShapeError: The bottoms do not have these shapes, T is 0, or T changes.
        NetError: The gradient of the first weight is wanted in place.
    """

    bottoms = AtLeast(2)
    tops = AtLeast(1)
    gates: ClassVar[int]
    """Number of gates."""
    states: ClassVar[int]
    """Number of blobs of a state; the first is the hidden state."""
    cell: ClassVar[Literal["LSTM", "RNN"]]
    """Name of the cell in backends."""

    def unroll(self, z: Array, cont: Array, states: list[Array]) -> tuple[Array, list[Array]]:
        """Run all steps; return the output, (T, N, H), and the states at the end, (N, H) each.

        Shapes: z, inputs of the gates, (T, N, G * H); cont (T, N, 1); states (N, H) each.
        """
        raise NotImplementedError

    def unroll_back(self, dy: Array, cont: Array) -> Array:
        """Return the gradient of z, (T, N, G * H); add the parameters' gradients."""
        raise NotImplementedError

    # -- counts and shapes ---------------------------------------------------------------------

    def check_counts(self, bottoms: int, tops: int) -> None:
        exposed = self.states if self.param.recurrent_param.expose_hidden else 0
        self._check_count("bottom", Between(2 + exposed, 3 + exposed), bottoms)
        self._check_count("top", Exactly(1 + exposed), tops)

    def allow_force_backward(self, bottom_index: int) -> bool:
        return self.has_gradient(bottom_index) and bottom_index < self.first_state

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.recurrent_param
        self.h = positive(p.num_output, "recurrent_param.num_output")
        self.exposed = p.expose_hidden
        self.has_static = len(bottom) > 2 + (self.states if self.exposed else 0)
        self.first_state = 3 if self.has_static else 2
        self.differentiable = (0, *range(2, len(bottom)))
        self._need_axes(bottom)
        self.t = bottom[0].shape[0]
        rows = self.gates * self.h
        self.d = bottom[0].count_from(2)
        self.add_param((rows, self.d), p.weight_filler)
        self.add_param((rows,), p.bias_filler)
        if self.has_static:
            self.s = bottom[2].count_from(1)
            self.add_param((rows, self.s), p.weight_filler)
        self.add_param((rows, self.h), p.weight_filler)
        self.recurrent_index = self.first_state

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self._need_axes(bottom)
        steps, self.n = bottom[0].shape[:2]
        if steps != self.t:
            message = (
                f"bottom {bottom[0].name!r} has {steps} time steps, expected {self.t} as before"
            )
            raise shape_mismatch(message, blob=bottom[0].name, got=steps, expected=self.t)
        check_row_size(bottom[0], 2, self.d, f"the weight {self.blobs[0].shape}")
        if self.has_static:
            check_row_size(bottom[2], 1, self.s, f"the weight {self.blobs[2].shape}")
        for blob in bottom[self.first_state :]:
            if blob.shape != (1, self.n, self.h):
                raise wrong_shapes(self.type, f"states {(1, self.n, self.h)}", blob)
        top[0].reshape((self.t, self.n, self.h))
        for blob in top[1:]:
            blob.reshape((1, self.n, self.h))
        sizes = (self.t, self.n, self.d, self.h)
        self.op = ops.Recurrent(self.dtype, self.cell, *sizes, self.has_static, self.exposed)

    def _need_axes(self, bottom: Blobs) -> None:
        x, cont = bottom[0].shape, bottom[1].shape
        if len(x) < 3 or cont != x[:2] or not x[0]:
            expected = "x (T, N, ...) and cont (T, N), with T above 0"
            raise wrong_shapes(self.type, expected, *bottom[:2])
        if self.has_static and (bottom[2].num_axes < 2 or bottom[2].shape[0] != x[1]):
            expected = f"a static input (N, ...) with a row for each of the {x[1]} sequences"
            raise wrong_shapes(self.type, expected, bottom[2])

    # -- passes --------------------------------------------------------------------------------

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        y, states = self.unroll(self._inputs(bottom), self._cont(bottom), self._begin(bottom))
        top[0].write(y)
        kept = top[1:] if self.exposed else self._state()
        for blob, state in zip(kept, states, strict=True):
            blob.write(xp.reshape(state, blob.shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, many = self.xp, self.t * self.n
        rows = self.gates * self.h
        dz = self.unroll_back(top[0].read_diff(), self._cont(bottom))  # (T, N, rows)
        flat = xp.reshape(dz, (many, rows))
        if self.param_propagate_down(0):
            self.refuse_overwritten(bottom, top, propagate_down)
            x = xp.reshape(bottom[0].read(), (many, self.d))
            self.blobs[0].add_diff(xp.matmul(flat.T, x))
        if self.param_propagate_down(1):
            self.blobs[1].add_diff(xp.sum(flat, axis=0))
        if self.param_propagate_down(self.recurrent_index):
            before = xp.reshape(self.steps("before").read(), (many, self.h))
            self.blobs[self.recurrent_index].add_diff(xp.matmul(flat.T, before))
        if propagate_down[0]:
            dx = xp.matmul(flat, self.blobs[0].read())
            bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))
        if self.has_static:
            static, total = bottom[2], xp.sum(dz, axis=0)
            if self.param_propagate_down(2):
                rows_of_static = xp.reshape(static.read(), (self.n, self.s))
                self.blobs[2].add_diff(xp.matmul(total.T, rows_of_static))
            if propagate_down[2]:
                ds = xp.matmul(total, self.blobs[2].read())
                static.write_diff(xp.reshape(ds, static.shape))
        first = self.first_state
        for blob, wanted in zip(bottom[first:], propagate_down[first:], strict=True):
            if wanted:
                blob.set_diff(0)

    def steps(self, name: str, parts: int = 1) -> SavedForBackward:
        """Return state of all steps for backward: (T, N, parts * H).

        ``before`` is the hidden state before each step, times cont; ``unroll`` writes it.
        """
        return self.saved(name, (self.t, self.n, parts * self.h))

    def state_blobs(self) -> Sequence[Blob]:
        """Return the states at the start of the next pass, after the first pass."""
        names = [] if self.exposed else [f"state {i}" for i in range(self.states)]
        return [self._saved[name].blob for name in names if name in self._saved]

    def all_state_blobs(self) -> Sequence[Blob]:
        return () if self.exposed else self._state()

    def _inputs(self, bottom: Blobs) -> Array:
        """Return the inputs of the gates from x, bias and static. Shape: (T, N, G * H)."""
        xp, rows = self.xp, self.gates * self.h
        x = xp.reshape(bottom[0].read(), (self.t * self.n, self.d))
        z = xp.matmul(x, self.blobs[0].read().T) + self.blobs[1].read()
        z = xp.reshape(z, (self.t, self.n, rows))
        if self.has_static:
            static = xp.reshape(bottom[2].read(), (self.n, self.s))
            z = z + xp.matmul(static, self.blobs[2].read().T)
        return z

    def _cont(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[1].read(), (self.t, self.n, 1))

    def _begin(self, bottom: Blobs) -> list[Array]:
        blobs = bottom[self.first_state :] if self.exposed else self._state()
        return [self.xp.reshape(blob.read(), (self.n, self.h)) for blob in blobs]

    def _state(self) -> list[Blob]:
        """Return the blobs of the states between passes."""
        return [self.saved(f"state {i}", (self.n, self.h)).blob for i in range(self.states)]


@register_layer("RNN")
class RNN(RecurrentLayer):
    """Sequences through a plain recurrent layer and an output layer; the state is h.

    h = tanh(W_x x + b_h (+ W_s static) + W_h (cont * h_before)), o = tanh(W_o h + b_o).

    Source: Caffe, ``src/caffe/layers/rnn_layer.cpp``.
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


def step(xp: Any, inputs: Array, c_before: Array, cont: Array) -> tuple[Array, Array, Array]:
    """Compute one step; return the gates i, f, o, g beside each other, (N, 4H), c and h, (N, H).

    Shapes: inputs of the gates (N, 4H), c_before (N, H), cont (N, 1).
    """
    size = c_before.shape[1]
    opened = sigmoid(xp, inputs[:, : 3 * size])
    gates = xp.concat([opened, xp.tanh(inputs[:, 3 * size :])], axis=1)
    i, f, o, g = quarters(gates)
    c = cont * f * c_before + i * g
    return gates, c, o * xp.tanh(c)


def step_back(
    xp: Any, gates: Array, c: Array, c_before: Array, cont: Array, dc: Array, dh: Array
) -> tuple[Array, Array]:
    """Return the gradients of the gates' inputs, (N, 4H), and of c_before, (N, H)."""
    i, f, o, g = quarters(gates)
    tanh_cell = xp.tanh(c)
    dc = dc + dh * o * (1 - tanh_cell * tanh_cell)
    d_gates = [
        dc * g * i * (1 - i),
        dc * cont * c_before * f * (1 - f),
        dh * tanh_cell * o * (1 - o),
        dc * i * (1 - g * g),
    ]
    return xp.concat(d_gates, axis=1), dc * cont * f


def quarters(gates: Array) -> list[Array]:
    """Return i, f, o and g. Shapes: (N, 4H) -> four (N, H)."""
    size = gates.shape[1] // 4
    return [gates[:, part * size : (part + 1) * size] for part in range(4)]


@register_layer("LSTMUnit")
class LSTMUnit(Layer):
    """One time step of an LSTM, without the products with its weights.

    With gate inputs i', f', o', g' beside each other and cont 0 where a sequence begins, else 1::

        i, f, o = sigmoid(i', f', o')    g = tanh(g')
        c = cont * f * c_before + i * g  h = o * tanh(c)

    Source: Caffe, ``src/caffe/layers/lstm_unit_layer.cpp``.

    Shapes: bottoms c_before (1, N, H), gate inputs (1, N, 4H), cont (1, N) -> tops c (1, N, H),
    h (1, N, H).

    Raises:
        ShapeError: The bottoms do not have these shapes.
        NetError: A gradient is wanted in place.
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
        self.refuse_overwritten(bottom, top, propagate_down)
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


@register_layer("LSTM")
class LSTM(RecurrentLayer):
    """Sequences through memory cells; a state is h and c.

    Long short-term memory; see LSTMUnit for one step. The gate inputs of step t are
    W_x x + b (+ W_s static) + W_h (cont * h_before), in the order input, forget, output, new value.

    Source: Caffe, ``src/caffe/layers/lstm_layer.cpp``.
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
