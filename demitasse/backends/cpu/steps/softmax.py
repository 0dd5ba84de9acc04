"""Softmax and its loss."""

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.softmax import Softmax
from demitasse.backends.ops import loss_divisor
from demitasse.backends.step import Operands, decline_if


def softmax_kernel(engine: Engine, op: ops.Softmax | ops.SoftmaxLoss) -> Softmax:
    """Return the kernel for arrays in C order."""
    return Softmax(*op.sizes, kernel_tuning(engine))


class SoftmaxStep(CpuStep[ops.Softmax]):
    """Softmax along one axis, in C order: planes of classes are faster than classes in rows."""

    needs_bottom = True

    def prepare(self) -> None:
        self.layout = layouts.plain(self.op.bottom)
        self.kernel = softmax_kernel(self.engine, self.op)
        ends = self.in_and_out(self.layout, self.layout)
        self.forward_calls = [KernelCall(self.engine, self.kernel.forward, *ends)]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            y = InputArg(self.at.top[0], self.layout)
            ends = y, *self.gradients(self.layout, self.layout)
            self.backward_calls = [KernelCall(self.engine, self.kernel.backward, *ends)]


SMALLEST_PROBABILITY = np.finfo(np.float32).tiny


class SoftmaxLossStep(CpuStep[ops.SoftmaxLoss]):
    """The mean of -log p of the labelled class. Shapes: (outer, C, inner), labels (outer * inner).

    An unknown label gives NaN; one to be ignored gives no loss and no gradient.
    """

    replayable = backward_replayable = False
    backward_code = "numpy"

    def __init__(self, engine: Engine, op: ops.SoftmaxLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(any(at.propagate_down[1:]), "a gradient of the labels, which have none")
        self.outer, self.classes, self.inner = op.sizes
        rows = np.arange(self.outer)[:, np.newaxis] * (self.classes * self.inner)
        self.starts = (rows + np.arange(self.inner)).reshape(-1)
        self.divisor = loss_divisor(
            op.normalization,
            self.outer,
            self.outer * self.inner,
            some_ignored=op.ignore_label is not None,
        )
        self.prob = at.saved("prob", op.bottom)

    def prepare(self) -> None:
        op, layout = self.op, layouts.plain(self.op.bottom)
        kernel = softmax_kernel(self.engine, op)
        source = InputArg(self.at.bottom[0], layout)
        target = OutputArg(self.prob.blob, layout)
        self.forward_calls = [KernelCall(self.engine, kernel.forward, source, target)]

    def forward(self) -> None:
        self.prob.buffer()  # says that this pass has computed it
        self.forward_calls[0]()
        places, known, counted = self._labelled()
        picked = self.prob.read().reshape(-1)[places]
        loss = -np.log(np.maximum(picked, SMALLEST_PROBABILITY))
        if not known.all():
            loss[~known] = np.nan
        if counted is not None:
            loss[~counted] = 0.0
        total = np.add.reduce(loss) / self._divisor(counted)
        self.at.top[0].buffer()[...] = total

    def backward(self) -> None:
        at = self.at
        if not at.propagate_down[0]:
            return
        places, known, counted = self._labelled()
        scale = at.top[0].read_diff() / self._divisor(counted)
        dx = at.bottom[0].diff_buffer()
        np.multiply(self.prob.read(), scale, out=dx)
        flat = dx.reshape(-1)
        flat[places if known.all() else places[known]] -= scale
        if counted is not None and not counted.all():
            rows = dx.reshape(self.outer, self.classes, self.inner)
            rows *= counted.reshape(self.outer, 1, self.inner)

    def _labelled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return where the labelled values are, which labels are classes, and which count."""
        labels = self.at.bottom[1].read().reshape(-1).astype(np.int64)
        inside = np.minimum(np.maximum(labels, 0), self.classes - 1)
        counted = None if self.op.ignore_label is None else labels != self.op.ignore_label
        return inside * self.inner + self.starts, inside == labels, counted

    def _divisor(self, counted: np.ndarray | None) -> np.float32:
        if self.divisor is None and counted is not None:
            return np.float32(max(1, int(np.count_nonzero(counted))))
        return np.float32(self.divisor or 1.0)
