"""LSTM and RNN.

What goes into the gates from outside is one product for all steps, and so are all gradients of
weights; only the product with the hidden state waits for the step before. The steps run in kernels
of our own, or one by one in the library and numpy.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.arguments import BufferArg, Call
from demitasse.backends.onednn.jit_adapters.recurrent import LearnedSteps, StepsCall, output_call
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.primitive import lent_attributes
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.products import Matrix, Product
from demitasse.backends.step import Declined, Operand, Operands, decline_if


class RecurrentStep(OnednnStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    needs_bottom = True
    deferrable = replayable = backward_replayable = False

    def __init__(self, engine: Engine, op: ops.Recurrent, at: Operands) -> None:
        super().__init__(engine, op, at)
        t, n = op.steps, op.rows
        weights, bottom = at.params, at.bottom
        wide = weights[0].shape[0]
        self.first_state = 3 if op.static else 2
        # the inputs of the gates, which become the open gates
        self.z = _array(t, n, wide)
        self.input = Product(engine, t * n, weights[0], weights[1])
        self.to_gates = self.input.forward(bottom[0], self.z)
        self.sequence = sequence(engine, op, weights[self.first_state], self.z)
        self.before = self.sequence.before
        self.forward_calls = [self.to_gates, *self.sequence.calls]
        self.from_static: Call | None = None
        if op.static:
            self.static, self.row = Product(engine, n, weights[2]), _array(n, wide)
            self.from_static = self.static.forward(bottom[2], self.row)
            self.forward_calls.append(self.from_static)
        self.hidden: np.ndarray | None = None
        if op.cell == "RNN":
            self._add_output()
        self.kept_bytes = self.z.nbytes + self.sequence.nbytes

    def _add_output(self) -> None:
        """The RNN's own layer after its hidden states: o = tanh(W_o h + b_o)."""
        op, at, index = self.op, self.at, self.first_state + 1
        # the top may be overwritten before the gradient is computed
        self.hidden, self.y = (_array(op.steps, op.rows, op.m) for _ in range(2))
        self.output = Product(self.engine, op.steps * op.rows, *at.params[index : index + 2])
        self.to_output = self.output.forward(self.hidden, self.y)
        self.forward_calls.append(self.to_output)

    @property
    def code(self) -> str:
        return f"{super().code}, {self.sequence.code}"

    @property
    def backward_code(self) -> str:
        return f"{super().backward_code}, {self.sequence.backward_code}"

    # -- forward -------------------------------------------------------------------------------

    def forward(self) -> None:
        op, at = self.op, self.at
        states, cont = self._begin(), self._cont()
        self.to_gates()
        if self.from_static is not None:
            self.from_static()
            self.z += self.row
        hidden = at.top[0].buffer() if self.hidden is None else self.hidden
        end = self.sequence.forward(states, cont, hidden)
        kept: Sequence[Operand] = at.top[1:] if op.exposed else self._state_blobs()
        for blob, state in zip(kept, end, strict=True):
            blob.write(state.reshape(blob.shape))
        if self.hidden is not None:
            self.to_output()
            at.top[0].write(np.tanh(self.y, out=self.y))

    def _begin(self) -> list[np.ndarray]:
        exposed: Sequence[Operand] = self.at.bottom[self.first_state :]
        blobs = exposed if self.op.exposed else self._state_blobs()
        return [blob.read().reshape(self.op.rows, self.op.m) for blob in blobs]

    def _state_blobs(self) -> list[Operand]:
        """Return the blobs in which the layer carries its states from pass to pass."""
        shape = (self.op.rows, self.op.m)
        return [self.at.saved(f"state {i}", shape).blob for i in range(self.sequence.states)]

    def _cont(self) -> np.ndarray:
        cont: np.ndarray = self.at.bottom[1].read()
        return cont.reshape(self.op.steps, self.op.rows, 1)

    # -- backward ------------------------------------------------------------------------------

    def prepare_backward(self) -> None:
        at, op = self.at, self.op
        wanted, last = at.param_propagate_down, self.first_state + 1
        decline_if(
            at.propagate_down[1], "a gradient of the marks where sequences begin, which have none"
        )
        decline_if(
            any(i < len(wanted) and wanted[i] and not wanted[i - 1] for i in (1, last + 1)),
            "a bias that is learned without its weight; oneDNN computes both gradients",
        )
        self.dz = np.zeros_like(self.z)
        known = self.z if self.hidden is None else self.hidden
        self.kept_bytes += self.dz.nbytes
        self.sequence.prepare_backward(self.dz, known)
        self.backward_calls = [*self._from_all_gates()]
        self.from_row = self._from_static() if op.static else []
        self.from_output = [] if self.hidden is None else self._from_output(self.hidden)

    def _from_all_gates(self) -> list[Call]:
        """Return what runs when the gradients of the gates of all steps are there."""
        at, op, wanted = self.at, self.op, self.at.param_propagate_down
        [x, *_], calls = at.bottom, []
        if wanted[0]:
            calls.append(self.input.gradients(x, self.dz, bias=wanted[1]))
        if wanted[self.first_state]:
            every = Product(self.engine, op.steps * op.rows, at.params[self.first_state])
            calls.append(every.gradients(self.before, self.dz, bias=False))
        if at.propagate_down[0]:
            calls.append(self.input.gradient(self.dz, x))
        return calls

    def _from_static(self) -> list[Call]:
        at, calls = self.at, []
        if at.param_propagate_down[2]:
            calls.append(self.static.gradients(at.bottom[2], self.row, bias=False))
        if at.propagate_down[2]:
            calls.append(self.static.gradient(self.row, at.bottom[2]))
        return calls

    def _from_output(self, hidden: np.ndarray) -> list[Call]:
        """Return what turns the gradient of the output, in ``dy``, into that of the hidden."""
        wanted, calls = self.at.param_propagate_down[self.first_state + 1 :], []
        self.dy, self.d_hidden = _array(*hidden.shape), _array(*hidden.shape)
        if wanted[0]:
            calls.append(self.output.gradients(hidden, self.dy, bias=wanted[1]))
        return [*calls, self.output.gradient(self.dy, self.d_hidden)]

    def backward(self) -> None:
        at, dz = self.at, self.dz
        cont, dy = self._cont(), at.top[0].read_diff()
        if self.hidden is not None:
            past_tanh(self.y, dy, self.dy)
            dy = self.d_hidden
            for call in self.from_output:
                call()
        self.sequence.backward(cont, dy)
        super().backward()
        if self.from_row:
            np.sum(dz, axis=0, out=self.row)
            for call in self.from_row:
                call()
        for place in range(self.first_state, len(at.bottom)):
            if at.propagate_down[place]:
                at.bottom[place].set_diff(0)


