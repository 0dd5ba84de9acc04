"""Softmax, losses and Accuracy."""

from demitasse.backends import ops
from demitasse.backends.cupy.library.engine import Engine, Launch
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.sums import SplitReduction
from demitasse.backends.ops import loss_divisor
from demitasse.backends.step import Operands, decline_if


def softmax_kernel(
    engine: Engine, op: ops.Softmax | ops.SoftmaxLoss, dtype: str, *, gradient: bool = False
) -> Launch:
    """Return the kernel for the softmax of ``op``, or for its gradient."""
    outer, classes, inner = op.sizes
    if not classes:
        outer = 0  # the kernel of rows reads the first class
    ending = "_gradient" if gradient else ""
    if inner == 1:
        name = f"softmax_rows{ending}"
        return engine.row_blocks("softmax", name, dtype, outer, classes, outer, classes)
    name, reach = f"softmax_places{ending}", outer * classes * inner
    return engine.elementwise("softmax", name, dtype, outer * inner, classes, inner, reach=reach)


class SoftmaxStep(GpuStep[ops.Softmax]):
    """y = exp(x) / sum of exp(x) along one axis; in place or not."""

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.Softmax, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._forward = softmax_kernel(engine, op, self.dtype)
        self._backward = softmax_kernel(engine, op, self.dtype, gradient=True)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            y, dy = at.top[0].read(), at.top[0].read_diff()
            self._backward(y, dy, at.bottom[0].diff_buffer())


class SoftmaxLossStep(GpuStep[ops.SoftmaxLoss]):
    """The loss and its gradient, both divided by what forward counted; the host never waits.

    Shapes: scores (*outer, C, *inner), labels (*outer, *inner) -> loss ().
    """

    def __init__(self, engine: Engine, op: ops.SoftmaxLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        outer, classes, inner = op.sizes
        labels, count = outer * inner, outer * classes * inner
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        some_ignored = op.ignore_label is not None
        divisor = loss_divisor(op.normalization, outer, labels, some_ignored=some_ignored)
        fixed = divisor or 0.0  # the kernel counts the labels that are not ignored
        self._softmax = softmax_kernel(engine, op, op.dtype)
        self.parts = parts = SplitReduction.of(1, labels)
        numbers = (labels, classes, inner, *ignored, parts.count, parts.length)
        self._losses = engine.row_blocks(
            *("softmax", "softmax_loss", op.dtype, parts.count, parts.length, *numbers), reach=count
        )
        self._loss = engine.row_blocks(
            "sums", "loss_of_parts", op.dtype, 1, parts.count, parts.count, fixed
        )
        self._backward = engine.vectorized(
            "softmax", "softmax_loss_gradient", op.dtype, count, classes, inner, *ignored
        )

    def forward(self) -> None:
        at = self.at
        x, labels = at.bottom[0].read(), at.bottom[1].read()
        # a second top shares this memory
        probabilities = at.saved("prob", self.op.bottom).buffer()
        self._softmax(x, probabilities)
        divisor = at.saved("divisor", (1,)).buffer()
        totals, counts = self.engine.scratch(self.op.dtype, self.parts.count, self.parts.count)
        self._losses(probabilities, labels, totals, counts)
        self._loss(totals, counts, at.top[0].buffer(), divisor)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            probabilities, divisor = at.saved("prob", self.op.bottom), at.saved("divisor", (1,))
            labels, weight = at.bottom[1].read(), at.top[0].read_diff()
            known = (probabilities.read(), labels, weight, divisor.read())
            self._backward(*known, at.bottom[0].diff_buffer())


KERNELS = {"euclidean": "euclidean_loss", "sigmoid": "cross_entropy_loss"}  # by the loss


class PairLossStep(GpuStep[ops.PairLoss]):
    """The loss and its gradients, divided by what forward counted; the host never waits.

    Shapes: two bottoms of the same count -> loss ().
    """

    def __init__(self, engine: Engine, op: ops.PairLoss, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(not op.count, "no elements; kernels divide by their number")
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        self.parts = parts = SplitReduction.of(1, op.count)
        name, about = KERNELS[op.loss], (op.dtype, op.count, *ignored)
        self._losses = engine.row_blocks(
            *("loss", name, op.dtype, parts.count, parts.length),
            *(op.count, *ignored, parts.count, parts.length),
        )
        # the kernel divides by the number of elements that count instead of 0
        self._loss = engine.row_blocks(
            *("sums", "loss_of_parts", op.dtype, 1, parts.count), parts.count, op.divisor or 0.0
        )
        self.wanted = at.propagate_down
        self._backward = engine.vectorized(
            "loss", f"{name}_gradient", *about, *map(int, self.wanted)
        )

    def forward(self) -> None:
        at = self.at
        a, b = (blob.read() for blob in at.bottom)
        totals, counts = self.engine.scratch(self.op.dtype, self.parts.count, self.parts.count)
        self._losses(a, b, totals, counts)
        divisor = at.saved("divisor", (1,)).buffer()
        self._loss(totals, counts, at.top[0].buffer(), divisor)

    def backward(self) -> None:
        at = self.at
        if not any(self.wanted):
            return
        a, b = (blob.read() for blob in at.bottom)
        weight, divisor = at.top[0].read_diff(), at.saved("divisor", (1,)).read()
        # the kernel does not write to placeholders for gradients that are not wanted
        da, db = (
            blob.diff_buffer() if want else a
            for blob, want in zip(at.bottom, self.wanted, strict=True)
        )
        self._backward(a, b, weight, divisor, da, db)


MOST_PARTS = 1024
"""Greatest number of parts of the positions; a block computes one position at a time."""


class AccuracyStep(GpuStep[ops.Accuracy]):
    """The share of positions whose label is among the best; the host never waits.

    Shapes: scores (*outer, C, *inner), labels (*outer, *inner) -> accuracy ().
    """

    def __init__(self, engine: Engine, op: ops.Accuracy, at: Operands) -> None:
        super().__init__(engine, op, at)
        why = "a second top, the accuracy of each class; the kernel computes that of all"
        decline_if(op.tops > 1, why)
        outer, classes, inner = op.sizes
        positions = outer * inner
        length = max(1, -(-positions // MOST_PARTS))
        self.parts = parts = SplitReduction(1, max(1, -(-positions // length)), length)
        ignored = (int(op.ignore_label is not None), op.ignore_label or 0)
        # the kernel divides by the number of labels that count instead of 0
        fixed = float(max(1, positions)) if op.ignore_label is None else 0.0
        self._count = engine.row_blocks(
            *("loss", "accuracy", op.dtype, parts.count, classes),
            *(positions, classes, inner, op.top_k, *ignored, parts.count, length),
            reach=positions * classes,
        )
        self._divide = engine.row_blocks(
            *("loss", "accuracy_of_parts", op.dtype, 1, parts.count), parts.count, fixed
        )

    def forward(self) -> None:
        at = self.at
        scores, labels = (blob.read() for blob in at.bottom)
        found = self.engine.scratch(self.op.dtype, *[self.parts.count] * 3)
        self._count(scores, labels, *found)
        odd = at.saved("not numbers", ()).buffer()
        self._divide(*found, at.top[0].buffer(), odd)
