"""LSTM and RNN: kernels of a Step, and their calls."""

from collections.abc import Callable, Sequence

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, InputArg, ParamArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Operand, Operands


def output_call(engine: Engine, blob: Operand) -> KernelCall:
    """Return what makes tanh of what a blob holds, where there are kernels."""
    from demitasse.backends.kernels.recurrence import Squashing

    kernel = Squashing(blob.count, kernel_tuning(engine))
    return KernelCall(engine, (), kernel.code, lambda: kernel(blob.data_memory.mutable_cpu_data()))


class StepsCall(KernelCall):
    """All steps of a recurrent layer.

    Args:
        z: The inputs of the gates. Shape: (T, N, G * H).
        static: Each sequence's addition to its inputs in all steps, or None. Shape: (N, G * H).
        hidden: Returns where the hidden states go. Shape: (T, N, H).
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Recurrent,
        at: Operands,
        z: np.ndarray,
        static: np.ndarray | None,
        hidden: Callable[[], np.ndarray],
    ) -> None:
        from demitasse.backends.kernels.recurrence import Recurrence

        self._op, self._at, self._hidden = op, at, hidden
        tuning = kernel_tuning(engine)
        blocks = _weight_blocks(op, z, tuning)
        self._weight = ParamArg(Arg.WEIGHTS, at.params[3 if op.static else 2], blocks)
        self._kernel = Recurrence(op.cell, z, tuning, static=static)
        super().__init__(engine, (self._weight,), self._kernel.code, held=self._kernel.nbytes)

    def __call__(self) -> None:
        weight, cont = self._weight.array(), self._at.bottom[1].read()
        begin, end = self._states()
        self._kernel(weight, cont, begin, self._hidden(), end)

    def _states(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the states to begin with, and where those at the end are to be written.

        What is carried from pass to pass are the same arrays.
        """
        op, at = self._op, self._at
        if op.exposed:
            given = at.bottom[3 if op.static else 2 :]
            return [blob.read() for blob in given], [blob.buffer() for blob in at.top[1:]]
        shape, count = (op.rows, op.m), self._kernel.state_count
        memories = [at.saved(f"state {i}", shape).blob.data_memory for i in range(count)]
        carried = [memory.mutable_cpu_data() for memory in memories]
        return carried, carried


def _weight_blocks(op: ops.Recurrent, z: np.ndarray, tuning: Tuning) -> Layout:
    """Return the layout in which the kernel of steps takes the weight of the hidden state."""
    return layouts.channel_blocks((z.shape[-1] // op.m, op.m, op.m), tuning.width)


class LearnedSteps:
    """All steps of a recurrent layer, and their gradients.

    The inputs ``z`` of the gates become what gradients need. Shape: z (T, N, G * H).

    Attributes:
        before: The hidden states that steps begin with. Shape: (T, N, H).
        states: Number of arrays of a state; the first is the hidden state.

    Raises:
        Declined: No kernel can be compiled.
    """

    def __init__(self, engine: Engine, op: ops.Recurrent, weight: Operand, z: np.ndarray) -> None:
        tuning = kernel_tuning(engine)
        blocks = _weight_blocks(op, z, tuning)
        from demitasse.backends.kernels.recurrence import Recurrence, SavedStates

        self._cell, self._tuning = op.cell, tuning
        self._kept = SavedStates.of(op.cell, (op.steps, op.rows, op.m))
        self._kernel = Recurrence(op.cell, z, tuning, kept=self._kept)
        self.before, self.states = self._kept.before, self._kernel.state_count
        self._end = [np.zeros((op.rows, op.m), np.float32) for _ in range(self.states)]
        ends = blocks, layouts.plain(weight.shape)
        self._packed, self._plain = (InputArg(Arg.WEIGHTS, weight, one) for one in ends)
        self._packed.engine = self._plain.engine = engine

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self._kept, *self._end)) + self._packed.copied

    @property
    def code(self) -> str:
        return self._kernel.code

    @property
    def backward_code(self) -> str:
        return self._gradient.code

    def forward(
        self, states: Sequence[np.ndarray], cont: np.ndarray, hidden: np.ndarray
    ) -> Sequence[np.ndarray]:
        begin = [np.ascontiguousarray(state) for state in states]
        self._kernel(self._packed.array(), np.ascontiguousarray(cont), begin, hidden, self._end)
        return self._end

    def prepare_backward(self, dz: np.ndarray, known: np.ndarray) -> None:
        from demitasse.backends.kernels.recurrence import RecurrentBackward

        self._gradient = RecurrentBackward(self._cell, dz, known, self._kept, self._tuning)

    def backward(self, cont: np.ndarray, dy: np.ndarray) -> None:
        self._gradient(self._plain.array(), np.ascontiguousarray(cont), np.ascontiguousarray(dy))
