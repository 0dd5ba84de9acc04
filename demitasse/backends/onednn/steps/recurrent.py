"""LSTM and RNN: the products of all time steps at once where they can be, else step by step.

What goes into the gates from outside is one product for all steps, and so are all gradients of
weights; only the product with the hidden state waits for the step before. The steps run in kernels
of our own, or one by one in the library and numpy (``sequences.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep, Runnable
from demitasse.backends.onednn.steps.cells import past_tanh
from demitasse.backends.onednn.steps.products import Own, Product
from demitasse.backends.onednn.steps.sequences import sequence
from demitasse.backends.step import Declined, Operand, Operands, decline_in_place

__all__ = ["RecurrentStep"]


class RecurrentStep(OnednnStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    def __init__(self, engine: Engine, op: ops.Recurrent, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        t, n = op.steps, op.rows
        weights, bottom = at.params, at.bottom
        wide = weights[0].shape[0]
        self.first_state = 3 if op.static else 2
        # the inputs of the gates, which become the open gates
        self.z = _array(t, n, wide)
        self.input = Product(engine, t * n, weights[0], weights[1])
        z = Own(Arg.DST, self.input.y, self.z)
        x = Reader(Arg.SRC, bottom[0], self.input.x)
        self.to_gates = self.input.forward(x, z)
        self.sequence = sequence(engine, op, weights[self.first_state], self.z)
        self.before = self.sequence.before
        self.forward_calls = [self.to_gates, *self.sequence.calls]
        self.from_static: Call | None = None
        if op.static:
            self.static, self.row = Product(engine, n, weights[2]), _array(n, wide)
            row = Own(Arg.DST, self.static.y, self.row)
            port = Reader(Arg.SRC, bottom[2], self.static.x)
            self.from_static = self.static.forward(port, row)
            self.forward_calls.append(self.from_static)
        self.hidden: np.ndarray | None = None
        if op.cell == "RNN":
            self._add_output()
        self.kept = self.z.nbytes + self.sequence.nbytes

    def _add_output(self) -> None:
        """The RNN's own layer after its hidden states: o = tanh(W_o h + b_o)."""
        op, at, index = self.op, self.at, self.first_state + 1
        # the top may be overwritten before the gradient is computed
        self.hidden, self.y = (_array(op.steps, op.rows, op.m) for _ in range(2))
        self.output = Product(self.engine, op.steps * op.rows, *at.params[index : index + 2])
        hidden = Own(Arg.SRC, self.output.x, self.hidden)
        self.to_output = self.output.forward(hidden, Own(Arg.DST, self.output.y, self.y))
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
        kept: Sequence[Operand] = at.top[1:] if op.exposed else self._carried()
        for blob, state in zip(kept, end, strict=True):
            blob.write(state.reshape(blob.shape))
        if self.hidden is not None:
            self.to_output()
            at.top[0].write(np.tanh(self.y, out=self.y))

    def _begin(self) -> list[np.ndarray]:
        exposed: Sequence[Operand] = self.at.bottom[self.first_state :]
        blobs = exposed if self.op.exposed else self._carried()
        return [blob.read().reshape(self.op.rows, self.op.m) for blob in blobs]

    def _carried(self) -> list[Operand]:
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
        if at.propagate_down[1]:
            message = "a gradient of the marks where sequences begin, which have none"
            raise Declined(message)
        if any(i < len(wanted) and wanted[i] and not wanted[i - 1] for i in (1, last + 1)):
            message = "a bias that is learned without its weight; oneDNN computes both gradients"
            raise Declined(message)
        self.dz = np.zeros_like(self.z)
        known = self.z if self.hidden is None else self.hidden
        self.kept += self.dz.nbytes
        self.sequence.prepare_backward(self.dz, known)
        self.backward_calls = self._from_all_gates()
        self.from_row = self._from_static() if op.static else []
        self.from_output = [] if self.hidden is None else self._from_output(self.hidden)

    def _from_all_gates(self) -> list[Runnable]:
        """Return what runs when the gradients of the gates of all steps are there."""
        at, op, wanted = self.at, self.op, self.at.param_propagate_down
        dz, x = Own(Arg.DIFF_DST, self.input.y, self.dz), at.bottom[0]
        calls: list[Runnable] = []
        if wanted[0]:
            calls.append(self.input.gradients(Reader(Arg.SRC, x, self.input.x), dz, bias=wanted[1]))
        if wanted[self.first_state]:
            every = Product(self.engine, op.steps * op.rows, at.params[self.first_state])
            before = Own(Arg.SRC, every.x, self.before)
            dz = Own(Arg.DIFF_DST, every.y, self.dz)
            calls.append(every.gradients(before, dz, bias=False))
        if at.propagate_down[0]:
            dz = Own(Arg.DIFF_DST, self.input.y, self.dz)
            dx = Writer(Arg.DIFF_SRC, x, self.input.x, diff=True)
            calls.append(self.input.gradient(dz, dx))
        return calls

    def _from_static(self) -> list[Call]:
        at, product, calls = self.at, self.static, []
        if at.param_propagate_down[2]:
            static = Reader(Arg.SRC, at.bottom[2], product.x)
            row = Own(Arg.DIFF_DST, product.y, self.row)
            calls.append(product.gradients(static, row, bias=False))
        if at.propagate_down[2]:
            row = Own(Arg.DIFF_DST, product.y, self.row)
            target = Writer(Arg.DIFF_SRC, at.bottom[2], product.x, diff=True)
            calls.append(product.gradient(row, target))
        return calls

    def _from_output(self, hidden: np.ndarray) -> list[Call]:
        """Return what turns the gradient of the output, in ``dy``, into that of the hidden."""
        product, wanted = self.output, self.at.param_propagate_down[self.first_state + 1 :]
        self.dy, calls = _array(*hidden.shape), []
        if wanted[0]:
            source = Own(Arg.SRC, product.x, hidden)
            dy = Own(Arg.DIFF_DST, product.y, self.dy)
            calls.append(product.gradients(source, dy, bias=wanted[1]))
        self.d_hidden = _array(*hidden.shape)
        dy = Own(Arg.DIFF_DST, product.y, self.dy)
        calls.append(product.gradient(dy, Own(Arg.DIFF_SRC, product.x, self.d_hidden)))
        return calls

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
