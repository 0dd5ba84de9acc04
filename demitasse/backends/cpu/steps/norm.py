"""BatchNorm, Scale and MVN.

One kernel computes y = (x - mean) / sqrt(variance + eps) * scale + shift, and perhaps ReLU. A Scale
alone is a normalisation with mean 0 and divisor 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Argument,
    BufferArg,
    Derived,
    GradArg,
    InputArg,
    OutputArg,
    parameters,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.norm import Normalization, NormalizationGradient, PlaneNorm
from demitasse.backends.kernels.planes import takes
from demitasse.backends.step import Operands, decline_if

O = TypeVar("O", bound=ops.Op)  # noqa: E741 - the type of the operation

PARAMETER_GRADIENTS = ("diff_scale", "diff_shift")

MATRIX = 2
"""Axes from which on there are channels."""


@dataclass(frozen=True)
class NormParts:
    """The operations of one kernel: a BatchNorm, a Scale, or both, and a ReLU.

    Shape of the data: (N, C, *spatial). The blobs ``at`` are those of the first operation.
    """

    shape: ops.Shape
    at: Operands
    norm: tuple[ops.BatchNorm, Operands] | None = None
    scale: tuple[ops.Scale, Operands] | None = None
    relu: bool = False

    @property
    def uses_batch_stats(self) -> bool:
        """True if mean and variance are the batch's, not given."""
        return self.norm is not None and not self.norm[0].use_global_stats


def stored_statistics(
    mean: np.ndarray, variance: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance from a BatchNorm's three parameters. Shapes: (C,), (C,)."""
    factor = np.float32(0.0 if weight[0] == 0 else 1.0 / weight[0])
    return mean * factor, variance * factor


def decline_other_scales(op: ops.Scale, at: Operands, shape: ops.Shape) -> None:
    """Leave to others a Scale that has not one learned factor for each channel of ``shape``."""
    decline_if(len(at.bottom) > 1, "factors from a second bottom; kernels take learned ones")
    channels = (*shape[:2], math.prod(shape[2:]))
    message = "factors over other axes; kernels take one for each channel"
    decline_if(len(shape) < MATRIX or (op.outer, op.dim, op.inner) != channels, message)


def _fixed(count: int, number: float = 0.0) -> BufferArg:
    """Return an argument of ``count`` equal numbers, in place of an absent parameter."""
    array = aligned(count)
    array[...] = number
    return BufferArg("constant", layouts.plain((count,)), array)


class NormStep(CpuStep[O]):
    """In place or not. In place, the input is kept by giving the blob another buffer."""

    own_backward = replayable = True

    def __init__(
        self, engine: Engine, op: O, parts: NormParts, followers: Sequence[str] = ()
    ) -> None:
        super().__init__(engine, op, parts.at)
        decline_if(len(parts.shape) < MATRIX, "one axis; our kernels take 2 or more")
        alone = math.prod(parts.shape) == parts.shape[1]
        message = "one value of each channel, whose gradient is 0; rounded products would be left"
        decline_if(alone and parts.uses_batch_stats, message)
        self.parts, self.followers = parts, followers
        self.in_place = self.at.top[0] is self.at.bottom[0]
        self.spare: np.ndarray | None = None
        self.input: np.ndarray | None = None
        self.statistics: Derived | None = None

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.parts.shape)
        self.layout, self.kernel = first_suitable(layouts.candidates(expected), self._kernel)
        self.source, self.target = self.in_and_out(self.layout, self.layout)
        channels = layouts.plain((self.parts.shape[1],))
        self.factors: list[Argument] = [_fixed(channels.size, 1.0), _fixed(channels.size)]
        if self.parts.scale is not None:
            op, at = self.parts.scale
            for place, role in enumerate(("scale", "shift")[: 1 + op.bias]):
                self.factors[place] = InputArg(role, at.params[place], channels)
        ends = self.source, self.target, *self.factors
        self.call = KernelCall(self.engine, self.kernel, *ends)
        self.kept_bytes = 3 * self.kernel.mean.nbytes
        self.forward_calls = [self.call]
        if self.parts.norm is not None and not self.parts.uses_batch_stats:
            take = partial(call_recorder.call, self._take_statistics)
            self.statistics = Derived(take, *parameters(self.parts.norm[1].params))

    def _kernel(self, layout: Layout) -> Normalization:
        """Return the kernel, with the numbers of a Scale alone."""
        parts, tuning = self.parts, kernel_tuning(self.engine, "norm")
        images = suitable_images(layout, tuning.width, takes)
        n, c, *size = images.shape
        if size == [1, 1] and (images.fits(tuning.width) or c == 1):  # all images as pixels of one
            images = Images((1, c, 1, n), n * c, n * c, images.image_stride)
        stored, eps = not parts.uses_batch_stats, parts.norm[0].eps if parts.norm else 0.0
        kernel = Normalization(images, eps, tuning, relu=parts.relu, stored=stored)
        if parts.norm is None:
            kernel.mean[...], kernel.inverse[...] = 0.0, 1.0
        return kernel

    @property
    def workspace(self) -> int:
        spare = self.spare  # of a Step that runs; others may run in its place
        return super().workspace + (0 if spare is None else spare.nbytes)

    # -- running -------------------------------------------------------------------------------

    def forward(self) -> None:
        if self.statistics is not None:
            self.statistics.follow()
        if self.in_place and self.at.backward:
            self._run_keeping_input()
        else:
            self.call()
        if self.parts.norm and self.parts.uses_batch_stats:
            self._add_to_averages(*self.parts.norm)

    def _run_keeping_input(self) -> None:
        """Run in place; what was there before is kept.

        The blob gets the spare buffer and the Step keeps the blob's, as the next spare: several
        Steps in place on one blob thus rotate buffers, and none writes what another has kept.
        """
        source, memory = self.source.array(), self.target.memory
        spare = aligned(self.layout.size) if self.spare is None else self.spare
        if not self.layout.plain and memory.device_array is source:
            kept, target, self.spare = source, spare, source
            memory.exchange_private(self.layout, target)
        else:  # who has lent us what we read uses it again
            kept = self.spare = spare
            call_recorder.call(np.copyto, kept, source[: self.layout.size])
            target = self.target.array()
        self.kernel(kept, target, *(one.array() for one in self.factors), *self.call.scratch())
        call_recorder.call(self._keep, kept)

    def _keep(self, source: np.ndarray) -> None:
        self.input = source

    def _take_statistics(self, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray) -> None:
        """Take the running averages, divided by their weight."""
        kernel, c = self.kernel, self.parts.shape[1]
        kernel.mean[...], kernel.variance[...] = stored_statistics(mean[:c], variance[:c], weight)
        kernel.inverse[...] = np.reciprocal(np.sqrt(kernel.variance + np.float32(kernel.eps)))

    def _add_to_averages(self, op: ops.BatchNorm, at: Operands) -> None:
        """Add the batch's statistics to the running sums, the variance without bias."""
        rows = math.prod(op.bottom) // op.bottom[1]
        correction = rows / (rows - 1) if rows > 1 else 1.0
        kernel = self.kernel
        totals = [blob.data_memory.mutable_cpu_data() for blob in at.params]

        def add() -> None:
            values = (kernel.mean, kernel.variance * np.float32(correction), np.float32(1.0))
            for total, value in zip(totals, values, strict=True):
                np.multiply(total, np.float32(op.fraction), out=total)
                total[...] += value

        call_recorder.call(add)

    # -- backward ------------------------------------------------------------------------------

    def prepare_backward(self) -> None:
        """Prepare the gradients, and that behind the norm.

        Layers in place after the Step leave their gradient: the one behind the norm takes the place
        of ``dy``, or in place that of ``dx``. It is written where somebody may look at it.
        """
        at, layout, [dy, dx] = self.at, self.layout, self.gradients(self.layout, self.layout)
        channels = layouts.plain((self.parts.shape[1],))
        rows: list[Argument] = [_fixed(channels.size), _fixed(channels.size)]
        learns = False
        if self.parts.scale is not None:
            own = self.parts.scale[1]
            wanted = zip(PARAMETER_GRADIENTS, own.params, own.param_propagate_down, strict=False)
            for place, (role, blob, asked) in enumerate(wanted):
                if asked:
                    rows[place], learns = GradArg(role, blob, channels), True
        self.kept = BufferArg("src", layout)
        source = self.kept if self.in_place else InputArg("src", at.bottom[0], layout)
        size = 0 if at.propagate_down[0] else layout.size
        arguments = source, dy, dx if not size else _fixed(size), *self.factors, *rows
        kernel = NormalizationGradient(self.kernel, learns=learns)
        self.back = KernelCall(self.engine, kernel, *arguments)
        self.kept_bytes += 4 * size
        self.backward_calls = [self.back]
        self.behind: OutputArg | None = None
        if self.followers and not self.in_place:
            self.behind = OutputArg("diff_dst", at.top[0], layout, diff=True)
            kernel = NormalizationGradient(self.kernel, behind=True, learns=learns)
            self.both = KernelCall(self.engine, kernel, *arguments, self.behind)
            self.back.arguments = self.both.arguments

    def backward(self) -> None:
        if not self.backward_calls or (self.in_place and self.input is None):
            return
        self.kept.buffer = self.input
        (self.both if self.behind and self.behind.memory.persistent else self.back)()


