"""Channels of each image times a number of its own: gates, as nets have that weigh their channels.

A Scale by a second bottom (N, C), or an Axpy, which adds other images too.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import Arg, Argument, InputArg, OutputArg, scratch_argument
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import KernelCall, kernel_tuning
from demitasse.backends.cpu.jit_adapters.norms import plane_images
from demitasse.backends.cpu.jit_adapters.unary import first_suitable
from demitasse.backends.cpu.layout import Layout
from demitasse.backends.cpu.step import CpuStep
from demitasse.backends.step import Operand, Operands, decline_if


class _ChannelScaleStep(CpuStep[ops.Axpy | ops.Scale]):
    """y = x * gate + other, in the layout of x.

    Args:
        x: The images, (N, C, *spatial).
        gate: A number for each channel of each image.
    """

    def __init__(
        self,
        engine: Engine,
        op: ops.Axpy | ops.Scale,
        at: Operands,
        *,
        x: Operand,
        gate: Operand,
        other: Operand | None = None,
    ) -> None:
        super().__init__(engine, op, at)
        message = "a gradient is wanted of gates whose images the result overwrites"
        decline_if(at.backward and at.top[0] is x, message)
        self._x, self._gate, self._other = x, gate, other

    def prepare(self) -> None:
        from demitasse.backends.kernels.channel_affine import Gates

        engine, other, tuning = self.engine, self._other, kernel_tuning(self.engine)
        find = partial(plane_images, width=tuning.width)
        known = layouts.candidates(self.expected(self._x))
        self._layout, self._images = first_suitable(known, find)
        gates = Gates(self._images, tuning, adds=other is not None)
        arguments: list[Argument] = [InputArg(Arg.SRC, self._x, self._layout), self._gates()]
        if other is not None:
            arguments.append(InputArg(Arg.ADDED, other, self._layout))
        arguments.append(OutputArg(Arg.DST, self.at.top[0], self._layout))

        def run(x: np.ndarray, gate: np.ndarray, *arrays: np.ndarray) -> None:
            gates(x, gate, None if other is None else arrays[0], arrays[-1])

        self.forward_calls = [KernelCall(engine, arguments, gates.code, run)]

    def _gates(self) -> InputArg:
        return InputArg(Arg.SECOND_SRC, self._gate, layouts.plain(self._gate.shape))

    def prepare_backward(self) -> None:
        from demitasse.backends.kernels.channel_affine import GateGradient

        at, layout, engine = self.at, self._layout, self.engine
        wanted = [blob for blob, asked in zip(at.bottom, at.propagate_down, strict=True) if asked]
        if not wanted:
            return
        adds = self._other in wanted and self._other is not at.top[0]

        def gradient_of(role: Arg, blob: Operand, layout: Layout) -> Argument:
            if blob in wanted:
                return OutputArg(role, blob, layout, diff=True)
            return scratch_argument(engine, role, layout)

        gradient = GateGradient(self._images, kernel_tuning(engine), adds=adds)
        arguments = [
            InputArg(Arg.SRC, self._x, layout),
            self._gates(),
            InputArg(Arg.DIFF_DST, at.top[0], layout, diff=True),
            gradient_of(Arg.DIFF_SRC, self._x, layout),
            gradient_of(Arg.DST, self._gate, layouts.plain(self._gate.shape)),
        ]
        if adds and self._other is not None:
            arguments.append(OutputArg(Arg.DST, self._other, layout, diff=True))

        def run(x: np.ndarray, gate: np.ndarray, dy: np.ndarray, *to: np.ndarray) -> None:
            gradient(x, gate, dy, (to[0], to[1], to[2] if len(to) > 2 else None))

        self.backward_calls = [KernelCall(engine, arguments, gradient.code, run)]


class AxpyStep(_ChannelScaleStep):
    """The second bottom times the first, and the third."""

    def __init__(self, engine: Engine, op: ops.Axpy, at: Operands) -> None:
        gate, x, other = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate, other=other)


class ChannelScaleStep(_ChannelScaleStep):
    """The first bottom times the second, which has the first one's first two axes."""

    def __init__(self, engine: Engine, op: ops.Scale, at: Operands) -> None:
        shape = at.bottom[0].shape
        gated = (1, math.prod(shape[:2]), math.prod(shape[2:]))
        message = "factors that are no second bottom's, one for each channel of each image"
        decline_if(len(at.bottom) == 1 or op.bias or (op.outer, op.dim, op.inner) != gated, message)
        x, gate = at.bottom
        super().__init__(engine, op, at, x=x, gate=gate)
