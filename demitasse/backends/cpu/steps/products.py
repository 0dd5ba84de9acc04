"""Matrix products with a learned weight: InnerProduct, and the products of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Arg,
    Argument,
    BufferArg,
    GradArg,
    InputArg,
    OutputArg,
    ParamArg,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    ConvOperands,
    KernelCall,
    kernel_tuning,
    rectifier_of,
)
from demitasse.backends.cpu.jit_adapters.pixels import bf16_rows_call
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.igemm import ImplicitGemm, Order, dense_schedule, row_images
from demitasse.backends.kernels.igemm_convolution import FilterGradient
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.products import MOST_ROWS, FewRows, Then, most_vectors
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.step import Operand, Operands

Matrix = Operand | np.ndarray | BufferArg
"""Rows of a product: a blob, an array, or an argument whose array changes between calls."""


class Product:
    """y = x W^T + b and its gradients. Shapes: x (rows, k), W (m, k), b (m,), y (rows, m).

    Args:
        transpose: Whether the weight is (k, m), and y = x W + b.
        alone: Whether the weight may lie in panels alone, as nothing learns it.
    """

    def __init__(
        self,
        engine: Engine,
        rows: int,
        weight: Operand,
        bias: Operand | None = None,
        *,
        transpose: bool = False,
        alone: bool = False,
    ) -> None:
        self._engine, self.rows, self._weight, self._bias = engine, rows, weight, bias
        self._transpose, self._alone = transpose, alone and not transpose
        self._stride = weight.count // weight.shape[0]
        self.m, self.k = weight.shape[0], self._stride
        if transpose:
            self.m, self.k = self.k, self.m
        self.x, self.y, self._w = (
            layouts.plain(shape) for shape in ((rows, self.k), (rows, self.m), weight.shape)
        )
        self.row = layouts.plain((self.m,))
        self._tuning = kernel_tuning(engine)

    def forward(self, x: Matrix, y: Matrix, then: ops.Activation | None = None) -> KernelCall:
        """Return a call that computes y, with an activation after it.

        Raises:
            Declined: The kernel lacks the activation.
        """
        rows, m, k = self.rows, self.m, self.k
        few = "few_rows" not in self._tuning.without and rows <= MOST_ROWS[self._tuning.width]
        if self._alone and few:
            panel = _panel(rows, m, self._tuning.width)
            kernel = FewRows(rows, k, m, panel, k, self._tuning, _epilogue(then))
            return self._call(x, y, kernel.code, kernel, panel)
        gemm = _gemm(
            rows, k, m, self._tuning, "" if self._alone else self._order(self._transpose),
            self._stride, rectifier_of(then),
        )  # fmt: skip
        schedule = gemm.schedule

        def run(
            x: np.ndarray, w: np.ndarray, b: np.ndarray | None, y: np.ndarray, scratch: np.ndarray
        ) -> None:
            gemm(x, y, w, b, scratch)

        panel = schedule.panel if self._alone else 0
        return self._call(x, y, schedule.code, run, panel, scratch=gemm.scratch_size)

    def _call(
        self,
        x: Matrix,
        y: Matrix,
        code: str,
        run: Callable[..., None],
        panel: int,
        *,
        scratch: int = 0,
    ) -> KernelCall:
        """Return a call that runs ``run`` with x, W, b or None, y, and scratch memory."""
        if panel:
            layout = layouts.blocked(self._w.shape, 0, panel)
            weight: InputArg = ParamArg(Arg.WEIGHTS, self._weight, layout)
        else:
            weight = InputArg(Arg.WEIGHTS, self._weight, self._w)
        source = _argument(InputArg, Arg.SRC, x, self.x)
        target = _argument(OutputArg, Arg.DST, y, self.y)
        if self._bias is not None:
            bias = InputArg(Arg.BIAS, self._bias, self.row)
            arguments = (source, weight, bias, target)
            return KernelCall(self._engine, arguments, code, run, scratch=scratch)

        def without_bias(x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> None:
            run(x, w, None, *rest)

        return KernelCall(
            self._engine, (source, weight, target), code, without_bias, scratch=scratch
        )

    def gradient(self, dy: Matrix, dx: Matrix) -> KernelCall:
        """Return a call that computes the gradient of x."""
        order = self._order(not self._transpose)
        gemm = _gemm(self.rows, self.m, self.k, self._tuning, order, self._stride)

        def run(dy: np.ndarray, w: np.ndarray, dx: np.ndarray, scratch: np.ndarray) -> None:
            gemm(dy, dx, w, None, scratch)

        arguments = (
            _argument(InputArg, Arg.DIFF_DST, dy, self.y, diff=True),
            InputArg(Arg.WEIGHTS, self._weight, self._w),
            _argument(OutputArg, Arg.DIFF_SRC, dx, self.x, diff=True),
        )
        size = gemm.scratch_size
        return KernelCall(self._engine, arguments, gemm.schedule.code, run, scratch=size)

    def gradients(self, x: Matrix, dy: Matrix, *, weight: bool = True, bias: bool) -> KernelCall:
        """Return a call that adds to the gradients of W and b, or one of them."""
        source = _argument(InputArg, Arg.SRC, x, self.x)
        gradient = _argument(InputArg, Arg.DIFF_DST, dy, self.y, diff=True)
        return GradientsCall(
            self._engine, self.rows, source, gradient,
            GradArg(Arg.DIFF_WEIGHTS, self._weight, self._w) if weight else None,
            GradArg(Arg.DIFF_BIAS, self._bias, self.row)
            if bias and self._bias is not None else None,
            transpose=self._transpose,
        )  # fmt: skip

    @staticmethod
    def _order(by_term: bool) -> Order:
        return "by_term" if by_term else "by_filter"


class GradientsCall(KernelCall):
    """The gradients of a weight and a bias, or one of them."""

    def __init__(
        self,
        engine: Engine,
        rows: int,
        x: Argument,
        dy: Argument,
        weight: GradArg | None,
        bias: GradArg | None,
        *,
        transpose: bool,
    ) -> None:
        k, m = x.layout.shape[-1], dy.layout.shape[-1]
        tuning = kernel_tuning(engine)
        self._x, self._dy, self._weight, self._bias = x, dy, weight, bias
        self._turned, self._shape = not transpose, (rows, m)
        channels, filters = (m, k) if self._turned else (k, m)
        schedule = dense_schedule(rows, channels, filters, tuning)
        ends = row_images(rows, channels), row_images(rows, filters)
        self._kernel = FilterGradient(schedule, *ends) if weight else None
        scratch = self._kernel.scratch_size if self._kernel else 0
        arguments = [one for one in (x, dy, weight, bias) if one is not None]
        super().__init__(engine, arguments, schedule.code, scratch=scratch)

    def __call__(self) -> None:
        dy = self._dy.array()
        if self._weight and self._kernel:
            x, weight = self._x.array(), self._weight.array()
            left, right = (dy, x) if self._turned else (x, dy)
            self._kernel(left, right, weight, None, *self.scratch())
            self._weight.done()
        if self._bias:
            bias = self._bias.array()
            command_queue.enqueue(self._sum, (dy, bias), (dy, bias))
            self._bias.done()

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        rows, m = self._shape
        np.add.reduce(dy.reshape(-1)[: rows * m].reshape(rows, m), axis=0, out=bias[:m])


def _gemm(
    rows: int, length: int, outputs: int, tuning: Tuning, order: Order, stride: int,
    then: Rectifier = NOTHING,
) -> ImplicitGemm:  # fmt: skip
    """Return the product of rows with filters; filters in C order lie ``stride`` elements apart."""
    schedule = dense_schedule(rows, length, outputs, tuning, order)
    ends = row_images(rows, length), row_images(rows, outputs)
    return ImplicitGemm(schedule, *ends, then, stride)


def _epilogue(then: ops.Activation | None) -> Then:
    if then is not None and then.function in ("sigmoid", "tanh"):
        return "sigmoid" if then.function == "sigmoid" else "tanh"
    return rectifier_of(then)


PANEL_COSTS = {4: 1.0, 3: 1.02, 2: 1.05, 1: 1.4}
"""Vectors of a panel of few rows -> cost of a vector, measured."""


def _panel(rows: int, outputs: int, width: int) -> int:
    """Return how many outputs few rows have in a panel."""
    most = most_vectors(width, rows)

    def cost(vectors: int) -> float:
        return math.ceil(outputs / (vectors * width)) * vectors * PANEL_COSTS[vectors]

    return width * min((one for one in PANEL_COSTS if one <= most), key=cost)


def _argument(
    kind: type[InputArg | OutputArg],
    role: Arg,
    rows: Matrix,
    layout: Layout,
    *,
    diff: bool = False,
) -> Argument:
    """Return an argument of this role; ``kind`` and ``diff`` are those of a blob's."""
    if isinstance(rows, BufferArg):
        return rows
    if isinstance(rows, np.ndarray):
        return BufferArg(role, layout, rows)
    return kind(role, rows, layout, diff=diff)


