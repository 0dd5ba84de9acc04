"""BatchNorm, Scale and MVN.

One kernel computes y = (x - mean) / sqrt(variance + eps) * scale + shift, and perhaps ReLU. A Scale
alone is a normalisation with mean 0 and divisor 1.
"""

from __future__ import annotations

import math
from functools import partial

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
    PreferredArg,
    ScratchArg,
    StateArg,
    parameters,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.cpu.steps.epilogue import Epilogue, Norm, stored_statistics
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.norm import MEANS, Normalization, NormalizationGradient, PlaneNorm
from demitasse.backends.kernels.planes import takes
from demitasse.backends.step import Operand, Operands, decline_if

MATRIX = 2
"""Axes from which on there are channels."""


def _constant(layout: Layout, number: float) -> BufferArg:
    """Return an argument of equal numbers, in place of an absent parameter."""
    array = aligned(layout.size)
    array[...] = number
    return BufferArg(layout, array)


ORDERS = [ops.BatchNorm], [ops.Scale], [ops.Bias], [ops.BatchNorm, ops.Scale]
"""Operations of one kernel."""


def _shares(op: ops.BatchNorm, averages: int) -> list[float]:
    """Return the factors of the averages so far, of a batch's mean and of its variance.

    Caffe's averages are sums, of a variance without bias, with their weight as the third.
    """
    rows, sums = math.prod(op.bottom) // op.bottom[1], averages > MEANS
    share = 1.0 if sums else 1.0 - op.fraction
    correction = rows / (rows - 1) if sums and rows > 1 else 1.0
    return [op.fraction, share, share * correction]


