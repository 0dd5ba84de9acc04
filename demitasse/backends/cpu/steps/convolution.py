"""Convolution by kernels of our own."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import GradArg, InputArg, OutputArg, Source
from demitasse.backends.cpu.convolutions import (
    ConvCase,
    ConvKernels,
    ConvOperands,
    GradientOperands,
    conv_kernels,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable
from demitasse.backends.cpu.kernel_calls import KernelCall, row_sum
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.epilogue import (
    Epilogue,
    derived,
    folded_offsets,
    folded_weights,
    rectifier_of,
)
from demitasse.backends.step import Declined, Operands, decline_if
from demitasse.backends.windows import ConvGeometry

C = TypeVar("C", bound=ops.Conv)


class WindowStep(CpuStep[C]):
    """A convolution, or the gradient of one, between an image and a map.

    Attributes:
        kernels: Kernels of the convolution, the first of which are tried first.
        image: Shape of the image, (N, C, *spatial).
        maps: Shape of the map, (N, M, *positions).
        w: Shape of the weight, (M, C, *kernel), or (G, M / G, C / G, *kernel) of several groups.
        x, y: Layouts of bottom and top, with the channels last.
        transposed: True if the bottom is the map and the top the image.
    """

    needs_bottom = True

    kernels: Sequence[ConvKernels]

    def __init__(self, engine: Engine, op: C, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(len(at.bottom) != 1, f"{len(at.bottom)} bottoms; the Step takes one")
        g, self.transposed = ConvGeometry.of(op), isinstance(op, ops.Deconv)
        self.image, self.maps = (g.n, g.channels, *g.spatial), (g.n, g.maps, *g.positions)
        shape = (g.maps // g.group, g.channels // g.group, *op.kernel)
        self.w = shape if g.group == 1 else (g.group, *shape)
        shapes = (self.maps, self.image) if self.transposed else (self.image, self.maps)
        self.x, self.y = (layouts.innermost(each, 1) for each in shapes)
        self.channels = layouts.plain(self.y.shape[1:2])

    @property
    def weight(self) -> Source:
        """The weight, in C order."""
        return InputArg(self.at.params[0], layouts.plain(self.w))

    @property
    def bias(self) -> InputArg | None:
        """The bias, if there is one."""
        return InputArg(self.at.params[1], self.channels) if self.op.bias else None

    def first_of(self, make: Callable[[ConvKernels], KernelCall]) -> KernelCall:
        """Return the call of the first kernels that do not decline it."""
        return first_suitable(self.kernels, make)[1]

    def prepare_backward(self) -> None:
        at, [bottom], [top] = self.at, self.at.bottom, self.at.top
        wanted = at.param_propagate_down[0], at.propagate_down[0]
        known, dy = InputArg(bottom, self.x), InputArg(top, self.y, diff=True)
        ends = (dy, known) if self.transposed else (known, dy)
        learns_bias = self.op.bias and at.param_propagate_down[1]
        bias = GradArg(at.params[1], self.channels) if learns_bias else None
        if bias and (self.transposed or not wanted[0]):  # else it is computed with the weights'
            n, c, *spatial = self.y.shape
            add_up = row_sum(self.y.size, spatial[-1] if spatial else n, c)
            self.backward_calls.append(KernelCall(self.engine, add_up, dy, bias, code=""))
            bias = None
        weights = GradientOperands(*ends, GradArg(at.params[0], layouts.plain(self.w)), bias)
        dx = OutputArg(bottom, self.x, diff=True)
        data = ConvOperands(dy, dx, self.weight)
        if all(wanted) and not self.transposed:
            with suppress(Declined):
                self.backward_calls.append(self.kernels[0].gradients(weights, data))
                return
        if wanted[0]:
            self.backward_calls.append(self.first_of(lambda one: one.weights(weights)))
        if wanted[1]:
            self.backward_calls.append(
                self.first_of(lambda one: one.forward(data) if self.transposed else one.data(data))
            )


class ConvStep(WindowStep[ops.Conv]):
    """One bottom, one top; kernels for some convolutions, and implicit GEMM for all others.

    Without gradients, filters lose outer taps that see only what is around small images.
    """

    follows_bf16 = True
    takes = ("links", "other", "then", "slopes")
    """Parts of an epilogue that are fused."""

    def __init__(self, engine: Engine, op: ops.Conv, at: Operands) -> None:
        self._kernel, g = op.kernel, ConvGeometry.of(op)
        if not at.backward:
            window = g.window.cropped(g.spatial, g.positions)
            op = ops.Conv(**{**vars(op), "kernel": window.kernel, "pad": window.pad})
        super().__init__(engine, op, at)
        self.kernels, self.declined = conv_kernels(ConvCase(engine, op, self.image, self.maps, at))

    @property
    def weight(self) -> Source:
        if self._kernel == self.op.kernel:
            return super().weight
        outer = [(k - m) // 2 for k, m in zip(self._kernel, self.op.kernel, strict=True)]
        inner: Any = ..., *(slice(o, k - o) for o, k in zip(outer, self._kernel, strict=True))
        whole = (*self.w[: -len(outer)], *self._kernel)

        def crop(target: np.ndarray, weights: np.ndarray) -> None:
            target.reshape(self.w)[...] = weights[: math.prod(whole)].reshape(whole)[inner]

        source = InputArg(self.at.params[0], layouts.plain(whole))
        return derived(self.engine, self.w, crop, (), source)

    def prepare(self) -> None:
        self.forward_calls = [self.fused(Epilogue(self.at.top[0]))]

    def fused(self, epilogue: Epilogue) -> KernelCall:
        """Return the forward pass and what follows.

        Raises:
            Declined: No kernel computes what follows.
        """
        target, other, slopes = epilogue.target, epilogue.other, epilogue.slopes
        in_place = other is not None and other.data_memory is target.data_memory
        decline_if(in_place, "a sum in place")
        weight, offsets = self.folded(epilogue)
        operands = ConvOperands(
            InputArg(self.at.bottom[0], self.x),
            OutputArg(target, self.y),
            weight,
            offsets,
            rectifier_of(epilogue.then),
            InputArg(slopes, self.channels) if slopes else None,
            InputArg(other, self.y) if other else None,
        )
        message = "a sum after kernels that gain more than fusing the sum would"
        decline_if(other is not None and len(self.kernels) > 1, message)
        return self.first_of(lambda one: one.forward(operands))

    def folded(self, epilogue: Epilogue) -> tuple[Source, Source | None]:
        """Return weights and offsets, with the factors and offsets after them folded in."""
        links = epilogue.links
        decline_if(links and self.op.axis != 1, "factors of another axis than the channels")
        message = "BatchNorm takes statistics of the batch; given ones are folded into weights"
        decline_if(epilogue.uses_batch_stats, message)
        if not links:
            return self.weight, self.bias
        engine, channels = self.engine, self.maps[1]
        weight = folded_weights(engine, channels, links, self.weight)
        return weight, folded_offsets(engine, channels, links, self.bias)
