"""Pooling, spatial pyramid pooling, ROI pooling and interpolation of planes."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.arguments import Call, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.onednn.jit_adapters.unary import first_suitable, map_call, suitable_images
from demitasse.backends.onednn.library.constants import Algorithm, Arg, Query
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout, dims
from demitasse.backends.onednn.library.primitive import CodeFamily, Description, candidates
from demitasse.backends.onednn.step import OnednnStep
from demitasse.backends.regions import Bins, bins, bins_between, widened
from demitasse.backends.step import Declined, Operand, Operands, decline_gradients, decline_if

IMAGE_AXES = (3, 4, 5)


class PoolStep(OnednnStep[ops.Pool]):
    """Windows that reach beyond the image on the right are padded there.

    Attributes:
        largest: Whether it finds the largest of windows over two axes, and nothing else.
    """

    needs_bottom = True

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.tops > 1, "a second top; oneDNN's Step writes one")
        decline_if(
            len(op.bottom) not in IMAGE_AXES, f"{len(op.kernel)} spatial axes; oneDNN takes 1 to 3"
        )
        decline_if(
            some_empty(op), "windows outside the image; oneDNN takes those with elements of it"
        )
        self.algorithm = algorithm(op)
        self.largest = op.method == "MAX" and len(op.kernel) == 2
        none = tuple(0 for _ in op.kernel)
        self.window = [
            dims(op.stride), dims(op.kernel), dims(none), dims(op.pad), dims(beyond(op)),
        ]  # fmt: skip

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.op.bottom)
        slow: tuple[Description, Layout, Layout] | None = None
        for layout in candidates(self.engine, expected):
            with suppress(Declined):
                found = self._describe(layout)
                y = found.layout(Query.DST)
                gradient = self._gradient(found, layout) if self.at.backward else found
                if CodeFamily.SIMPLE not in (found.family, gradient.family):
                    self._forward(found, layout, y)
                    return
                slow = slow or (found, layout, y)
        if slow is None:
            message = "windows for which oneDNN has no fast code in any layout"
            raise Declined(message)
        self._forward(*slow)

    def _describe(self, layout: Layout) -> Description:
        y = self.engine.any(self.op.top)
        return self.engine.describe(
            "pooling_forward", self.kind, self.algorithm, layout, y, *self.window
        )

    def _gradient(self, hint: Description, x: Layout) -> Description:
        # one value for a channel lies alike in several layouts, of which only the top's own will do
        return self.engine.describe(
            "pooling_backward", self.algorithm, x, hint.descriptor(Query.DST), *self.window, hint
        )

    def _forward(self, found: Description, x: Layout, y: Layout) -> None:
        self.hint, self.x, self.y = found, x, y
        self.mask = self.workspace_of(found)
        self.forward_calls = [Call(self.engine, found, self.in_and_out(x, y), self.mask)]

    def prepare_backward(self) -> None:
        if self.at.propagate_down[0]:
            found, gradients = self._gradient(self.hint, self.x), self.gradients(self.x, self.y)
            self.backward_calls = [Call(self.engine, found, gradients, self.mask)]


def beyond(op: ops.Pool) -> ops.Shape:
    """Return how far the last window reaches beyond the image, on each axis."""
    sizes = zip(op.bottom[2:], op.top[2:], op.kernel, op.stride, op.pad, strict=True)
    return tuple(max(0, (out - 1) * s + k - size - p) for size, out, k, s, p in sizes)


def algorithm(op: ops.Pool) -> Algorithm:
    """Return how oneDNN calls the method.

    Caffe's mean counts the part of a window that lies on the image or its pads, but not what lies
    beyond the right pad.
    """
    if op.method == "MAX":
        return Algorithm.POOL_MAX
    decline_if(op.method != "AVE", f"{op.method}; oneDNN takes MAX and AVE")
    if not op.counts_pads:
        return Algorithm.POOL_AVERAGE
    clipped = any(right > p for right, p in zip(beyond(op), op.after or op.pad, strict=True))
    if not clipped:
        return Algorithm.POOL_AVERAGE_PADDED
    message = "AVE with windows that reach beyond the pads, by which oneDNN divides otherwise"
    decline_if(any((*op.pad, *(op.after or ()))), message)
    return Algorithm.POOL_AVERAGE


def some_empty(op: ops.Pool) -> bool:
    """Return whether some window holds no element of the image."""
    sizes = zip(op.bottom[2:], op.top[2:], op.kernel, op.stride, op.pad, strict=True)
    return any((out - 1) * s - p >= size or k <= p for size, out, k, s, p in sizes)


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


class SpatialPyramidPoolStep(OnednnStep[ops.SpatialPyramidPool]):
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

    def _copy(self, level: PoolStep, first: int) -> Call:
        """Return what copies a level to where it begins in each image's part of the top."""
        engine, top, shape = self.engine, self.at.top[0], level.op.top
        _, _, rows, columns = shape
        each = math.prod(top.shape[1:])
        there = engine.strided(shape, (each, rows * columns, columns, 1))
        found = engine.describe_reorder(level.y.handle, there)
        target = _LevelWriter(top, engine.plain(top.shape), first)
        target.descriptor = there
        return Call(engine, found, [InputArg(Arg.SRC, level.at.top[0], level.y), target])


VALUES = 5
"""Fields of a region."""


O = TypeVar("O", bound=ops.ROIPool | ops.PSROIPool)  # noqa: E741 - the type of the operation


class _RegionStep(OnednnStep[O]):
    """From a map to C order."""

    deferrable = replayable = False

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
        ends = self.in_and_out(layout, self.engine.plain(self.op.top))
        return KernelCall(self.engine, ends, kernel.code, lambda x, y: kernel(x, self._bins(), y))


class PSROIPoolStep(_RegionStep[ops.PSROIPool]):
    """From C order."""

    cut = staticmethod(bins_between)

    def prepare(self) -> None:
        from demitasse.backends.kernels.roi_pooling import RegionMeans

        plain, op = self.engine.plain, self.op
        regions, _, rows, columns = op.top
        kernel = RegionMeans(op.bottom, regions, (rows, columns), kernel_tuning(self.engine))
        self.forward_calls = [self._call(kernel, plain(op.bottom))]


class ROIPoolStep(_RegionStep[ops.ROIPool]):
    """From the layout of the channels that is found, or with the channels last."""

    cut = staticmethod(bins)

    def prepare(self) -> None:
        engine, shape = self.engine, self.op.bottom
        expected = engine.whole(self.expected(self.at.bottom[0], shape))
        _, call = first_suitable((expected, engine.innermost_layout(shape, 1)), self._in)
        self.forward_calls = [call]

    def _in(self, layout: Layout) -> KernelCall:
        from demitasse.backends.kernels.roi_pooling import RegionMaxima

        tuning = kernel_tuning(self.engine)
        images = suitable_images(layout, Images.has_runs, tuning.width)
        regions, _, rows, columns = self.op.top
        return self._call(RegionMaxima(images, regions, (rows, columns), tuning), layout)


class InterpolationStep(OnednnStep[ops.Interpolation]):
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
        x, y = (engine.innermost_layout(shape, 1) for shape in (op.bottom, op.top))
        self.forward_calls = [map_call(engine, *self.in_and_out(x, y), kernel)]
