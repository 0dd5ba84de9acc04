"""Softmax and its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.onednn.arguments import Argument, Call, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.unary import map_call, rows_kernel
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Pass
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import Description
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.ops import loss_divisor
from demitasse.backends.step import Declined, Operand, Operands, decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.softmax import NanRows, SmallAxisSoftmax


def propagate_nan(x: np.ndarray, top: Operand, axis: int) -> None:
    """Write NaN into ``top`` wherever NaN or infinity in ``x`` leads to it.

    oneDNN's exponential makes a number of everything, which would hide that a net has diverged.
    """
    if np.maximum.reduce(x, axis=None) < np.inf:  # as nearly always, and much sooner known
        return
    lost = ~(np.maximum.reduce(x, axis=axis, keepdims=True) < np.inf)
    if lost.any():
        y = top.data_memory.mutable_cpu_data()[: top.count].reshape(x.shape)
        y[...] = np.where(lost, np.float32(np.nan), y)


def describe_softmax(
    engine: Engine, shape: tuple[int, ...], axis: int, *, training: bool
) -> tuple[Description, Layout]:
    """Return the forward primitive and the layout of both its sides.

    C order, as the layers around a classifier are; or the axis innermost, where the library has no
    good code to go along it in strides.
    """

    def describe_in(layout: Layout) -> tuple[Description, Layout]:
        kind, method = Pass.TRAINING if training else Pass.INFERENCE, Algorithm.SOFTMAX
        found = engine.describe("softmax_forward", kind, method, layout, layout, axis)
        return found, layout

    with suppress(Declined):
        return describe_in(engine.plain(shape))
    return describe_in(engine.innermost_layout(shape, axis))


def few_classes(engine: Engine, shape: tuple[int, ...], axis: int) -> SmallAxisSoftmax:
    """Return the kernel for many short rows in C order, which keeps NaN."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if inner == 1:
        return rows_kernel(engine, outer, shape[axis])
    return rows_kernel(engine, inner, shape[axis], outer)


class _MarkedCall(Call):
    """A softmax of rows, and the kernel that writes NaN where NaN or infinity leads to it."""

    __slots__ = ("_lost",)

    def __init__(
        self, engine: Engine, description: Description, arguments: Sequence[Argument], lost: NanRows
    ) -> None:
        super().__init__(engine, description, arguments)
        self._lost = lost

    def __call__(self) -> None:
        super().__call__()
        source, target = (self.primitive.bound(argument.place) for argument in self.arguments)
        self._lost(source, target)

    @property
    def implementations(self) -> list[str]:
        """Names of what it runs."""
        return [*super().implementations, self._lost.code]


class SoftmaxStep(OnednnStep[ops.Softmax]):
    """Softmax along one axis."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Softmax, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._marks = False

    backward_replayable = False

    @property
    def deferrable(self) -> bool:
        return self._marks and not self.at.backward

    @property
    def replayable(self) -> bool:
        return self._marks

    def prepare(self) -> None:
        at, op = self.at, self.op
        self.hint, self.layout = describe_softmax(
            self.engine, op.bottom, op.axis, training=at.backward
        )
        few: SmallAxisSoftmax | None = None
        with suppress(Declined):
            few = self._few_classes()
        ends = self.in_and_out(self.layout, self.layout)
        if few is not None:
            self._marks = True
            self.forward_calls = [map_call(self.engine, *ends, few)]
            return
        lost = self._lost_rows()
        self._marks = lost is not None
        if lost is None:
            self.forward_calls = [Call(self.engine, self.hint, ends)]
        else:
            self.forward_calls = [_MarkedCall(self.engine, self.hint, ends, lost)]

    def _few_classes(self) -> SmallAxisSoftmax | None:
        """Return the kernel for many short rows, and change to its layout; perhaps None.

        Without gradients that is the bottom's, if classes lie side by side in it, or C order.
        """
        at, shape, axis, engine = self.at, self.op.bottom, self.op.axis, self.engine
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        last = engine.innermost_layout(shape, axis)
        found, layout = None, engine.plain(shape)
        there = not at.backward and self.expected(at.bottom[0], shape) is last
        if inner > 1 and there:
            found, layout = rows_kernel(engine, outer * inner, shape[axis]), last
        elif inner == 1 or self.layout.plain or not at.backward:
            found = few_classes(engine, shape, axis)
        if found is not None and not (at.backward and self.layout is not layout):
            self.layout = layout
            return found
        return None

    def _lost_rows(self) -> NanRows | None:
        """Return the kernel for rows side by side; None for others, or where none can be made."""
        shape, axis = self.op.bottom, self.op.axis
        tuning = self.engine.tuning.as_set(wanted())
        innermost = not self.layout.plain or math.prod(shape[axis + 1 :]) == 1
        if not tuning.width or not innermost or self.layout.size != math.prod(shape):
            return None
        from demitasse.backends.kernels.softmax import NanRows

        return NanRows(self.layout.size // shape[axis], shape[axis], tuning)

    def forward(self) -> None:
        super().forward()
        if not self._marks:
            propagate_nan(self.at.bottom[0].read(), self.at.top[0], self.op.axis)

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            with suppress(Declined):  # numpy computes it where oneDNN does not
                self.backward_calls = [self._gradient()]

    def _gradient(self) -> Call:
        at, layout = self.at, self.layout
        found = self.engine.describe(
            "softmax_backward", Algorithm.SOFTMAX, layout, layout, layout, self.op.axis, self.hint
        )
        y = InputArg(Arg.DST, at.top[0], layout)
        return Call(self.engine, found, [y, *self.gradients(layout, layout)])

    @property
    def backward_code(self) -> str:
        return super().backward_code if self.backward_calls else "numpy"

    def backward(self) -> None:
        if self.backward_calls or not self.at.propagate_down[0]:
            super().backward()
            return
        y, dy = self.at.top[0].read(), self.at.top[0].read_diff()
        dx = self.at.bottom[0].diff_buffer()
        np.multiply(dy, y, out=dx)
        dx -= y * np.add.reduce(dx, axis=self.op.axis, keepdims=True)


SMALLEST_PROBABILITY = np.finfo(np.float32).tiny


class SoftmaxLossStep(OnednnStep[ops.SoftmaxLoss]):
    """The mean of -log p of the labelled class. Shapes: (outer, C, inner), labels (outer * inner).

    An unknown label gives NaN; one to be ignored gives no loss and no gradient.
    """

    deferrable = replayable = backward_replayable = False

    def __init__(self, engine: Engine, op: ops.SoftmaxLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(any(at.propagate_down[1:]), "a gradient of the labels, which have none")
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
        few: SmallAxisSoftmax | None = None
        with suppress(Declined):
            few, layout = few_classes(engine, op.bottom, op.axis), engine.plain(op.bottom)
        source = InputArg(Arg.SRC, self.at.bottom[0], layout)
        target = OutputArg(Arg.DST, self.prob.blob, layout)
        self._marks = few is not None
        if few is not None:
            self.forward_calls = [map_call(engine, source, target, few)]
        else:
            self.forward_calls = [Call(engine, found, [source, target])]

    def forward(self) -> None:
        self.prob.buffer()  # says that this pass has computed it
        self.forward_calls[0]()
        if not self._marks:
            propagate_nan(self.at.bottom[0].read(), self.prob.blob, self.op.axis)
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
