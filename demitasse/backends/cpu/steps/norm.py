"""BatchNorm, Scale and MVN.

One kernel computes y = (x - mean) / sqrt(variance + eps) * scale + shift, and perhaps ReLU. A Scale
alone is a normalisation with mean 0 and divisor 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, GradArg, InputArg, OutputArg
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.norms import (
    NormCall,
    NormGradientCall,
    NormParts,
    decline_other_scales,
    norm_kernel,
    plane_norm_kernel,
    stored_statistics,
)
from demitasse.backends.cpu.jit_adapters.unary import first_suitable, map_call
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.step import Operands, decline_if

O = TypeVar("O", bound=ops.Op)  # noqa: E741 - the type of the operation

PARAMETER_GRADIENTS = (Arg.DIFF_SCALE, Arg.DIFF_SHIFT)


MATRIX = 2
"""Axes from which on there are channels."""


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
        self.channels = layouts.plain((parts.shape[1],))
        self.in_place = self.at.top[0] is self.at.bottom[0]
        self.spare: np.ndarray | None = None
        self.input: np.ndarray | None = None
        self.versions: tuple[int, ...] = ()

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.parts.shape)
        known = layouts.candidates(expected)
        self.layout, kernel = first_suitable(known, partial(norm_kernel, self.engine, self.parts))
        self.kernel, (self.source, self.target) = kernel, self.in_and_out(self.layout, self.layout)
        self.call = NormCall(self.engine, kernel, self.source, self.target, self._factors())
        self.forward_calls = [self.call]

    def _factors(self) -> list[InputArg]:
        """Return the arguments of scale and shift."""
        if self.parts.scale is None:
            return []
        op, at = self.parts.scale
        arguments = [InputArg(Arg.SCALE, at.params[0], self.channels)]
        if op.bias:
            arguments.append(InputArg(Arg.SHIFT, at.params[1], self.channels))
        return arguments

    @property
    def workspace(self) -> int:
        spare = self.spare  # of a Step that runs; others may run in its place
        return super().workspace + (0 if spare is None else spare.nbytes)

    # -- running -------------------------------------------------------------------------------

    def forward(self) -> None:
        if self.parts.norm and not self.parts.uses_batch_stats:
            self._use_stored(*self.parts.norm)
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
            call_recorder.call(np.copyto, (kept, source[: self.layout.size]), source)
            target = self.target.array()
        self.call.run_on(kept, target)
        call_recorder.call(self._keep, (kept,), None)

    def _keep(self, source: np.ndarray) -> None:
        self.input = source

    def _use_stored(self, op: ops.BatchNorm, at: Operands) -> None:
        """Take the running averages, divided by their weight."""
        versions = tuple(blob.data_memory.version for blob in at.params)
        if versions != self.versions:
            call_recorder.mark_incomplete()
            self.versions, kernel = versions, self.kernel
            kernel.mean[...], kernel.variance[...] = stored_statistics(at.params)
            kernel.inverse[...] = np.reciprocal(np.sqrt(kernel.variance + np.float32(op.eps)))

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

        call_recorder.call(add, (), None)

    # -- backward ------------------------------------------------------------------------------

    def prepare_backward(self) -> None:
        at, layout = self.at, self.layout
        gradients: list[GradArg | None] = []
        if self.parts.scale is not None:
            own = self.parts.scale[1]
            wanted = zip(PARAMETER_GRADIENTS, own.params, own.param_propagate_down, strict=False)
            gradients = [
                GradArg(role, blob, self.channels) if asked else None
                for role, blob, asked in wanted
            ]
        bottom, behind = at.bottom[0], None
        if self.followers and not self.in_place:  # layers in place after it leave their gradient
            behind = OutputArg(Arg.DIFF_DST, at.top[0], layout, diff=True)
        self.back = NormGradientCall(
            self.call,
            None if self.in_place else InputArg(Arg.SRC, bottom, layout),
            InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True),
            OutputArg(Arg.DIFF_SRC, bottom, layout, diff=True) if at.propagate_down[0] else None,
            gradients,
            behind,
        )
        self.backward_calls = [self.back]

    def backward(self) -> None:
        if self.backward_calls and self.in_place and self.input is not None:
            self.back.run_on(self.input)
        else:
            super().backward()


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
    """In the layout of the bottom, or with the channels last or in blocks; in place or not."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.MVN, at: Operands) -> None:
        super().__init__(engine, op, at)
        message = "all channels at once, or no eps; our kernel normalises each channel with one"
        decline_if(op.across or not (op.divides and op.eps > 0), message)

    def prepare(self) -> None:
        [bottom], engine = self.at.bottom, self.engine
        decline_if(bottom.shape != self.op.shape, f"{len(bottom.shape)} axes; our kernel takes 4")
        found = self.expected(bottom)
        last, blocks = (
            layouts.innermost(bottom.shape, 1),
            layouts.channel_blocks(bottom.shape, layouts.BLOCK),
        )
        layout, kernel = first_suitable(
            (found, last, blocks), partial(plane_norm_kernel, engine, self.op.eps)
        )
        self.forward_calls = [map_call(engine, *self.in_and_out(layout, layout), kernel)]
        self._deviations = kernel.deviations

    @property
    def backward_code(self) -> str:
        return "numpy"

    def backward(self) -> None:
        at = self.at
        if not at.propagate_down[0]:
            return
        y, dy = at.top[0].read(), at.top[0].read_diff()
        planes, each = (2, 3), (*at.bottom[0].shape[:2], 1, 1)
        deviations = self._deviations[:, : each[1]]  # without those of padding
        level = np.mean(dy, axis=planes, keepdims=True)
        slope = np.mean(dy * y, axis=planes, keepdims=True)
        at.bottom[0].write_diff((dy - level - y * slope) / deviations.reshape(each))
