"""Activations, Dropout, Eltwise and LRN."""

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import DeviceScalars, Engine, Launch
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.step import Operands, decline_if, decline_in_place

FUNCTIONS = {
    # function: source and kernel, and what its gradient is computed from
    "abs": ("function", "absolute", "bottom"),
    "bnll": ("function", "bnll", "input"),
    "clip": ("function", "clip", "input"),
    # Caffe's gradient takes the input's sign, which the result has in place, and the result
    "elu": ("function", "elu", "bottom and result"),
    "exp": ("function", "exponential", "result"),
    "gelu": ("activation", "gelu", "input"),
    "hard_swish": ("function", "hard_swish", "input"),
    "log": ("function", "logarithm", "input"),
    "power": ("function", "power", "input"),
    # its input, or in place its result: both are above 0 together
    "relu": ("activation", "relu", "bottom"),
    "sigmoid": ("activation", "sigmoid", "result"),
    "swish": ("function", "swish", "input and result"),
    "tanh": ("activation", "hyperbolic_tangent", "result"),
}


class ActivationStep(GpuStep[ops.Activation]):
    """y = f(x) of every element."""

    narrow_params = ()
    follows_layout = True

    def __init__(self, engine: Engine, op: ops.Activation, at: Operands) -> None:
        super().__init__(engine, op, at)
        known = f"there are kernels for {', '.join(FUNCTIONS)}"
        decline_if(op.function not in FUNCTIONS, f"{op.function}; {known}")
        if op.function in {"relu", "elu"} and op.parameters[0] < 0 and at.backward:
            why = "the gradient is known from the result for 0 and more"
            slope = f"{op.parameters[0]:g}"
            decline_if(op.function == "elu", f"alpha {slope}; {why}")
            decline_if(at.in_place, f"slope {slope} in place; {why}")
        family, name, self.gradient_from = FUNCTIONS[op.function]
        self.keeps_input = "input" in self.gradient_from and at.loses_input
        numbers = tuple(float(p) for p in op.parameters)
        packs, gradient = engine.vectorized, f"{name}_gradient"
        self._forward = packs(family, name, self.dtype, op.count, *numbers)
        self._backward = packs(family, gradient, self.dtype, op.count, *numbers)
        self._keep = packs("elementwise", "scaled", self.dtype, op.count, 1.0)

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        if self.keeps_input:
            self._keep(x, self.saved("input", self.at.bottom[0].shape).buffer())
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        bottom, top = self.at.bottom[0], self.at.top[0]
        if not self.at.propagate_down[0]:
            return
        known: list[Array] = []  # the gradient is computed from these
        if self.keeps_input:
            known.append(self.saved("input", bottom.shape).read())
        elif self.gradient_from != "result":
            known.append(bottom.read())
        if "result" in self.gradient_from:
            known.append(top.read())
        self._backward(*known, top.read_diff(), bottom.diff_buffer())


class DropoutStep(GpuStep[ops.Dropout]):
    """y = x * mask, dx = dy * mask; nothing, or a copy, where the mask would be 1. In place or not.

    The kernel reads the number of the pass on the device.
    """

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.Dropout, at: Operands) -> None:
        super().__init__(engine, op, at)
        packs = engine.vectorized
        self._scaled = packs("elementwise", "scaled", self.dtype, op.count, float(op.factor))
        self._times = packs("elementwise", "product", self.dtype, op.count)
        self._works = op.factor != 1 or not at.in_place  # where nothing is dropped
        if op.drops:
            draw = at.draw()
            why = "several ranks, each of which draws a part of one sequence"
            decline_if(draw.world_size > 1, why)
            self._drop = engine.dropout(self.dtype, op.count, draw, op.threshold, op.factor)
            self._passes = DeviceScalars(engine, 1, "uint64")

    def forward(self) -> None:
        at, op = self.at, self.op
        x = at.bottom[0].read()
        if op.drops:
            mask = at.saved("mask", at.bottom[0].shape).buffer()
            passes = self._passes.holding(lambda: np.array([at.draw().passes], np.uint64))
            self._drop(x, at.top[0].buffer(), mask, passes)
        elif self._works:
            self._scaled(x, at.top[0].buffer())

    def backward(self) -> None:
        at, op = self.at, self.op
        if not at.propagate_down[0]:
            return
        dy = at.top[0].read_diff()
        if op.drops:
            mask = at.saved("mask", at.bottom[0].shape).read()
            self._times(dy, mask, at.bottom[0].diff_buffer())
        elif self._works:
            self._scaled(dy, at.bottom[0].diff_buffer())