class InnerProductStep(CpuStep[ops.InnerProduct]):
    """x (rows, k) in C order; the weight (m, k) in panels where nothing learns it."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._product = Product(
            engine, op.rows, *at.params[: 1 + op.bias], transpose=op.transpose,
            alone=not at.backward,
        )  # fmt: skip

    def prepare(self) -> None:
        self.forward_calls = [self._forward(self.at.top[0])]

    def with_activation(self, then: ops.Activation, target: Operand) -> KernelCall:
        """Return the product with an activation after it."""
        return self._forward(target, then)

    def _forward(self, target: Operand, then: ops.Activation | None = None) -> KernelCall:
        at, product = self.at, self._product
        if at.storage == "bfloat16" and not self.op.transpose:
            operands = ConvOperands(
                InputArg(Arg.SRC, at.bottom[0], product.x),
                OutputArg(Arg.DST, target, product.y),
                at.params[0],
                at.layouts,
                InputArg(Arg.BIAS, at.params[1], product.row) if self.op.bias else None,
                rectifier_of(then),
            )
            if (call := bf16_rows_call(self.engine, operands, at.storage)) is not None:
                return call
        return product.forward(at.bottom[0], target, then)

    def prepare_backward(self) -> None:
        at = self.at
        weight, bias = at.param_propagate_down[0], self.op.bias and at.param_propagate_down[1]
        if weight or bias:
            self.backward_calls.append(
                self._product.gradients(at.bottom[0], at.top[0], weight=weight, bias=bias)
            )
        if at.propagate_down[0]:
            self.backward_calls.append(self._product.gradient(at.top[0], at.bottom[0]))
