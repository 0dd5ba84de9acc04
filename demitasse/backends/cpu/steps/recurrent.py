"""LSTM and RNN.

What goes into the gates from outside is one product for all steps, and so are all gradients of
weights; only the product with the hidden state waits for the step before.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall
from demitasse.backends.cpu.jit_adapters.recurrent import LearnedSteps, StepsCall, output_call
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.products import Matrix, Product
from demitasse.backends.step import Operand, Operands, decline_if


class RecurrentStep(CpuStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    needs_bottom = True
    replayable = backward_replayable = False

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
        self.sequence = LearnedSteps(engine, op, weights[self.first_state], self.z)
        self.before = self.sequence.before
        self.forward_calls = [self.to_gates]
        self.from_static: KernelCall | None = None
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
        decline_if(
            at.propagate_down[1], "a gradient of the marks where sequences begin, which have none"
        )
        self.dz = np.zeros_like(self.z)
        known = self.z if self.hidden is None else self.hidden
        self.kept_bytes += self.dz.nbytes
        self.sequence.prepare_backward(self.dz, known)
        self.backward_calls = [*self._from_all_gates()]
        self.from_row = self._from_static() if op.static else []
        self.from_output = [] if self.hidden is None else self._from_output(self.hidden)

    def _from_all_gates(self) -> list[KernelCall]:
        """Return what runs when the gradients of the gates of all steps are there."""
        at, op, wanted = self.at, self.op, self.at.param_propagate_down
        [x, *_], calls = at.bottom, []
        if wanted[0] or wanted[1]:
            calls.append(self.input.gradients(x, self.dz, weight=wanted[0], bias=wanted[1]))
        if wanted[self.first_state]:
            every = Product(self.engine, op.steps * op.rows, at.params[self.first_state])
            calls.append(every.gradients(self.before, self.dz, bias=False))
        if at.propagate_down[0]:
            calls.append(self.input.gradient(self.dz, x))
        return calls

    def _from_static(self) -> list[KernelCall]:
        at, calls = self.at, []
        if at.param_propagate_down[2]:
            calls.append(self.static.gradients(at.bottom[2], self.row, bias=False))
        if at.propagate_down[2]:
            calls.append(self.static.gradient(self.row, at.bottom[2]))
        return calls

    def _from_output(self, hidden: np.ndarray) -> list[KernelCall]:
        """Return what turns the gradient of the output, in ``dy``, into that of the hidden."""
        wanted, calls = self.at.param_propagate_down[self.first_state + 1 :], []
        self.dy, self.d_hidden = _array(*hidden.shape), _array(*hidden.shape)
        if wanted[0] or wanted[1]:
            calls.append(self.output.gradients(hidden, self.dy, weight=wanted[0], bias=wanted[1]))
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
    """Return zeros in aligned memory."""
    return aligned(int(np.prod(shape))).reshape(shape)


class RecurrentForwardStep(CpuStep[ops.Recurrent]):
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
        """Return zeros in aligned memory."""
        array = _array(*shape)
        self.kept_bytes += array.nbytes
        return array


def past_tanh(tanh_cell: np.ndarray, gradient: np.ndarray, out: np.ndarray) -> None:
    """Write gradient * (1 - squashed^2): what passes a tanh."""
    np.multiply(tanh_cell, tanh_cell, out=out)
    np.subtract(1, out, out=out)
    np.multiply(out, gradient, out=out)
