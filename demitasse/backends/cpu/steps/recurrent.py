"""LSTM and RNN.

One product computes the inputs' share of the gates for all steps, and one product each gradient of
weights. Only the product with the hidden state needs the step before.
"""

from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import InputArg, OutputArg, ParamArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.kernel_calls import KernelCall, elementwise_call, kernel_tuning
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.products import Matrix, Product
from demitasse.backends.kernels.recurrence import VECTORS, Recurrence
from demitasse.backends.step import Operand, Operands, decline_if


class RecurrentStep(CpuStep[ops.Recurrent]):
    """T steps of N sequences, with G gates for each of H hidden values."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Recurrent, at: Operands) -> None:
        super().__init__(engine, op, at)
        self.many, self.wide = op.steps * op.rows, at.params[0].shape[0]
        self.first_state, tuning = 3 if op.static else 2, kernel_tuning(engine)
        # the inputs of the gates, which become the open gates where gradients are wanted
        self.z, static = self._array(op.steps, op.rows, self.wide), None
        self.input = self._add(self.many, at.params[:2], at.bottom[0], self.z)
        if op.static:
            self.row = static = self._array(op.rows, self.wide)
            self.static = self._add(op.rows, at.params[2:3], at.bottom[2], static)
        weight = at.params[self.first_state]
        shape = (self.wide // op.m, op.m, op.m)
        kind = InputArg if at.backward else ParamArg
        packed = kind(weight, layouts.blocked(shape, 1, tuning.width))
        self.sequence = Recurrence(op.cell, self.z, tuning, static=static, trains=at.backward)
        self.kept_bytes += self.sequence.nbytes
        call = KernelCall(engine, self._run_steps, packed, code=self.sequence.code)
        self.forward_calls.append(call)
        self.hidden: np.ndarray | None = None
        if op.cell == "RNN":
            self._add_output(at.params[self.first_state + 1 :])

    def _add_output(self, params: tuple[Operand, ...]) -> None:
        """The RNN's own layer after its hidden states: o = tanh(W_o h + b_o)."""
        op, top = self.op, self.at.top[0]
        self.hidden = self._array(op.steps, op.rows, op.m)
        if self.at.backward:  # the top may be overwritten before the gradient is computed
            self.y = self._array(op.steps, op.rows, op.m)
            self.output = self._add(self.many, params, self.hidden, self.y)
            tanh = KernelCall(self.engine, self._write_output, code="")
        else:
            self._add(self.many, params, self.hidden, top)
            row = layouts.plain((top.count,))
            source, target = InputArg(top, row), OutputArg(top, row)
            tanh = elementwise_call(self.engine, [("tanh", ())], [source], target)
        self.forward_calls.append(tanh)

    def _add(
        self, rows: int, params: tuple[Operand, ...], source: Matrix, target: Matrix
    ) -> Product:
        """Add a product of rows with a weight, and perhaps a bias; return the product."""
        product = Product(self.engine, rows, *params, alone=not self.at.backward)
        self.forward_calls.append(product.forward(source, target))
        return product

    def _array(self, *shape: int) -> np.ndarray:
        """Return zeros in aligned memory."""
        array = aligned(int(np.prod(shape))).reshape(shape)
        self.kept_bytes += array.nbytes
        return array

    @property
    def replayable(self) -> bool:
        return not self.at.backward

    # -- forward -------------------------------------------------------------------------------

    def _write_output(self) -> None:
        self.at.top[0].write(np.tanh(self.y, out=self.y))

    def _run_steps(self, weight: np.ndarray) -> None:
        begin, end = self._states()
        hidden = self.at.top[0].buffer() if self.hidden is None else self.hidden
        self.sequence.forward(weight, self.at.bottom[1].read(), begin, hidden, end)

    def _states(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the states to begin with, and where those at the end are to be written.

        What is carried from pass to pass are the same arrays.
        """
        at, shape = self.at, (self.op.rows, self.op.m)
        if self.op.exposed:
            given = at.bottom[self.first_state :]
            return [blob.read() for blob in given], [blob.buffer() for blob in at.top[1:]]
        count = self.sequence.state_count
        memories = [at.saved(f"state {i}", shape).blob.data_memory for i in range(count)]
        carried = [memory.mutable_cpu_data() for memory in memories]
        return carried, carried

    # -- backward ------------------------------------------------------------------------------

    backward_replayable = False

    def prepare_backward(self) -> None:
        at, op, state = self.at, self.op, self.first_state
        decline_if(
            at.propagate_down[1], "a gradient of the marks where sequences begin, which have none"
        )
        self.dz, weight = self._array(*self.z.shape), at.params[state]
        if self.hidden is not None:
            self.dy, self.d_hidden = (self._array(*self.hidden.shape) for _ in range(2))
            ends = self.hidden, self.dy, state + 1, self.d_hidden
            tanh = KernelCall(self.engine, self._past_tanh, code="")
            self.backward_calls += [tanh, *self._gradients(self.output, *ends)]
        block, code = VECTORS * kernel_tuning(self.engine).width, self.sequence.code
        by_row = layouts.blocked(weight.shape, 1, block)
        packed = layouts.strided(weight.shape, (block, self.wide * block), 1, block)
        read = InputArg(weight, packed if self.sequence.packed else by_row)
        self.backward_calls.append(KernelCall(self.engine, self._run_back, read, code=code))
        if at.param_propagate_down[state]:
            every = Product(self.engine, self.many, weight)
            self.backward_calls += every.gradients(self.sequence.before, self.dz, bias=False)
        x, dx = at.bottom[0], at.bottom[0] if at.propagate_down[0] else None
        self.backward_calls += self._gradients(self.input, x, self.dz, 0, dx)
        if op.static:
            x, dx = at.bottom[2], at.bottom[2] if at.propagate_down[2] else None
            add_up = partial(np.sum, self.dz, axis=0, out=self.row)
            calls = self._gradients(self.static, x, self.row, 2, dx)
            self.backward_calls += [KernelCall(self.engine, add_up, code=""), *calls]

    def _gradients(
        self, product: Product, x: Matrix, dy: np.ndarray, place: int, dx: Matrix | None
    ) -> list[KernelCall]:
        """Return the wanted gradients of a product, whose parameters begin at a place."""
        weight, bias, *_ = *self.at.param_propagate_down[place:], False
        calls = product.gradients(x, dy, weight=weight, bias=bias)
        return calls if dx is None else [*calls, product.gradient(dy, dx)]

    def _run_back(self, weight: np.ndarray) -> None:
        at, cont = self.at, self.at.bottom[1].read()
        dy, known = at.top[0].read_diff(), self.z
        if self.hidden is not None:
            dy, known = self.d_hidden, self.hidden
        self.sequence.backward(weight, cont, dy, known, self.dz)

    def _past_tanh(self) -> None:
        """Write the gradient that passes the RNN's last tanh: dy * (1 - y^2)."""
        self.dy[...] = (1 - self.y * self.y) * self.at.top[0].read_diff()

    def backward(self) -> None:
        super().backward()
        at = self.at
        for place in range(self.first_state, len(at.bottom)):
            if at.propagate_down[place]:
                at.bottom[place].set_diff(0)
