"""BatchNorm, Scale and MVN.

One primitive computes y = (x - mean) / sqrt(variance + eps) * scale + shift. A Scale alone is a
normalisation with mean 0 and variance 1. With batch statistics, JIT kernels compute it in fewer
passes over memory if the layout suits them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.arguments import Argument, Call, GradArg, InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import IMAGE_AXES
from demitasse.backends.onednn.jit_adapters.norms import (
    NormCall,
    NormGradientCall,
    NormParts,
    decline_other_scales,
    norm_kernel,
    plane_norm_kernel,
    stored_statistics,
)
from demitasse.backends.onednn.jit_adapters.unary import first_suitable, map_call
from demitasse.backends.onednn.library.constants import Arg, Pass
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import (
    BLOCK,
    CodeFamily,
    Description,
    candidates,
    channel_blocks,
    in_some_layout,
)
from demitasse.backends.onednn.step import Fixed, OnednnStep
from demitasse.backends.step import Declined, Operands, decline_if

if TYPE_CHECKING:
    from demitasse.backends.kernels.norm import Normalization as NormKernel

O = TypeVar("O", bound=ops.Op)  # noqa: E741 - the type of the operation

DATA_AXES = (2, 3, 4, 5)

MOST_PADDING = 1.5
"""Elements of blocks that zeros fill up, as a multiple of the real ones, up to which they pay."""

PARAMETER_GRADIENTS = (Arg.DIFF_SCALE, Arg.DIFF_SHIFT)

TINY = 2.0**-10
"""Added to 1 - 2^-10 it gives 1 exactly; it keeps padded channels, of variance 0, finite."""


class NormStep(OnednnStep[O]):
    """In place or not. In place, the input is kept by giving the blob another buffer."""

    own_backward = True
    deferrable = False

    def __init__(
        self, engine: Engine, op: O, parts: NormParts, followers: Sequence[str] = ()
    ) -> None:
        super().__init__(engine, op, parts.at)
        if len(parts.shape) not in DATA_AXES:
            message = f"{len(parts.shape)} axes; oneDNN takes 2 to 5"
            raise Declined(message)
        self.parts, self.followers = parts, followers
        self.eps = parts.norm[0].eps if parts.norm else TINY
        channels = parts.shape[1]
        self.channels = self.engine.plain((channels,))
        self.mean, self.variance = aligned(channels), aligned(channels)
        if parts.norm is None:
            self.variance[...] = 1.0 - TINY
        self.in_place = self.at.top[0] is self.at.bottom[0]
        self.spare: np.ndarray | None = None
        self.input: np.ndarray | None = None
        self.versions: tuple[int, ...] = ()
        self.jit_forward: NormCall | None = None
        self.jit_backward: NormGradientCall | None = None

    def prepare(self) -> None:
        expected = self.expected(self.at.bottom[0], self.parts.shape)
        alone = self.engine.library is None
        for layout in candidates(self.engine, expected) if alone else [expected]:
            with suppress(Declined):
                self._forward_in_kernels(norm_kernel(self.engine, self.parts, layout), layout)
                return
        message = "C order; the library adds up thousands of values one by one there"
        decline_if(expected.plain and self.parts.uses_batch_stats, message)
        fast = None if expected.plain else self._fast_layout(expected)
        if fast is not None:
            self._prepare_in(fast)
            return
        in_some_layout(self.engine, expected, self._prepare_in)

    def _fast_layout(self, expected: Layout) -> Layout | None:
        """Return the layout in which the library has code for this processor's vectors.

        None where there is none. Of channels that nothing divides only blocks that zeros fill up
        have it; the other code takes many times as long as to copy them.

        Raises:
            Declined: There is one without the ReLU, and none with it.
        """
        layouts = list(candidates(self.engine, expected))
        for parts in (self.parts, replace(self.parts, relu=False)):
            found = next((layout for layout in layouts if self._is_fast(parts, layout)), None)
            if found is not None:
                break
        message = "a ReLU with which the library's code is slow, and without it is not"
        decline_if(found is not None and parts.relu != self.parts.relu, message)
        if found is None and len(self.parts.shape) == IMAGE_AXES:
            block = BLOCK if self.engine.wide else BLOCK // 2
            blocks = channel_blocks(self.engine, self.parts.shape, block)
            if blocks.size <= MOST_PADDING * expected.size and self._is_fast(self.parts, blocks):
                return blocks
        return found

    def _is_fast(self, parts: NormParts, layout: Layout) -> bool:
        with suppress(Declined):
            return self._describe(layout, parts).family is not CodeFamily.SIMPLE
        return False

    def _prepare_in(self, layout: Layout) -> None:
        found = self._describe(layout)
        if self.at.backward:
            self._gradient(found, layout)
        self._forward(found, layout)

    def _describe(self, layout: Layout, parts: NormParts | None = None) -> Description:
        return self._description(layout, parts or self.parts)()

    def _description(self, layout: Layout, parts: NormParts) -> Callable[[], Description]:
        training = self.at.backward or parts.uses_batch_stats
        kind = Pass.TRAINING if training else Pass.INFERENCE
        numbers = layout, layout, self.eps, parts.flags
        return partial(self.engine.describe, "batch_normalization_forward", kind, *numbers)

    def _gradient(self, hint: Description, layout: Layout) -> Description:
        kind = Pass.BACKWARD if self.parts.scale else Pass.BACKWARD_DATA
        numbers = layout, layout, layout, self.eps, self.parts.flags
        return self.engine.describe("batch_normalization_backward", kind, *numbers, hint)

    def _forward(self, found: Description, layout: Layout) -> None:
        self.layout, (self.source, self.target) = layout, self.in_and_out(layout, layout)
        arguments: list[Argument] = [self.source, *self._factors(), self.target]
        handle = self.channels.handle
        self.state: list[Fixed] = [
            (Arg.MEAN, handle, self.mean),
            (Arg.VARIANCE, handle, self.variance),
        ]
        self.state += self.workspace_of(found)
        self.call = Call(self.engine, found, arguments, self.state)
        if self.at.backward:
            self.hint = found
        else:  # other Steps often take its place
            self.call.primitive.forget(self._description(layout, self.parts))
        self.forward_calls = [self.call]

    def _forward_in_kernels(self, kernel: NormKernel, layout: Layout) -> None:
        """Let kernels of our own normalise."""
        self.layout, self.mean, self.variance = layout, kernel.mean, kernel.variance
        self.source, self.target = self.in_and_out(layout, layout)
        self.jit_forward = NormCall(self.engine, kernel, self.source, self.target, self._factors())
        self.forward_calls = [self.jit_forward]

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
            self._use_stored(self.parts.norm[1])
        if self.in_place and self.at.backward:
            self._run_keeping_input()
        else:
            (self.jit_forward or self.call)()
        if self.parts.norm and self.parts.uses_batch_stats:
            self._add_to_averages(*self.parts.norm)
        if self.parts.relu and self.jit_forward is None:
            command_queue.enqueue(self._restore_lost, (), None)

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
            command_queue.enqueue(np.copyto, (kept, source[: self.layout.size]), source)
            target = self.target.array()
        if self.jit_forward is not None:
            self.jit_forward.run_on(kept, target)
        else:
            self._run_over(kept, target)
        command_queue.enqueue(self._keep, (kept,), None)

    def _run_over(self, source: np.ndarray, target: np.ndarray) -> None:
        """Run the primitive with these arrays."""
        primitive = self.call.primitive
        for argument in self.call.arguments[1:-1]:
            argument.ready()
        primitive.bind(self.source.place, source)
        primitive.bind(self.target.place, target)
        primitive.run()

    def _keep(self, source: np.ndarray) -> None:
        self.input = source

    def _restore_lost(self) -> None:
        """Write NaN where the primitive's ReLU made 0 of it.

        NaN or infinity anywhere in a channel makes its statistics so, and then all of it.
        """
        params = self.parts.scale[1].params if self.parts.scale else ()
        factors = [blob.data_memory.cpu_data()[: blob.count] for blob in params]
        # a square that overflows is looked at, too
        if all(math.isfinite(np.dot(row, row)) for row in (self.mean, self.variance, *factors)):
            return
        lost = np.isnan(self.variance)
        for row in (self.mean, *factors):
            lost |= ~np.isfinite(row)
        if lost.any():
            top = self.at.top[0]
            memory = top.data_memory
            y = memory.mutable_cpu_data()[: top.count].reshape(self.parts.shape)
            y[:, lost] = np.where(y[:, lost] > 0, y[:, lost], np.float32(np.nan))
            if not self.layout.plain:  # where calls that were noted look for it
                memory.private_data(self.layout)

    def _use_stored(self, at: Operands) -> None:
        """Take the running averages, divided by their weight."""
        blobs = at.params
        versions = tuple(blob.data_memory.version for blob in blobs)
        if versions != self.versions:
            command_queue.mark_incomplete()
            self.versions = versions
            self.mean[...], self.variance[...] = stored_statistics(blobs)

    def _add_to_averages(self, op: ops.BatchNorm, at: Operands) -> None:
        """Add the batch's statistics to the running sums, the variance without bias."""
        rows = math.prod(op.bottom) // op.bottom[1]
        correction = rows / (rows - 1) if rows > 1 else 1.0
        totals = [blob.data_memory.mutable_cpu_data() for blob in at.params]

        def add() -> None:
            values = (self.mean, self.variance * np.float32(correction), np.float32(1.0))
            for total, value in zip(totals, values, strict=True):
                np.multiply(total, np.float32(op.fraction), out=total)
                total[...] += value

        command_queue.enqueue(add, (), None)

    # -- backward ------------------------------------------------------------------------------

    def prepare_backward(self) -> None:
        if self.jit_forward is not None:
            self._backward_in_kernels(self.jit_forward)
            return
        at, layout = self.at, self.layout
        found = self._gradient(self.hint, layout)
        bottom = at.bottom[0]
        arguments: list[Argument] = [InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True)]
        if not self.in_place:
            arguments.append(InputArg(Arg.SRC, bottom, layout))
        fixed = list(self.state)
        if self.parts.scale is not None:
            op, own = self.parts.scale
            arguments.append(InputArg(Arg.SCALE, own.params[0], self.channels))
            wanted = own.param_propagate_down
            places = [(Arg.DIFF_SCALE, 0), *([(Arg.DIFF_SHIFT, 1)] if op.bias else [])]
            for role, index in places:
                if wanted[index]:
                    argument = GradArg(role, own.params[index], self.channels)
                    arguments.append(argument)
                else:
                    fixed.append((role, self.channels.handle, aligned(self.channels.size)))
        if at.propagate_down[0]:
            arguments.append(OutputArg(Arg.DIFF_SRC, bottom, layout, diff=True))
        else:
            fixed.append((Arg.DIFF_SRC, layout.handle, aligned(layout.size)))
        if self.in_place:
            fixed.append((Arg.SRC, layout.handle, aligned(1)))  # bound to the kept input each time
        self.back = Call(self.engine, found, arguments, fixed)
        self.backward_calls = [self.back]

    def _backward_in_kernels(self, forward: NormCall) -> None:
        """Let kernels of our own compute the gradients."""
        at, layout, gradients = self.at, self.layout, []
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
        self.jit_backward = NormGradientCall(
            forward,
            None if self.in_place else InputArg(Arg.SRC, bottom, layout),
            InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True),
            OutputArg(Arg.DIFF_SRC, bottom, layout, diff=True) if at.propagate_down[0] else None,
            gradients,
            behind,
        )
        self.backward_calls = [self.jit_backward]

    def backward(self) -> None:
        if not self.backward_calls:
            return
        if self.jit_backward is not None:
            if self.in_place and self.input is not None:
                self.jit_backward.run_on(self.input)
            else:
                self.jit_backward()
            return
        call = self.back
        if self.in_place and self.input is not None:
            call.primitive.bind(call.primitive.place(Arg.SRC), self.input)
        call()


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


class MVNStep(OnednnStep[ops.MVN]):
    """In the layout of the bottom, or with the channels last or in blocks; in place or not."""

    backward_replayable = False

    def __init__(self, engine: Engine, op: ops.MVN, at: Operands) -> None:
        super().__init__(engine, op, at)
        message = "all channels at once, or no eps; our kernel normalises each channel with one"
        decline_if(op.across or not (op.divides and op.eps > 0), message)

    def prepare(self) -> None:
        [bottom], engine = self.at.bottom, self.engine
        decline_if(bottom.shape != self.op.shape, f"{len(bottom.shape)} axes; our kernel takes 4")
        found = engine.whole(self.expected(bottom))
        last, blocks = (
            engine.innermost_layout(bottom.shape, 1),
            channel_blocks(engine, bottom.shape, BLOCK),
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