class NormStep(CpuStep[Norm]):
    """A BatchNorm, a Scale, both, or a Bias, and a ReLU. Shape of the data: (N, C, *spatial).

    In place or not. In place, the input is kept by giving the blob another buffer.

    Args:
        at: The blobs of the first operation, with the top of the last.
        parts: The operations; None for this one alone.
    """

    own_backward = replayable = True

    def __init__(
        self, engine: Engine, op: Norm, at: Operands, parts: Epilogue | None = None,
    ) -> None:  # fmt: skip
        super().__init__(engine, op, at)
        parts = parts or Epilogue.match(at.top[0], [(op, at)], "links")
        parts.decline_other_than_relu()
        message = "another order; our kernels take BatchNorm, Scale, ReLU in this order"
        decline_if([type(one) for one, _ in parts.links] not in ORDERS, message)
        self.parts, self.shape = parts, at.bottom[0].shape
        decline_if(len(self.shape) < MATRIX, "one axis; our kernels take 2 or more")
        alone = math.prod(self.shape) == self.shape[1]
        message = "one value of each channel, whose gradient is 0; rounded products would be left"
        decline_if(alone and parts.uses_batch_stats, message)
        norms = [(one, own) for one, own in parts.links if isinstance(one, ops.BatchNorm)]
        self.norm = norms[0] if norms else None
        self.learned: list[tuple[int, Operand, bool]] = []
        for one, own in parts.links:
            if isinstance(one, ops.Scale | ops.Bias):
                first = int(isinstance(one, ops.Bias))  # no factors, but offsets
                wanted = zip(own.params, own.param_propagate_down, strict=True)
                self.learned = [(i, *pair) for i, pair in enumerate(wanted, first)]
        params = self.norm[1].params if self.norm is not None and parts.uses_batch_stats else ()
        self.averages = parameters(params, StateArg)
        self.in_place = at.top[0] is at.bottom[0]
        self.statistics: Derived | None = None

    def prepare(self) -> None:
        engine, expected = self.engine, self.expected(self.at.bottom[0])
        self.layout, self.kernel = first_suitable(layouts.candidates(expected), self._kernel)
        self.channels = layouts.plain((self.shape[1],))
        self.factors: list[Argument] = [_constant(self.channels, number) for number in (1.0, 0.0)]
        for place, blob, _ in self.learned:
            self.factors[place] = InputArg(blob, self.channels)
        self.kept_bytes = 3 * self.kernel.mean.nbytes
        source, self.target = self.in_and_out(self.layout, self.layout)
        if self.rounds and not self.parts.uses_batch_stats:  # factors, with what follows
            source = PreferredArg(source.blob, self.layout, layouts.rounded(self.layout))
        self.input: InputArg = source
        if self.in_place and self.at.backward:
            kept = self.at.saved("input", self.shape).blob
            self.input, self.kept = InputArg(kept, self.layout), OutputArg(kept, self.layout)
            self.forward_calls = [KernelCall(engine, self._keep_input, source, code="")]
        arguments = self.input, self.target, *self.factors, *self.averages
        self.forward_calls.append(KernelCall(engine, self.kernel, *arguments))
        if self.norm is not None and self.kernel.stored:
            take = partial(call_recorder.call, self._take_statistics)
            self.statistics = Derived(take, *parameters(self.norm[1].params, InputArg))

    def _kernel(self, layout: Layout) -> Normalization:
        """Return the kernel, with the numbers of a Scale alone."""
        tuning = kernel_tuning(self.engine, "norm")
        images = suitable_images(layout, tuning.width, takes)
        n, c, *size = images.shape
        if size == [1, 1] and (images.fits(tuning.width) or c == 1):  # all images as pixels of one
            images = Images((1, c, 1, n), n * c, n * c, images.image_stride)
        relu, stored = self.parts.then is not None, not self.parts.uses_batch_stats
        eps = 0.0 if self.norm is None else self.norm[0].eps
        averages = len(self.averages)
        kernel = Normalization(images, eps, tuning, relu=relu, stored=stored, averages=averages)
        if self.norm is None:
            kernel.mean[...], kernel.inverse[...] = 0.0, 1.0
        else:
            kernel.shares[...] = _shares(self.norm[0], averages)
        return kernel

    # -- running -------------------------------------------------------------------------------

    def forward(self) -> None:
        if self.statistics is not None:
            self.statistics.follow()
        super().forward()

    def _keep_input(self, source: np.ndarray) -> None:
        """Save the input of a pass in place, for its gradient.

        The blob and the saved blob exchange their arrays. A pass cut short leaves both the same
        array.
        """
        memory, spare = self.target.memory, self.kept.array()
        if self.layout.plain or memory.device_array is not source:
            self.engine.reorder(source, self.layout, spare, self.layout)
            return
        if spare is source:
            spare = aligned(self.layout.size)
        self.kept.memory.exchange_private(self.layout, source)
        memory.exchange_private(self.layout, spare)

    def _take_statistics(
        self, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        """Take the running averages, divided by their weight."""
        kernel, c = self.kernel, self.shape[1]
        kernel.mean[...], kernel.variance[...] = stored_statistics(mean[:c], variance[:c], weight)
        kernel.inverse[...] = np.reciprocal(np.sqrt(kernel.variance + np.float32(kernel.eps)))

    # -- backward ------------------------------------------------------------------------------

    def prepare_backward(self) -> None:
        """Prepare the gradients, and that behind the norm.

        Layers in place after the Step leave their gradient: the gradient behind the norm takes the
        place of ``dy``, or in place that of ``dx``. That gradient is written if users can read it.
        """
        rows: list[Argument] = [ScratchArg(self.channels), ScratchArg(self.channels)]
        for place, blob, asked in self.learned:
            if asked:
                rows[place] = GradArg(blob, self.channels)
        learns = any(isinstance(row, GradArg) for row in rows)
        gradients = self.gradients(self.layout, self.layout)
        arguments = self.input, *gradients, *self.factors, *rows
        kernel = NormalizationGradient(self.kernel, learns=learns)
        self.backward_calls = [KernelCall(self.engine, kernel, *arguments)]
        self.behind: OutputArg | None = None
        if self.followers and not self.in_place:
            self.behind = OutputArg(self.at.top[0], self.layout, diff=True)
            whole = not isinstance(self.op, ops.BatchNorm)  # with factors or offsets of its own
            kernel = NormalizationGradient(
                self.kernel, behind="factors" if whole else "norm", learns=learns
            )
            self.backward_calls.append(KernelCall(self.engine, kernel, *arguments, self.behind))

    def backward(self) -> None:
        both = self.behind is not None and self.behind.memory.persistent
        self.backward_calls[-1 if both else 0]()


class MVNStep(CpuStep[ops.MVN]):
    """In the layout of the bottom, or with the channels last; in place or not."""

    backward_replayable = False
    backward_code = "numpy"

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

    def backward(self) -> None:
        at = self.at
        if not at.propagate_down[0]:
            return
        y, dy = at.top[0].read(), at.top[0].read_diff()
        level = np.mean(dy, axis=(2, 3), keepdims=True)
        slope = np.mean(dy * y, axis=(2, 3), keepdims=True)
        at.bottom[0].write_diff((dy - level - y * slope) / self._deviations[..., None, None])
