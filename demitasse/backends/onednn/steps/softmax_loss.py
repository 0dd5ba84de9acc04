"""SoftmaxWithLoss: oneDNN's softmax, and the few labelled values on numpy."""

from __future__ import annotations

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.losses import loss_divisor
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.own_kernels.maps import map_call
from demitasse.backends.onednn.ports import Call, Reader, Writer
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.steps.softmax import describe_softmax, few_classes, spoil_lost
from demitasse.backends.step import Declined, Operands

__all__ = ["SoftmaxLossStep"]

SMALLEST_PROBABILITY = np.finfo(np.float32).tiny


class SoftmaxLossStep(OnednnStep[ops.SoftmaxLoss]):
    """The mean of -log p of the labelled class. Shapes: (outer, C, inner), labels (outer * inner).

    An unknown label gives NaN; one to be ignored gives no loss and no gradient.
    """

    def __init__(self, engine: Engine, op: ops.SoftmaxLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        if any(at.propagate_down[1:]):
            message = "a gradient of the labels, which have none"
            raise Declined(message)
        axis = op.axis
        self.classes = op.bottom[axis]
        self.outer, self.inner = math.prod(op.bottom[:axis]), math.prod(op.bottom[axis + 1 :])
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
        op, engine = self.op, self.engine
        found, layout = describe_softmax(engine, op.bottom, op.axis, training=False)
        few = few_classes(engine, op.bottom, op.axis)
        if few is not None:
            layout = engine.plain(op.bottom)
        source = Reader(Arg.SRC, self.at.bottom[0], layout)
        target = Writer(Arg.DST, self.prob.blob, layout)
        self._marks = few is not None
        if few is not None:
            self.forward_calls = [map_call(engine, source, target, few)]
        else:
            self.forward_calls = [Call(engine, found, [source, target])]

    def forward(self) -> None:
        self.prob.buffer()  # says that this pass has computed it
        self.forward_calls[0]()
        if not self._marks:
            spoil_lost(self.at.bottom[0].read(), self.prob.blob, self.op.axis)
        places, known, counted = self._labelled()
        picked = self.prob.read().reshape(-1)[places]
        loss = -np.log(np.maximum(picked, SMALLEST_PROBABILITY))
        if not known.all():
            loss[~known] = np.nan
        if counted is not None:
            loss[~counted] = 0.0
        total = np.add.reduce(loss) / self._divisor(counted)
        self.at.top[0].buffer()[...] = total

    @property
    def backward_code(self) -> str:
        return "numpy"

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
