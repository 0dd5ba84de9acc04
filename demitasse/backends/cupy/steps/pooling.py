"""Pooling over depth, height and width, and over regions of interest."""

import math

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cupy.layout import reads_channels_last
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import NEEDS_BOTTOM, GpuStep
from demitasse.backends.regions import bins_of
from demitasse.backends.step import Operands, Saved, decline_if, decline_in_place

AXES = 3  # spatial axes of the kernels


class _PoolStep(GpuStep[ops.Pool]):
    """Shared code of MAX and AVE pooling.

    Shapes: bottom (N, C, *spatial) -> top (N, C, *out), with up to three spatial axes.
    """

    narrow_params = ()

    def takes_last(self, engine: Engine, op: ops.Pool, at: Operands) -> bool:
        return op.tops == 1 and reads_channels_last(at)

    def takes_narrow(self, op: ops.Pool) -> bool:
        return op.tops == 1  # a place in an image may be no number of 16 bits

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        axes = len(op.bottom) - 2
        decline_if(axes > AXES, f"{axes} spatial axes; kernels pool over {AXES} at most")
        self.small, self.large = math.prod(op.top), math.prod(op.bottom)
        # arguments of every kernel, after the number of elements
        self.numbers = [
            number
            for values, neutral in (
                (op.bottom[2:], 1), (op.kernel, 1), (op.stride, 1), (op.pad, 0), (op.top[2:], 1)
            )
            for number in _three(values, neutral)
        ]  # fmt: skip
        self.numbers.append(op.bottom[1] if self.last else 1)


def _three(values: ops.Shape, neutral: int) -> ops.Shape:
    """Return one value for each axis of the kernels, ``neutral`` for missing ones."""
    return (*[neutral] * (AXES - len(values)), *values)


class MaxPoolStep(_PoolStep):
    """The largest value of each window; remembers where it was.

    A second top gets the index of each value in its plane.
    """

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        flags = (int(at.backward), int(op.tops > 1))
        self._forward = engine.elementwise(
            "pool", "max_pool", self.dtype, self.small, *self.numbers, *flags, reach=self.large
        )
        self._backward = engine.elementwise(
            "pool", "max_pool_gradient", self.dtype, self.large, *self.numbers, reach=self.small
        )

    def forward(self) -> None:
        at = self.at
        x = at.bottom[0].read()
        y = at.top[0].buffer()
        # the kernel does not write to placeholders for outputs that its flags leave out
        winners = at.saved("winners", self.op.top, "int32").buffer() if at.backward else y
        mask = at.top[1].buffer() if self.op.tops > 1 else y
        self._forward(x, y, winners, mask)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            winners = at.saved("winners", self.op.top, "int32").read()
            dy = at.top[0].read_diff()
            self._backward(winners, dy, at.bottom[0].diff_buffer())


class AveragePoolStep(_PoolStep):
    """The mean of each window, with or without its padding."""

    def __init__(self, engine: Engine, op: ops.Pool, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.tops > 1, "a second top, which the kernel writes for MAX alone")
        after = _three(op.after or op.pad, 0) if op.counts_pads else (-1,) * AXES
        numbers = (*self.numbers, *after)
        self._forward = engine.elementwise(
            "pool", "average_pool", self.dtype, self.small, *numbers, reach=self.large
        )
        self._backward = engine.elementwise(
            "pool", "average_pool_gradient", self.dtype, self.large, *numbers, reach=self.small
        )

    def forward(self) -> None:
        x = self.at.bottom[0].read()
        self._forward(x, self.at.top[0].buffer())

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            dy = at.top[0].read_diff()
            self._backward(dy, at.bottom[0].diff_buffer())


def pool(engine: Engine, op: ops.Pool, at: Operands) -> MaxPoolStep | AveragePoolStep:
    """Return the Step for MAX or AVE pooling."""
    decline_if(op.method == "STOCHASTIC", "STOCHASTIC; there are kernels for MAX and AVE")
    return MaxPoolStep(engine, op, at) if op.method == "MAX" else AveragePoolStep(engine, op, at)


class RegionStep(GpuStep[ops.ROIPool | ops.PSROIPool]):
    """Maxima or means of the bins of regions, which the host computes.

    Shapes: map (N, C, H, W), regions (R, 5) -> top (R, D, height, width).
    """

    replayable = False

    def __init__(self, engine: Engine, op: ops.ROIPool | ops.PSROIPool, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._maxima = isinstance(op, ops.ROIPool)
        name = "region_maxima" if self._maxima else "region_means"
        flags = (int(at.backward),) if self._maxima else ()
        small, large = math.prod(op.top), math.prod(op.bottom)
        numbers = (*op.bottom[1:], op.top[0], *op.top[2:])
        self._forward = engine.elementwise(
            "region", name, self.dtype, small, *numbers, *flags, reach=large
        )
        self._backward = engine.elementwise(
            "region", f"{name}_gradient", self.dtype, large, *numbers, reach=small
        )

    def forward(self) -> None:
        at = self.at
        tables = bins_of(self.op, at.bottom[1].cpu_data())
        flat = np.concatenate([table.reshape(-1) for table in tables], dtype=np.int32)
        self._bins = self.engine.asarray(flat)
        x, y = at.bottom[0].read(), at.top[0].buffer()
        # the kernel does not write to a placeholder for winners
        winners = [self._winners.buffer() if at.backward else y] if self._maxima else []
        self._forward(x, self._bins, y, *winners)

    def backward(self) -> None:
        at = self.at
        if at.propagate_down[0]:
            winners = [self._winners.read()] if self._maxima else []
            self._backward(*winners, at.top[0].read_diff(), self._bins, at.bottom[0].diff_buffer())

    @property
    def _winners(self) -> Saved:
        return self.at.saved("winners", self.op.top, "int32")
