"""Pooling, spatial pyramid pooling, ROI pooling and interpolation of planes."""

import math
from dataclasses import replace

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Argument, InputArg, OutputArg, rounded_ends
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, copy_call, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pooling import Pooling
from demitasse.backends.kernels.resize import Interpolation
from demitasse.backends.kernels.roi_pooling import (
    RegionKernel,
    RegionMaxima,
    RegionMaximaGradient,
    RegionMeanGradient,
    RegionMeans,
)
from demitasse.backends.kernels.tuning import NARROW, Tuning
from demitasse.backends.regions import Bins, bins_of
from demitasse.backends.step import Operands, decline_gradients, decline_if


class PoolStep(CpuStep[ops.Pool]):
    """MAX and AVE pooling, in the layout of the channels that is found."""

    needs_bottom = True
    follows_bf16 = True

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.tops > 1, "a second top; our kernel writes one")
        decline_if(op.method == "STOCHASTIC", "STOCHASTIC; our kernel takes MAX and AVE")

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        shape, width = self.op.bottom, min(NARROW, kernel_tuning(self.engine).width)
        # few channels are filled up to a vector
        known = expected, layouts.innermost(shape, 1), layouts.channels_last(shape, width)
        ends, kernel = first_suitable(known, self._in)[1]
        self._kernel, self.kept_bytes = kernel, kernel.winners.nbytes
        self.x, self.y = (end.layout for end in ends)
        self.forward_calls = [KernelCall(self.engine, kernel.forward, *ends)]

    def _in(self, layout: Layout) -> tuple[tuple[InputArg, OutputArg], Pooling]:
        """Return the arguments and the kernel, for a layout of the bottom."""
        at, tuning = self.at, kernel_tuning(self.engine).for_channels(layout.padded[1])
        target = layouts.channels_last(self.op.top, layout.padded[1])
        ends = self.in_and_out(layout, target)
        if self.rounds:
            ends = rounded_ends(at.layouts, *ends)
        x, y = (suitable_images(end.layout, tuning.width, padded=True, bf16=True) for end in ends)
        return ends, Pooling(self.op, x, y, tuning, trains=at.backward)

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            ends = self.gradients(self.x, self.y)
            self.backward_calls = [KernelCall(self.engine, self._kernel.backward, *ends)]


class SpatialPyramidPoolStep(CpuStep[ops.SpatialPyramidPool]):
    """Each level is pooled in the layout that is fastest for it, and copied into the top."""

    def __init__(self, engine: Engine, op: ops.SpatialPyramidPool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_gradients([at])
        self._levels = [self._level(number, pool) for number, pool in enumerate(op.levels)]

    def _level(self, number: int, pool: ops.Pool) -> PoolStep:
        pooled = self.at.saved(f"level {number}", pool.top).blob
        return PoolStep(self.engine, pool, replace(self.at, top=(pooled,)))

    def prepare(self) -> None:
        for level in self._levels:
            level.prepare()
        first = 0
        for level in self._levels:
            self.forward_calls += [*level.forward_calls, self._copy(level, first)]
            first += math.prod(level.op.top[1:])

    def _copy(self, level: PoolStep, first: int) -> KernelCall:
        """Return what copies a level to where it begins in each image's part of the top."""
        top, shape = self.at.top[0], level.op.top
        strides = (math.prod(top.shape[1:]), math.prod(shape[2:]), shape[3], 1)
        there = Layout(shape, strides, first=first)
        source = InputArg(level.at.top[0], level.y)
        target = OutputArg(top, layouts.plain(top.shape))
        return copy_call(self.engine, source, target, there=there)


class RegionStep(CpuStep[ops.ROIPool | ops.PSROIPool]):
    """Means from C order to C order; maxima from a layout of channels to channels last."""

    replayable = backward_replayable = False

    _bins: Bins
    """Bins of the regions of the last forward pass."""

    def prepare(self) -> None:
        op, known, target = self.op, [layouts.plain(self.op.bottom)], layouts.plain(self.op.top)
        if isinstance(op, ops.ROIPool):
            target = layouts.innermost(op.top, 1)
            known = [self.expected(self.at.bottom[0], op.bottom), layouts.innermost(op.bottom, 1)]
        layout, kernel = first_suitable(known, self._kernel)

        def run(x: np.ndarray, y: np.ndarray) -> None:
            self._bins = bins_of(op, self.at.bottom[1].cpu_data())
            kernel.run(self._bins, x, y)

        ends = self.in_and_out(layout, target)
        self.forward_calls = [KernelCall(self.engine, run, *ends, code=kernel.code)]

    def prepare_backward(self) -> None:
        op, [bottom, _] = self.op, self.at.bottom
        if not self.at.propagate_down[0]:
            return
        kernel: RegionKernel
        if isinstance(op, ops.PSROIPool):
            kernel = RegionMeanGradient(op.bottom, *self._sizes)
            ends: tuple[Argument, ...] = self.gradients(*map(layouts.plain, (op.bottom, op.top)))
        else:
            x, y = (layouts.innermost(shape, 1) for shape in (op.bottom, op.top))
            n, c, h, w = op.bottom
            kernel = RegionMaximaGradient(Images.channels_last((n, c, h, w)), *self._sizes)
            ends = InputArg(bottom, x), *self.gradients(x, y)

        def run(*arrays: np.ndarray) -> None:
            kernel.run(self._bins, *arrays)

        self.backward_calls = [KernelCall(self.engine, run, *ends, code=kernel.code)]

    def _kernel(self, layout: Layout) -> RegionKernel:
        if isinstance(self.op, ops.PSROIPool):
            return RegionMeans(self.op.bottom, *self._sizes)
        return RegionMaxima(suitable_images(layout, 1), *self._sizes)

    @property
    def _sizes(self) -> tuple[int, tuple[int, int], Tuning]:
        """Number of regions, rows and columns of their bins, and the tuning."""
        regions, _, height, width = self.op.top
        return regions, (height, width), kernel_tuning(self.engine)


class InterpolationStep(CpuStep[ops.Interpolation]):
    """Bilinear interpolation of planes; the gradient is two products of matrices.

    The channels are last, in the bottom as in the top.
    """

    portable_gradient = True

    def prepare(self) -> None:
        op, tuning = self.op, kernel_tuning(self.engine)
        n, c, *bottom = op.bottom
        before, after = (Images.channels_last((n, c, h, w)) for h, w in (bottom, op.top[2:]))
        ends = self.in_and_out(*(layouts.innermost(shape, 1) for shape in (op.bottom, op.top)))
        kernel = Interpolation(before, after, op.cut, op.size, tuning)
        self.forward_calls = [KernelCall(self.engine, kernel, *ends)]
