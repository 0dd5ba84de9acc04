"""Channels times numbers of their own: gates of each image, and PReLU.

Gates are a Scale by a second bottom (N, C), or an Axpy, which adds other images too.
"""

import math
from functools import partial

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    GradArg,
    InputArg,
    OutputArg,
    ScratchArg,
    rounded_input,
    rounded_output,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import first_suitable, suitable_images
from demitasse.backends.cpu.kernel_calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.step import CpuStep, O
from demitasse.backends.cpu.steps.elementwise import saved_copy
from demitasse.backends.kernels.channel_affine import gate_gradient, gates, slope_gradient, slopes
from demitasse.backends.kernels.planes import takes
from demitasse.backends.step import Operand, Operands, decline_if


class _PlaneStep(CpuStep[O]):
    """In whatever layout the images are."""

    def _take_layout(self, x: Operand) -> None:
        """Set the layout of all images, and the kernels' images."""
        self.tuning = kernel_tuning(self.engine)
        find = partial(suitable_images, width=self.tuning.width, takes=takes)
        self.layout, self.images = first_suitable(layouts.candidates(self.expected(x)), find)


class ChannelScaleStep(_PlaneStep[ops.Axpy | ops.Scale]):
    """y = x * gate + other, in the layout of x, (N, C, *spatial), with a gate for each channel.

    The bottoms of an Axpy are gate, x and other; those of a Scale x and the gate.
    """

    follows_bf16 = True

    def __init__(self, engine: Engine, op: ops.Axpy | ops.Scale, at: Operands) -> None:
        super().__init__(engine, op, at)
        self._other: Operand | None = None
        if isinstance(op, ops.Axpy):
            self._gate, self._x, self._other = at.bottom
        else:
            shape = at.bottom[0].shape
            gated = (1, math.prod(shape[:2]), math.prod(shape[2:]))
            message = "factors that are no second bottom's, one for each channel of each image"
            other = len(at.bottom) == 1 or op.bias or (op.outer, op.dim, op.inner) != gated
            decline_if(other or len(shape) == 1, message)
            self._x, self._gate = at.bottom
        message = "a gradient is wanted of gates whose images the result overwrites"
        decline_if(at.backward and at.top[0] is self._x, message)

    def prepare(self) -> None:
        self._take_layout(self._x)
        adds, at, top = self._other is not None, self.at.layouts, self.at.top[0]
        x, gate = self._sources()
        added = None if self._other is None else InputArg(self._other, self.layout)
        target = OutputArg(top, self.layout)
        if self.rounds:
            x = rounded_input(at, self._x, self.layout)
            added = None if added is None else rounded_input(at, added.blob, self.layout)
            target = rounded_output(at, top, self.layout, read=[x] if added is None else [x, added])
        bf16 = x.layout.bf16, added is not None and added.layout.bf16, target.layout.bf16
        kernel = gates(self.images, self.tuning, adds=adds, bf16=bf16)
        self.forward_calls = [KernelCall(self.engine, kernel, x, gate, added, target)]

    def _sources(self) -> tuple[InputArg, InputArg]:
        return InputArg(self._x, self.layout), InputArg(self._gate, layouts.plain(self._gate.shape))

    def prepare_backward(self) -> None:
        at, sources = self.at, self._sources()
        wanted = [blob for blob, asked in zip(at.bottom, at.propagate_down, strict=True) if asked]
        if not wanted:
            return
        targets = [
            OutputArg(one.blob, one.layout, diff=True) if one.blob in wanted
            else ScratchArg(one.layout)
            for one in sources
        ]  # fmt: skip
        added: OutputArg | None = None
        if self._other is not None and self._other in wanted and self._other is not at.top[0]:
            added = OutputArg(self._other, self.layout, diff=True)
        dy = InputArg(at.top[0], self.layout, diff=True)
        kernel = gate_gradient(self.images, self.tuning, adds=added is not None)
        self.backward_calls = [KernelCall(self.engine, kernel, *sources, dy, *targets, added)]


class PReLUStep(_PlaneStep[ops.PReLU]):
    """In place or not. In place, the gradient takes a copy."""

    def __init__(self, engine: Engine, op: ops.PReLU, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_if(op.shared, "one slope for all channels; our kernels take one for each")
        self.keeps_input = at.in_place and at.backward
        self.known = at.saved("input", op.bottom).blob if self.keeps_input else at.bottom[0]

    def prepare(self) -> None:
        self._take_layout(self.at.bottom[0])
        source, target = self.in_and_out(self.layout, self.layout)
        self.slopes = InputArg(self.at.params[0], layouts.plain((self.op.bottom[1],)))
        kernel = slopes(self.images, self.tuning)
        keep = [saved_copy(self.engine, source, self.known)] if self.keeps_input else []
        self.forward_calls = [*keep, KernelCall(self.engine, kernel, source, self.slopes, target)]

    def prepare_backward(self) -> None:
        row, learns = self.slopes.layout, self.at.param_propagate_down[0]
        gradient = GradArg(self.at.params[0], row) if learns else ScratchArg(row)
        ends = InputArg(self.known, self.layout), self.slopes
        arguments = *ends, *self.gradients(self.layout, self.layout), gradient
        kernel = slope_gradient(self.images, self.tuning)
        self.backward_calls = [KernelCall(self.engine, kernel, *arguments)]
