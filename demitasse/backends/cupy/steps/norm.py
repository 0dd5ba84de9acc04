"""BatchNorm.

Statistics of a batch, and the sums that its gradient needs, take another pass each. Long channels
are cut into parts there, which are then put together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.cupy.library.engine import Engine
from demitasse.backends.cupy.step import GpuStep
from demitasse.backends.cupy.sums import SplitReduction, Total, add_flags
from demitasse.backends.step import Operands


@dataclass(frozen=True)
class NormParts:
    """A BatchNorm and the operations that are computed together with it.

    Attributes:
        at: The blobs of the BatchNorm; its top is that of the last operation.
        scale: A Scale with a factor for each channel, and its blobs; or None.
        slope: Of the ReLU below 0, or None where there is none.
        followers: Names of the other operations.
    """

    at: Operands
    scale: tuple[ops.Scale, Operands] | None = None
    slope: float | None = None
    followers: Sequence[str] = ()

    @property
    def backward(self) -> bool:
        """True if some gradient may be asked for."""
        return self.at.backward or (self.scale is not None and self.scale[1].backward)

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """Kernel arguments for the fused operations."""
        shifts = self.scale is not None and self.scale[0].bias
        flags = (self.scale is not None, shifts, self.slope is not None)
        return (*map(int, flags), float(self.slope or 0.0))

    def wanted(self, index: int) -> bool:
        """Return whether the gradient of the scale (0) or of its bias (1) is wanted."""
        if self.scale is None or index > int(self.scale[0].bias):
            return False
        return self.scale[1].backward and self.scale[1].param_propagate_down[index]


class NormStep(GpuStep[ops.BatchNorm]):
    """y = (x - mean) / deviation, scaled, shifted and rectified; in place or not.

    Shapes: bottom (N, C, ...) -> top the same; params (C,), (C,), (1,); factors (C,).
    """

    own_backward = True
    narrow_params = ()
    follows_layout = True

    def __init__(self, engine: Engine, op: ops.BatchNorm, parts: NormParts) -> None:
        super().__init__(engine, op, parts.at)
        self.parts, self.measures = parts, not op.use_global_stats
        samples, self.channels = op.bottom[:2]
        plane, count = math.prod(op.bottom[2:]), math.prod(op.bottom)
        many, family = samples * plane, "batch_norm"
        self.keep = parts.backward and (self.measures or bool(parts.followers))
        """True if backward needs what forward has normalised."""
        self.stored = not (self.measures or parts.backward)
        """True if the kernel takes the statistics from the running sums; backward needs none."""
        sizes = (samples, self.channels, plane)
        self.cut = cut = SplitReduction.of_channels(sizes, self.dtype, last=self.last)
        places = (many,) if self.last else (samples, plane)
        part = (self.dtype, *cut.blocks, self.channels, *places, cut.count, cut.length)
        channels = (op.dtype, self.channels, cut.count, self.channels, many)
        every = (count, self.channels, 1 if self.last else plane)
        about = (
            float(op.eps),
            float(op.fraction),
            many / (many - 1) if many > 1 else 1.0,  # makes the variance unbiased
        )
        measure, sums = (
            ("strip_statistics", "strip_gradient_sums")
            if self.last
            else ("part_statistics", "gradient_sums")
        )
        self._measure = engine.row_blocks(family, measure, *part, *about, reach=count)
        self._combine = engine.row_blocks(
            family, "batch_statistics", *channels, cut.count, cut.length, *about
        )
        self._recall = engine.elementwise(
            family, "stored_statistics", op.dtype, self.channels, float(op.eps)
        )
        self._normalise = engine.vectorized(
            *(family, "normalise", self.dtype, *every, int(self.keep), int(self.stored)),
            *(float(op.eps), *parts.numbers),
        )
        self._sums = engine.row_blocks(family, sums, *part, *parts.numbers, reach=count)
        self._add = engine.row_blocks(
            *("sums", "sum_parts", op.dtype, self.channels, cut.count),
            *(self.channels, cut.count, 1, 1, 0),
        )
        self.wanted = (self.at.propagate_down[0], parts.wanted(0), parts.wanted(1))
        self._gradient = [
            engine.vectorized(
                *(family, "normalise_gradient", self.dtype, *every, many, int(self.measures)),
                *(*map(int, self.wanted), add, *parts.numbers),
                reach=self.channels,
            )
            for add in range(4)
        ]

    @property
    def code(self) -> str:
        return " + ".join([super().code, *self.parts.followers])

    def forward(self) -> None:
        at, engine, dtype = self.at, self.engine, self.op.dtype
        x = at.bottom[0].read()
        if self.stored:
            mean, deviation, factor = (blob.read() for blob in at.params)
            y = at.top[0].buffer()
            self._normalise(x, mean, deviation, factor, *self._factors(mean), y, y)
            return
        mean, means, squares = engine.scratch(dtype, self.channels, self.cut.total, self.cut.total)
        deviation = at.saved("deviation", (self.channels,)).buffer()
        if self.measures:
            # read first: sums that are only on the host must be on the GPU before they are added to
            sums = [(blob.read(), blob.buffer())[1] for blob in at.params]
            self._measure(x, means, squares, mean, deviation, *sums)
            if not self.cut.one:
                self._combine(means, squares, mean, deviation, *sums)
        else:
            self._recall(*(blob.read() for blob in at.params), mean, deviation)
        factors = self._factors(mean)
        y = at.top[0].buffer()
        kept = self.saved("normalised", self.op.bottom).buffer() if self.keep else y
        self._normalise(x, mean, deviation, mean, *factors, y, kept)

    def backward(self) -> None:
        if not any(self.wanted):
            return
        at, engine, dtype = self.at, self.engine, self.op.dtype
        dy, deviation = at.top[0].read_diff(), at.saved("deviation", (self.channels,)).read()
        # the kernels do not use placeholders for arrays that they do not need
        normalised = self.saved("normalised", self.op.bottom).read() if self.keep else dy
        factors = self._factors(deviation)
        flat, along, *parts = engine.scratch(
            dtype, self.channels, self.channels, self.cut.total, self.cut.total
        )
        if self.measures or any(self.wanted[1:]):
            if self.cut.one:
                self._sums(normalised, dy, *factors, flat, along)
            else:
                self._sums(normalised, dy, *factors, *parts)
                self._add(*parts, flat, along)
        totals: list[Total | None] = [None, None]
        for index in (0, 1):
            if self.parts.scale is not None and self.wanted[1 + index]:
                totals[index] = self.parts.scale[1].params[index].diff_total()
        grads = [dy if total is None else total[0] for total in totals]
        dx = at.bottom[0].diff_buffer() if self.wanted[0] else dy
        gradient = self._gradient[add_flags(totals[1], totals[0])]
        gradient(normalised, dy, deviation, flat, along, *factors, dx, *grads)

    def _factors(self, instead: Array) -> tuple[Array, Array]:
        """Return scale and bias; ``instead`` for missing ones."""
        if self.parts.scale is None:
            return instead, instead
        op, at = self.parts.scale
        return at.params[0].read(), at.params[1].read() if op.bias else instead


def batch_norm(engine: Engine, op: ops.BatchNorm, at: Operands) -> NormStep:
    """Return the Step of a BatchNorm without other operations."""
    return NormStep(engine, op, NormParts(at))
