"""Pooling, spatial pyramid pooling, ROI pooling and interpolation of planes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    KernelCall,
    copy_call,
    folded_images,
    kernel_tuning,
)
from demitasse.backends.cpu.jit_adapters.unary import first_suitable, map_call, suitable_images
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.images import Images
from demitasse.backends.regions import Bins, bins, bins_between, widened
from demitasse.backends.step import Operand, Operands, decline_gradients, decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.pooling import Pooling


class PoolStep(CpuStep[ops.Pool]):
    """MAX and AVE pooling, in the layout of the channels that is found."""

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.tops > 1, "a second top; our kernel writes one")
        decline_if(op.method == "STOCHASTIC", "STOCHASTIC; our kernel takes MAX and AVE")

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        self.x, (self.y, kernel) = first_suitable(self._layouts(expected), self._in)
        self._kernel, self.kept_bytes = kernel, kernel.winners.nbytes
        ends = self.in_and_out(self.x, self.y)
        self.forward_calls = [KernelCall(self.engine, ends, kernel.code, kernel.forward)]

    def _layouts(self, expected: Layout) -> Iterator[Layout]:
        """Yield the bottom's layout; blocks of channels, for gradients; the channels last.

        A few channels become a block that is filled up.
        """
        shape, width = self.op.bottom, kernel_tuning(self.engine).width
        yield expected
        if self.at.backward and shape[1] % width == 0:
            yield layouts.channel_blocks(shape, width)
        yield layouts.innermost(shape, 1)
        yield layouts.channel_blocks(shape, width)

    def _in(self, layout: Layout) -> tuple[Layout, Pooling]:
        """Return the layout of the top, and the kernel, for a layout of the bottom."""
        from demitasse.backends.kernels.pooling import Pooling

        shape, tuning = self.op.top, kernel_tuning(self.engine)
        x = suitable_images(layout, Images.fits, tuning.width, find=folded_images)
        if x.block == shape[1]:  # not a block that is filled up
            target = layouts.innermost(shape, 1)
        else:
            target = layouts.channel_blocks(shape, x.block)
        y = suitable_images(target, Images.fits, tuning.width, find=folded_images)
        return target, Pooling(self.op, x, y, tuning, trains=self.at.backward)

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            gradients, kernel = self.gradients(self.x, self.y), self._kernel
            self.backward_calls = [KernelCall(self.engine, gradients, kernel.code, kernel.backward)]


class _LevelWriter(OutputArg):
    """The part of the top that a level is written to.

    Args:
        first: Elements of an image before the level's.
    """

    __slots__ = ("_first",)

    def __init__(self, top: Operand, layout: Layout, first: int) -> None:
        super().__init__(Arg.DST, top, layout)
        self._first = first

    def array(self) -> np.ndarray:
        return super().array()[self._first :]


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
        engine, top, shape = self.engine, self.at.top[0], level.op.top
        _, _, rows, columns = shape
        each = math.prod(top.shape[1:])
        there = layouts.strided(shape, (each, rows * columns, columns, 1))
        target = _LevelWriter(top, layouts.plain(top.shape), first)
        source = InputArg(Arg.SRC, level.at.top[0], level.y)
        return copy_call(engine, source, target, there=there)


VALUES = 5
"""Fields of a region."""


O = TypeVar("O", bound=ops.ROIPool | ops.PSROIPool)  # noqa: E741 - the type of the operation


class _RegionStep(CpuStep[O]):
    """From a map to C order."""

    replayable = False

    cut: ClassVar[Callable[..., Bins]]
    """Cuts regions into bins."""

    def __init__(self, engine: Engine, op: O, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(at.backward, "a gradient is wanted; our kernels of regions run forward")

    def _bins(self) -> Bins:
        """Return the bins of the present regions."""
        op, regions = self.op, self.at.bottom[1]
        corners = regions.data_memory.cpu_data()[: op.top[0] * VALUES].reshape(-1, VALUES)
        if isinstance(op, ops.ROIPool):
            corners = widened(corners, op.pad_ratio)
        images, size = op.bottom[0], (op.bottom[2], op.bottom[3])
        return self.cut(corners, op.scale, (op.top[2], op.top[3]), images, size)

    def _call(self, kernel: Any, layout: Layout) -> KernelCall:
        """Return a call of a kernel of the map, in this layout, and the present bins."""
        ends = self.in_and_out(layout, layouts.plain(self.op.top))
        return KernelCall(self.engine, ends, kernel.code, lambda x, y: kernel(x, self._bins(), y))


class PSROIPoolStep(_RegionStep[ops.PSROIPool]):
    """From C order."""

    cut = staticmethod(bins_between)

    def prepare(self) -> None:
        from demitasse.backends.kernels.roi_pooling import RegionMeans

        op = self.op
        regions, _, rows, columns = op.top
        kernel = RegionMeans(op.bottom, regions, (rows, columns), kernel_tuning(self.engine))
        self.forward_calls = [self._call(kernel, layouts.plain(op.bottom))]


class ROIPoolStep(_RegionStep[ops.ROIPool]):
    """From the layout of the channels that is found, or with the channels last."""

    cut = staticmethod(bins)

    def prepare(self) -> None:
        shape = self.op.bottom
        expected = self.expected(self.at.bottom[0], shape)
        _, call = first_suitable((expected, layouts.innermost(shape, 1)), self._in)
        self.forward_calls = [call]

    def _in(self, layout: Layout) -> KernelCall:
        from demitasse.backends.kernels.roi_pooling import RegionMaxima

        tuning = kernel_tuning(self.engine)
        images = suitable_images(layout, Images.has_runs, tuning.width)
        regions, _, rows, columns = self.op.top
        return self._call(RegionMaxima(images, regions, (rows, columns), tuning), layout)


class InterpolationStep(CpuStep[ops.Interpolation]):
    """Bilinear interpolation of planes; the gradient is two products of matrices.

    The channels are last, in the bottom as in the top.
    """

    portable_gradient = True

    def prepare(self) -> None:
        from demitasse.backends.kernels.resize import Interpolation

        engine, op = self.engine, self.op
        n, c, *bottom = op.bottom
        before, after = (Images.in_blocks((n, c, h, w), c) for h, w in (bottom, op.top[2:]))
        kernel = Interpolation(before, after, op.cut, op.size, kernel_tuning(engine))
        x, y = (layouts.innermost(shape, 1) for shape in (op.bottom, op.top))
        self.forward_calls = [map_call(engine, *self.in_and_out(x, y), kernel)]
