"""Convolutions from or to few channels: kernels of a Step, and their calls."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.few_inputs import DirectSchedule, plan_direct
from demitasse.backends.kernels.few_outputs import FewOutputsSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.onednn.arguments import InputArg, OutputArg
from demitasse.backends.onednn.jit_adapters.calls import (
    ChannelCall,
    ConvKernels,
    ConvOperands,
    FilterCall,
    FilterGradientCall,
    GradientOperands,
    KernelCall,
    images_in_vectors,
)
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from demitasse.backends.kernels.few_inputs import DirectConvolution
    from demitasse.backends.kernels.few_outputs import NarrowConvolution


class DirectKernels(ConvKernels):
    """Kernels of direct convolution, which reads images in C order.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        banding: How it is divided.

    Attributes:
        replaces_copies: Whether the library multiplies matrices made of copied windows here, as
            where an image has more padding than a window is wide; the kernels run then.
    """

    takes_slopes = False

    def __init__(self, engine: Engine, x: ops.Shape, banding: DirectSchedule) -> None:
        super().__init__(engine, x)
        self.banding, self.replaces_copies = banding, False
        self.pads_filters = banding.pads

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> DirectCall | None:
        if not (pool or self.banding.pads or self.replaces_copies):
            return None  # the library's own code is good
        target = operands.target
        if pool:  # without gradients; those would read it in the layout of before
            target = _as_it_is_read(operands, self.banding.width)
        y = images_in_vectors(target.layout, self.banding.width)
        if y is None:
            return None

        banding = replace(self.banding, pool=pool)
        operands = replace(operands, source=self._plain(operands.source), target=target)
        return DirectCall(self.engine, banding, operands, y)

    def weights(self, operands: GradientOperands) -> DirectGradientCall | None:
        y = images_in_vectors(operands.dy.layout, self.banding.width)
        if y is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        return DirectGradientCall(self.engine, self.banding, operands, y)


def _as_it_is_read(operands: ConvOperands, width: int) -> OutputArg:
    """Return the target in the layout that the blob's last reader prefers, if that fits."""
    target = operands.target
    wished: Any = next(reversed(operands.layouts.preferred(target.memory)), target.layout)
    if wished.shape != target.layout.shape or not images_in_vectors(wished, width):
        return target
    return OutputArg(Arg.DST, target.blob, wished)


class DirectCall(FilterCall):
    """A direct convolution of few channels.

    Args:
        engine: The engine.
        banding: The convolution, and the pooling after it.
        operands: Its operands; the source is in C order.
        target: Where the output lies.
    """

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: ConvOperands, target: Images
    ) -> None:
        self._banding, self._target = banding, target
        super().__init__(engine, operands, banding.code, self._pass_weights, self._pass_offsets)

    @cached_property
    def _kernel(self) -> DirectConvolution:
        from demitasse.backends.kernels.few_inputs import DirectConvolution

        return DirectConvolution(self._banding, self._target, self.operands.then)

    def _pass_offsets(self, offsets: np.ndarray) -> None:
        self._kernel.take_offsets(offsets)

    def __call__(self) -> None:
        source, target = self.operands.source.array(), self.operands.target.array()
        self._follow()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, target, scratch)


class DirectGradientCall(FilterGradientCall):
    """The gradients of weights and bias of a direct convolution.

    Args:
        engine: The engine.
        banding: The convolution.
        operands: Its operands; the source is in C order.
        dy: Where the output's gradient lies.
    """

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: GradientOperands, dy: Images
    ) -> None:
        from demitasse.backends.kernels.few_inputs import DirectGradient

        self._kernel = DirectGradient(banding, dy, bias=operands.bias is not None)
        super().__init__(engine, operands, banding.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.sums.nbytes

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(source, dy, weight, bias, scratch)


class NarrowKernels(ConvKernels):
    """Kernels of convolutions to few channels, without gradients.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        lines: How it is divided.
    """

    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, lines: FewOutputsSchedule) -> None:
        super().__init__(engine, x)
        self.lines = lines

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> NarrowCall | None:
        lines = self.lines
        source = self._as_it_comes(operands, lines.width)
        x = images_in_vectors(source.layout, lines.width)
        if x is None or pool:
            return None

        target = OutputArg(Arg.DST, operands.target.blob, self.engine.plain(lines.y))
        operands = replace(operands, source=source, target=target)
        return NarrowCall(self.engine, lines, operands, x)