class SumStep(GpuStep[ops.Eltwise]):
    """y = sum of coefficient * x, rectified where a ReLU follows; may run in place of the first x.

    ``slope`` is that of the ReLU below 0, and the top is that of the ReLU; None without a ReLU.
    """

    narrow_params = ()
    follows_layout = True

    def __init__(
        self, engine: Engine, op: ops.Eltwise, at: Operands, slope: float | None = None
    ) -> None:
        super().__init__(engine, op, at)
        decline_if(op.operation != "SUM", f"{op.operation}; there are kernels for SUM")
        other = any(blob is at.top[0] for blob in at.bottom[1:])
        decline_if(other, "in place of another bottom than the first")
        count, factors = math.prod(op.shape), [float(c) for c in op.coefficients]

        def packs(name: str, *numbers: float) -> Launch:
            return engine.vectorized("elementwise", name, self.dtype, count, *numbers)

        pairs = [tuple(factors[:2]), *((1.0, factor) for factor in factors[2:])]
        self._sums = [packs("weighted_sum", *pair) for pair in pairs]
        self.slope = slope
        if slope is not None:
            self._sums[-1] = packs("rectified_sum", *pairs[-1], float(slope))
        self._gradients = [packs("scaled", factor) for factor in factors]
        self.own_backward = slope is not None and len(factors) == 2
        flags = [int(one) for one in self.at.propagate_down]
        numbers = (*flags, float(slope or 0.0), *factors)
        self._pair = [
            packs("sum_gradients", int(self.own_backward), keep, *numbers)
            for keep in (0, 1)
            if len(factors) == 2
        ]

    @property
    def code(self) -> str:
        return super().code if self.slope is None else f"{super().code} + ReLU"

    @property
    def backward_code(self) -> str:
        return self.code if self.own_backward else super().code

    def forward(self) -> None:
        total, *others = [blob.read() for blob in self.at.bottom]
        y = self.at.top[0].buffer()
        for x, add in zip(others, self._sums, strict=True):
            add(total, x, y)
            total = y

    def backward(self) -> None:
        at, top = self.at, self.at.top[0]
        kept = self.own_backward and top.diff_memory.persistent
        dy = top.mutable_gpu_diff() if kept else top.read_diff()
        if self._pair:
            y = top.read() if self.own_backward else dy
            pairs = zip(at.bottom, at.propagate_down, strict=True)
            # the kernel does not write to placeholders for gradients that are not wanted
            grads = [blob.diff_buffer() if wanted else dy for blob, wanted in pairs]
            self._pair[kept](y, dy, *grads)
            return
        # backwards, since in place the first bottom's gradient is the top's
        for index in reversed(range(len(at.bottom))):
            if at.propagate_down[index]:
                self._gradients[index](dy, at.bottom[index].diff_buffer())


class LRNStep(GpuStep[ops.LRN]):
    """y = x * scale^-beta; scale = k + alpha / size * sum of x^2 over ``size`` channels around.

    Within channels the sum is over a window of ``size`` by ``size`` pixels, and k is 1.
    """

    narrow_params = ()

    def __init__(self, engine: Engine, op: ops.LRN, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        across = op.region == "ACROSS_CHANNELS"
        channels, *plane = op.bottom[1:]
        sizes = (channels, math.prod(plane)) if across else tuple(plane)
        # kernels count in 32 bits; beyond the edges there is nothing to add
        counts = (math.prod(op.bottom), *sizes, min(op.size, 2 * max(op.bottom[1:]) + 1))
        rate, beta = op.alpha / op.size ** (1 if across else 2), float(op.beta)
        k = (float(op.k),) if across else ()
        name = "lrn_across" if across else "lrn_within"
        self._forward = engine.elementwise(
            "lrn", name, self.dtype, *counts, rate, beta, *k, int(at.backward)
        )
        self._backward = engine.elementwise(
            "lrn", f"{name}_gradient", self.dtype, *counts, beta, 2 * rate * beta
        )

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # only backward needs the scale; without it the kernel does not write there
        scale = at.saved("scale", self.op.bottom).buffer() if at.backward else y
        self._forward(x, scale, y)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            x, y, dy = at.bottom[0].read(), at.top[0].read(), at.top[0].read_diff()
            scale = at.saved("scale", self.op.bottom).read()
            self._backward(x, y, scale, dy, at.bottom[0].diff_buffer())
