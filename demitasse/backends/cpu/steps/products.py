"""Matrix products with a learned weight: InnerProduct, and the products of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Argument,
    BufferArg,
    DerivedArg,
    GradArg,
    InputArg,
    OutputArg,
    ParamArg,
    Source,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning, row_sum
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.epilogue import Epilogue, rectifier_of
from demitasse.backends.kernels.amx_convolution import AmxConvolution
from demitasse.backends.kernels.amx_schedule import AmxSchedule, plan_amx_product
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.few_rows import MOST_ROWS, FewRows, most_vectors
from demitasse.backends.kernels.filter_packing import Order
from demitasse.backends.kernels.igemm import (
    IgemmSchedule,
    ImplicitGemm,
    dense_schedule,
    row_images,
)
from demitasse.backends.kernels.igemm_convolution import (
    FilterGradient,
    IgemmConvolution,
    igemm_forward,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Operand, Operands
from demitasse.backends.storage import ParameterRounding, Stored

Matrix = Operand | np.ndarray
"""Rows of a product: a blob, or an array."""


class Product:
    """y = x W^T + b and its gradients. Shapes: x (rows, k), W (m, k), b (m,), y (rows, m).

    Args:
        transpose: Whether the weight is (k, m), and y = x W + b.
        alone: Whether the weight may lie in panels alone, as nothing learns it.
        storage: Storage of the weight, where that pays: half of few rows, or bfloat16 products.
    """

    def __init__(
        self, engine: Engine, rows: int, weight: Operand, bias: Operand | None = None, *,
        transpose: bool = False, alone: bool = False, storage: Stored = "float",
    ) -> None:  # fmt: skip
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
        self._tuning, narrow = kernel_tuning(engine), kernel_tuning(engine, storage=storage)
        pays = narrow.rounds and not transpose and self.k >= narrow.width < self.m
        self._narrow, self._half = narrow if pays else None, storage == "half"
        self._rounded = ParameterRounding("half", weight.name, weight.count)

    def forward(self, x: Matrix, y: Matrix, then: ops.Activation | None = None) -> KernelCall:
        """Return a call that computes y, with an activation after it.

        Raises:
            Declined: The kernel lacks the activation.
        """
        rows, m, k, tuning = self.rows, self.m, self.k, self._tuning
        ends = _argument(InputArg, x, self.x), _argument(OutputArg, y, self.y)
        bias = None if self._bias is None else InputArg(self._bias, self.row)
        weight: Source = InputArg(self._weight, self._w)
        if self._narrow is not None:
            schedule: AmxSchedule | IgemmSchedule
            make: Callable[[], AmxConvolution | IgemmConvolution]
            if self._narrow.amx:
                schedule = plan_amx_product(rows, k, m, self._narrow)
                source, target = (Images.channels_last((1, n, rows, 1)) for n in (k, m))
                make = partial(AmxConvolution, schedule, source, target, rectifier_of(then))
            else:
                schedule = dense_schedule(rows, k, m, self._narrow)
                make = partial(igemm_forward, schedule, *_ends(rows, k, m), rectifier_of(then))
            packed = PackedKernel(make, update=weight)
            return KernelCall(self._engine, packed, *ends, bias, None, code=schedule.code)
        kernel: FewRows | ImplicitGemm
        if self._alone and "few_rows" not in tuning.without and rows <= MOST_ROWS[tuning.width]:
            panel = _panel(rows, m, tuning.width)
            kernel = FewRows(rows, k, m, panel, k, tuning, _epilogue(then), half=self._half)
            code = kernel.code
        else:
            order: Order = "by_term" if self._transpose else "by_filter"
            kernel = self._gemm(k, m, "" if self._alone else order, rectifier_of(then))
            panel, code = kernel.schedule.panel, kernel.schedule.code
        if self._alone:
            weight = ParamArg(self._weight, layouts.blocked(self._w.shape, 0, panel))
        if self._half and isinstance(kernel, FewRows):
            half = layouts.plain((weight.layout.size // 2,))  # two in the place of a float
            write = partial(call_recorder.call, self._write_halves)
            weight = DerivedArg(self._engine, half, write, weight, kept=True)
        return KernelCall(self._engine, kernel, *ends, weight, bias, code=code)

    def _write_halves(self, target: np.ndarray, weight: np.ndarray) -> None:
        target.view(np.float16)[...] = self._rounded(weight)

    def gradient(self, dy: Matrix, dx: Matrix) -> KernelCall:
        """Return a call that computes the gradient of x."""
        gemm = self._gemm(self.m, self.k, "by_filter" if self._transpose else "by_term")
        ends = (
            _argument(InputArg, dy, self.y, diff=True),
            _argument(OutputArg, dx, self.x, diff=True),
        )
        weight = InputArg(self._weight, self._w)
        return KernelCall(self._engine, gemm, *ends, weight, None, code=gemm.schedule.code)

    def gradients(
        self, x: Matrix, dy: Matrix, *, weight: bool = True, bias: bool
    ) -> list[KernelCall]:
        """Return calls that add to the gradients of W and b, or one of them."""
        source = _argument(InputArg, x, self.x)
        gradient = _argument(InputArg, dy, self.y, diff=True)
        left, right = (source, gradient) if self._transpose else (gradient, source)
        channels, filters = left.layout.shape[-1], right.layout.shape[-1]
        schedule = dense_schedule(self.rows, channels, filters, self._tuning)
        calls: list[KernelCall] = []
        if weight:
            kernel = FilterGradient(schedule, *_ends(self.rows, channels, filters))
            target = GradArg(self._weight, self._w)
            arguments = left, right, target, None
            calls.append(KernelCall(self._engine, kernel, *arguments, code=schedule.code))
        if bias and self._bias is not None:
            target = GradArg(self._bias, self.row)
            add_up = row_sum(self.y.size, self.rows, self.m)
            calls.append(KernelCall(self._engine, add_up, gradient, target, code=schedule.code))
        return calls

    def _gemm(
        self, length: int, outputs: int, order: Order, then: Rectifier = NOTHING
    ) -> ImplicitGemm:
        """Return the product of rows with filters."""
        schedule = dense_schedule(self.rows, length, outputs, self._tuning, order)
        ends = _ends(self.rows, length, outputs)
        return ImplicitGemm(schedule, *ends, then, self._stride)


def _ends(rows: int, length: int, outputs: int) -> tuple[Images, Images]:
    return row_images(rows, length), row_images(rows, outputs)


CURVES = {"sigmoid": Rectifier(curve="sigmoid"), "tanh": Rectifier(curve="tanh")}
"""Functions that few rows end with besides rectifiers."""


def _epilogue(then: ops.Activation | None) -> Rectifier:
    curve = None if then is None else CURVES.get(then.function)
    return rectifier_of(then) if curve is None else curve


PANEL_COSTS = {4: 1.0, 3: 1.02, 2: 1.05, 1: 1.4}
"""Vectors of a panel of few rows -> cost of a vector, measured."""


def _panel(rows: int, outputs: int, width: int) -> int:
    """Return how many outputs few rows have in a panel."""
    most = most_vectors(width, rows)

    def cost(vectors: int) -> float:
        return math.ceil(outputs / (vectors * width)) * vectors * PANEL_COSTS[vectors]

    return width * min((one for one in PANEL_COSTS if one <= most), key=cost)


def _argument(
    kind: type[InputArg | OutputArg], rows: Matrix, layout: Layout, *, diff: bool = False
) -> Argument:
    """Return an argument; ``kind`` and ``diff`` are those of a blob's."""
    if isinstance(rows, np.ndarray):
        return BufferArg(layout, rows)
    return kind(rows, layout, diff=diff)


class InnerProductStep(CpuStep[ops.InnerProduct]):
    """x (rows, k) in C order; the weight (m, k) in panels where nothing learns it."""

    needs_bottom = True
    takes = ("then",)
    """Parts of an epilogue that are fused."""

    def __init__(self, engine: Engine, op: ops.InnerProduct, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._product = Product(
            engine, op.rows, *at.params[: 1 + op.bias], transpose=op.transpose,
            alone=not at.backward, storage=at.storage,
        )  # fmt: skip

    def prepare(self) -> None:
        self.forward_calls = [self.fused(Epilogue(self.at.top[0]))]

    def fused(self, epilogue: Epilogue) -> KernelCall:
        """Return the product and what follows."""
        return self._product.forward(self.at.bottom[0], epilogue.target, epilogue.then)

    def prepare_backward(self) -> None:
        at = self.at
        weight, bias = at.param_propagate_down[0], self.op.bias and at.param_propagate_down[1]
        if weight or bias:
            ends = at.bottom[0], at.top[0]
            self.backward_calls += self._product.gradients(*ends, weight=weight, bias=bias)
        if at.propagate_down[0]:
            self.backward_calls.append(self._product.gradient(at.top[0], at.bottom[0]))