def _array(*shape: int) -> np.ndarray:
    """Return zeros in memory that primitives like."""
    return aligned(int(np.prod(shape))).reshape(shape)


class RecurrentForwardStep(OnednnStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Recurrent, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(at.backward, "gradients are wanted; this keeps nothing for them")
        params, bottom, top = at.params, at.bottom, at.top[0]
        many, wide = op.steps * op.rows, params[0].shape[0]
        z, static = self._array(op.steps, op.rows, wide), None
        self._add(many, params[:2], bottom[0], z)
        if op.static:
            static = self._array(op.rows, wide)
            self._add(op.rows, params[2:3], bottom[2], static)
        if op.cell == "LSTM":
            self.forward_calls.append(StepsCall(engine, op, at, z, static, top.buffer))
            return
        hidden = self._array(op.steps, op.rows, op.m)
        self.forward_calls.append(StepsCall(engine, op, at, z, static, lambda: hidden))
        self._add(many, params[-2:], hidden, top)
        self.forward_calls.append(output_call(engine, top))

    def _add(self, rows: int, params: tuple[Operand, ...], source: Matrix, target: Matrix) -> None:
        """Add a product of rows with a weight, and perhaps a bias."""
        product = Product(self.engine, rows, *params, alone=True)
        self.forward_calls.append(product.forward(source, target))

    def _array(self, *shape: int) -> np.ndarray:
        """Return zeros in memory that primitives like."""
        array = _array(*shape)
        self.kept_bytes += array.nbytes
        return array


class LstmCell:
    """LSTM's cell for T steps of N sequences with H hidden values.

    The G = 4 gates are input, forget, output and new value; the states are h and c.

    Attributes:
        states: Number of arrays of a state; the first is the hidden state.
        nbytes: Bytes of the cell's arrays.
    """

    states = 2

    def __init__(self, steps: int, rows: int, size: int) -> None:
        self.size = size
        self.cells = np.zeros((steps + 1, rows, size), np.float32)
        self.tanh_cell = np.zeros((steps, rows, size), np.float32)
        self.scratch, self.dc = (np.zeros((rows, size), np.float32) for _ in range(2))
        self.nbytes = self.cells.nbytes + self.tanh_cell.nbytes

    def begin(self, states: list[np.ndarray]) -> None:
        """Begin with these states. Shapes: each (N, H)."""
        self.cells[0] = states[1]

    def end(self) -> list[np.ndarray]:
        """Return the states at the end, the hidden one left out."""
        return [self.cells[-1]]

    def step(self, t: int, z: np.ndarray, cont: np.ndarray, h: np.ndarray) -> None:
        """Write the hidden state to ``h``; ``z`` becomes what the gradient needs.

        Shapes: z (N, G * H), cont (N, 1), h (N, H).
        """
        opened, half = z[:, : 3 * self.size], np.float32(0.5)
        # sigmoid by way of tanh, which cannot overflow
        np.multiply(opened, half, out=opened)
        np.tanh(z, out=z)
        np.multiply(opened, half, out=opened)
        np.add(opened, half, out=opened)
        i, f, o, g = self._parts(z)
        c, tanh_cell = self.cells[t + 1], self.tanh_cell[t]
        np.multiply(cont, f, out=c)
        np.multiply(c, self.cells[t], out=c)
        np.multiply(i, g, out=self.scratch)
        np.add(c, self.scratch, out=c)
        np.tanh(c, out=tanh_cell)
        np.multiply(o, tanh_cell, out=h)

    def begin_back(self) -> None:
        """Begin with no gradient of the states at the end."""
        self.dc[...] = 0

    def back(self, t: int, z: np.ndarray, cont: np.ndarray, dh: np.ndarray, dz: np.ndarray) -> None:
        """Write the gradient of the gates' inputs to ``dz``; ``dh`` is overwritten."""
        i, f, o, g = self._parts(z)
        di, df, do, dg = self._parts(dz)
        dc, s, tanh_cell = self.dc, self.scratch, self.tanh_cell[t]
        past_tanh(tanh_cell, dh, s)
        np.multiply(s, o, out=s)
        np.add(dc, s, out=dc)
        np.multiply(dc, i, out=s)
        past_tanh(g, s, dg)
        np.multiply(dc, g, out=di)
        np.multiply(dh, tanh_cell, out=do)
        np.multiply(dc, cont, out=dc)
        np.multiply(dc, self.cells[t], out=df)
        for gate, gradient in ((i, di), (f, df), (o, do)):
            np.multiply(gradient, gate, out=gradient)
            np.subtract(1, gate, out=s)
            np.multiply(gradient, s, out=gradient)
        np.multiply(dc, f, out=dc)

    def _parts(self, z: np.ndarray) -> list[np.ndarray]:
        return [z[:, first : first + self.size] for first in range(0, 4 * self.size, self.size)]


class RnnCell:
    """The cell h = tanh(z), with one gate; the state is h."""

    states, nbytes = 1, 0

    def __init__(self, steps: int, rows: int, size: int) -> None:
        del steps, rows, size

    def begin(self, states: list[np.ndarray]) -> None:
        del states

    def end(self) -> list[np.ndarray]:
        return []

    def step(self, t: int, z: np.ndarray, cont: np.ndarray, h: np.ndarray) -> None:
        del t, cont
        np.tanh(z, out=z)
        h[...] = z

    def begin_back(self) -> None:
        """Nothing: the hidden state is all there is."""

    def back(self, t: int, z: np.ndarray, cont: np.ndarray, dh: np.ndarray, dz: np.ndarray) -> None:
        del t, cont
        past_tanh(z, dh, dz)


def past_tanh(tanh_cell: np.ndarray, gradient: np.ndarray, out: np.ndarray) -> None:
    """Write gradient * (1 - squashed^2): what passes a tanh."""
    np.multiply(tanh_cell, tanh_cell, out=out)
    np.subtract(1, out, out=out)
    np.multiply(out, gradient, out=out)


CELLS: dict[str, type[LstmCell | RnnCell]] = {"LSTM": LstmCell, "RNN": RnnCell}


class StepwiseRNN:
    """T steps of N sequences, with G gates for each of H hidden values, run one by one.

    Args:
        z: The inputs of the gates, which become what gradients need. Shape: (T, N, G * H).

    Attributes:
        before: The hidden states that steps begin with. Shape: (T, N, H).
        states: Number of arrays of a state; the first is the hidden state.
        calls: Forward calls of the library.
    """

    code = backward_code = "numpy"

    def __init__(self, engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray) -> None:
        t, n, h = op.steps, op.rows, op.m
        self._steps, self._z, self._cell = t, z, CELLS[op.cell](t, n, h)
        self.before = aligned(t * n * h).reshape(t, n, h)
        self._dh = aligned(n * h).reshape(n, h)
        self.states = self._cell.states
        with lent_attributes(engine.library, keep=1.0) as adding:
            again = Product(engine, n, weight, attributes=adding)
        self._h_port, self._z_port = BufferArg(Arg.SRC, again.x), BufferArg(Arg.DST, again.y)
        self._from_hidden = again.forward(self._h_port, self._z_port)
        self._product, self.calls = again, [self._from_hidden]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.before.nbytes + self._dh.nbytes + self._cell.nbytes

    def forward(
        self, states: Sequence[np.ndarray], cont: np.ndarray, hidden: np.ndarray
    ) -> Sequence[np.ndarray]:
        """Write the hidden states, and return the states at the end.

        Shapes: states (N, H), cont (T, N, 1), hidden (T, N, H).
        """
        cell, h = self._cell, states[0]
        cell.begin(list(states))
        for t in range(self._steps):
            np.multiply(cont[t], h, out=self.before[t])
            self._h_port.buffer, self._z_port.buffer = self.before[t], self._z[t]
            self._from_hidden()
            h = hidden[t]
            cell.step(t, self._z[t], cont[t], h)
        return [h, *cell.end()]

    def prepare_backward(self, dz: np.ndarray, known: np.ndarray) -> None:
        """Take the gradients' place, and ``known``, the output of the gates.

        Shapes: (T, N, G * H).
        """
        del known  # the present contents of the inputs
        self._dz, self._dz_argument = dz, BufferArg(Arg.DIFF_DST, self._product.y)
        self._from_gates = self._product.gradient(self._dz_argument, self._dh)

    def backward(self, cont: np.ndarray, dy: np.ndarray) -> None:
        """Compute ``dz`` from the gradients of the hidden states. Shape: dy (T, N, H)."""
        cell, dh, dz = self._cell, self._dh, self._dz
        dh[...] = 0
        cell.begin_back()
        for t in reversed(range(self._steps)):
            np.add(dh, dy[t], out=dh)
            cell.back(t, self._z[t], cont[t], dh, dz[t])
            if t:  # gradients do not cross passes
                self._dz_argument.buffer = dz[t]
                self._from_gates()
                np.multiply(dh, cont[t], out=dh)


def sequence(
    engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray
) -> StepwiseRNN | LearnedSteps:
    """Return the steps of a recurrent layer, with the weight of the hidden state.

    The inputs ``z`` of the gates become what gradients need. Shape: z (T, N, G * H).
    """
    with suppress(Declined):
        return LearnedSteps(engine, op, weight, z)
    return StepwiseRNN(engine, op, weight, z)