class BatchNormStep(NormStep[ops.BatchNorm]):
    """A normalisation without factors."""

    def __init__(self, engine: Engine, op: ops.BatchNorm, at: Operands) -> None:
        super().__init__(engine, op, NormParts(op.bottom, at, norm=(op, at)))


class ScaleStep(NormStep[ops.Scale]):
    """A normalisation with mean 0 and variance 1."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        shape = at.bottom[0].shape
        decline_other_scales(op, at, shape)
        super().__init__(engine, op, NormParts(shape, at, scale=(op, at)))


class MVNStep(CpuStep[ops.MVN]):
    """In the layout of the bottom, or with the channels last; in place or not."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.MVN, at: Operands) -> None:
        super().__init__(engine, op, at)
        message = "all channels at once, or no eps; our kernel normalises each channel with one"
        decline_if(op.across or not (op.divides and op.eps > 0), message)

    def prepare(self) -> None:
        [bottom] = self.at.bottom
        decline_if(bottom.shape != self.op.shape, f"{len(bottom.shape)} axes; our kernel takes 4")
        tuning = kernel_tuning(self.engine)
        known = self.expected(bottom), layouts.innermost(bottom.shape, 1)
        find = partial(suitable_images, width=tuning.width, takes=takes)
        layout, images = first_suitable(known, find)
        kernel = PlaneNorm(images, self.op.eps, tuning)
        self.forward_calls = [KernelCall(self.engine, kernel, *self.in_and_out(layout, layout))]
        self._deviations = kernel.deviations

    @property
    def backward_code(self) -> str:
        return "numpy"

    def backward(self) -> None:
        at = self.at
        if not at.propagate_down[0]:
            return
        y, dy = at.top[0].read(), at.top[0].read_diff()
        level = np.mean(dy, axis=(2, 3), keepdims=True)
        slope = np.mean(dy * y, axis=(2, 3), keepdims=True)
        at.bottom[0].write_diff((dy - level - y * slope) / self._deviations[..., None, None])