class NarrowCall(ChannelCall):
    """A convolution to few channels.

    Args:
        engine: The engine.
        lines: The convolution.
        operands: Its operands; the target is in C order.
        x: Where those lie that are read.
    """

    def __init__(
        self, engine: Engine, lines: FewOutputsSchedule, operands: ConvOperands, x: Images
    ) -> None:
        self._lines, self._x = lines, x
        super().__init__(engine, operands, lines.code)

    @cached_property
    def _kernel(self) -> NarrowConvolution:
        from demitasse.backends.kernels.few_outputs import NarrowConvolution

        return NarrowConvolution(self._lines, self._x, self.operands.then)


@dataclass(frozen=True)
class TransposedKernels:
    """Name of the code that computes the gradients.

    Its methods return what a Step runs, or None where the library's code is to run.

    Attributes:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
    """

    engine: Engine
    banding: DirectSchedule

    def data(self, operands: ConvOperands) -> TransposedCall | None:
        """Return the gradient of the input."""
        images = images_in_vectors(operands.target.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        return TransposedCall(self.engine, self.banding, operands, images)

    def weights(self, operands: GradientOperands) -> TransposedGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        images = images_in_vectors(operands.source.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, dy=self._plain(operands.dy))
        return TransposedGradientCall(self.engine, self.banding, operands, images)

    def _plain(self, argument: InputArg) -> InputArg:
        """Return an argument for the same gradient in C order, which direct convolution reads."""
        return InputArg(Arg.DIFF_DST, argument.blob, self.engine.plain(self.banding.x), diff=True)


def transposed_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape
) -> TransposedKernels | None:
    """Return what computes the gradients of a convolution to few channels; None for others.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
    """
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, op.kernel, strict=True))
    pad = tuple(r - p for r, p in zip(reach, op.pad, strict=True))
    if op.group > 1 or op.after or set(op.stride) != {1} or min(pad) < 0:
        return None
    turned = ops.Conv(
        dtype=op.dtype, bottom=y, top=x, axis=1, kernel=op.kernel, stride=op.stride, pad=pad,
        dilation=op.dilation, group=1, bias=False,
    )  # fmt: skip
    with suppress(Declined):
        engine.tuning.require("transposed")
        return TransposedKernels(engine, plan_direct(turned, y, x, engine.tuning.as_set(wanted())))
    return None


class TransposedCall(DirectCall):
    """The gradient of the input."""

    def _pass_weights(self, weights: np.ndarray) -> None:
        c, m, *kernel = _shape(self._banding)
        there = weights.reshape(m, c, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        super()._pass_weights(np.ascontiguousarray(there).reshape(-1))


class TransposedGradientCall(KernelCall):
    """The gradients of weights and bias.

    Args:
        engine: The engine.
        banding: The convolution from the output's gradient to the input's.
        operands: Its operands; the output's gradient is in C order.
        images: Where the input lies.
    """

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: GradientOperands, images: Images
    ) -> None:
        from demitasse.backends.kernels.few_inputs import DirectGradient

        self.operands, self._banding = operands, banding
        self._kernel = DirectGradient(banding, images, bias=False)
        self._transposed = aligned(banding.y[1] * banding.taps)
        super().__init__(engine, operands.arguments, banding.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.sums.nbytes + self._transposed.nbytes

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        [scratch] = self.engine.workspaces(self._kernel.scratch_size)
        self._kernel(dy, source, self._transposed, None, scratch)
        command_queue.enqueue(self._write_transposed, (weight,), None)
        operands.weight.done()
        if operands.bias:
            command_queue.enqueue(self._sum, (dy, operands.bias.array()), None)
            operands.bias.done()

    def _write_transposed(self, weight: np.ndarray) -> None:
        """Write the gradient of the filters, which are in each other's place and turned round."""
        c, m, *kernel = _shape(self._banding)
        there = self._transposed.reshape(c, m, *kernel)[:, :, ::-1, ::-1].swapaxes(0, 1)
        weight[: there.size].reshape(there.shape)[...] = there

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        """Write the gradient of the bias."""
        n, m, *places = self._banding.x
        each = np.add.reduce(dy[: n * m * places[0] * places[1]].reshape(n, m, -1), axis=2)
        np.add.reduce(each, axis=0, out=bias[:m])


def _shape(banding: DirectSchedule) -> tuple[int, ...]:
    """Return the shape of the turned filters: (C, M, *kernel), of C channels of the input."""
    return banding.y[1], banding.x[1], *banding.op.kernel
