"""Kernels of convolutions: their choice, and their calls."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    GradArg,
    InputArg,
    OutputArg,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.jit_adapters.calls import (
    IMAGE_AXES,
    ConvCall,
    ConvKernels,
    ConvOperands,
    FilterGradientCall,
    Follower,
    GradientOperands,
    KernelCall,
    PackedConvCall,
    folded_images,
    images_in_vectors,
    kernel_tuning,
    volumes_of,
)
from demitasse.backends.cpu.jit_adapters.winograd import WinogradKernels
from demitasse.backends.cpu.threads import wanted
from demitasse.backends.kernels.depthwise import DepthwiseSchedule, plan_depthwise
from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution
from demitasse.backends.kernels.depthwise.gradient import DepthwiseGradients
from demitasse.backends.kernels.few_inputs import (
    DirectConvolution,
    DirectGradient,
    DirectSchedule,
    plan_direct,
)
from demitasse.backends.kernels.few_outputs import (
    FewOutputsSchedule,
    NarrowConvolution,
    plan_few_outputs,
)
from demitasse.backends.kernels.igemm import plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    IgemmFilterGradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import plan_winograd
from demitasse.backends.step import Declined, LayoutUse, decline_if
from demitasse.backends.storage import Stored

NARROW = 8
"""Floats of the narrowest vectors that kernels are made for."""


def conv_kernels(
    engine: Engine,
    op: ops.Conv,
    x: ops.Shape,
    y: ops.Shape,
    *,
    training: bool,
    storage: Stored = "float",
) -> ConvKernels:
    """Return the kernels that may run a convolution, whatever the layouts.

    Shapes: ``x``, ``y`` (N, C, *spatial).
    """
    if op.after:
        return ConvKernels(engine, x, why=("other pads after the axes than before",))
    asked = engine.tuning.as_set(wanted(), storage)
    if op.group == x[1] > 1:
        return _depthwise_kernels(engine, op, x, y, asked)
    tuning = product_tuning(op, x, y, asked)
    if not training:
        with suppress(Declined):
            return NarrowKernels(engine, x, plan_few_outputs(op, x, y, tuning))
        with suppress(Declined):
            few = replace(tuning, width=min(NARROW, tuning.width))
            filled = x[0], -(-x[1] // NARROW) * NARROW, *x[2:]
            return NarrowKernels(engine, x, plan_few_outputs(op, filled, y, few))
    if max(op.kernel, default=1) == 1:
        return ConvKernels(engine, x)
    try:
        tiling = plan_winograd(op, x, y, tuning, training=training)
        return WinogradKernels(engine, x, tiling, training=training)
    except Declined as declined:
        tiled = str(declined)
    try:
        narrow = NARROW <= y[1] < tuning.width  # vectors no wider than there are filters
        few = replace(tuning, width=NARROW) if narrow and not training else tuning
        return DirectKernels(engine, x, plan_direct(op, x, y, few), training=training)
    except Declined as declined:
        return ConvKernels(engine, x, why=(tiled, str(declined)))


def _depthwise_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning
) -> ConvKernels:
    """Return the kernels of a convolution of each channel by itself."""
    narrow = NARROW <= x[1] < tuning.width  # vectors no wider than there are channels
    fitting = replace(tuning, width=NARROW) if narrow else tuning
    try:
        return DepthwiseKernels(engine, x, plan_depthwise(op, x, y, fitting))
    except Declined as declined:
        return ConvKernels(engine, x, why=(str(declined),))


def product_tuning(op: ops.Conv, x: ops.Shape, y: ops.Shape, asked: Tuning) -> Tuning:
    """Return the tuning of a convolution's products, in float32 where bfloat16 does not pay.

    Half of a panel of few filters is padding, and few channels are copied one by one.
    """
    c, m = x[1] // op.group, y[1] // op.group
    return replace(asked, bf16=asked.bf16 and c >= asked.width < m and op.group <= MOST_GROUPS)


MOST_GROUPS = 32
"""Groups at most of products in bfloat16."""

MOST_PARTS = 2048
"""Products of a convolution at most: one for each group and phase of the strides."""


class IgemmKernels(ConvKernels):
    """Any convolution over one to three axes, with the channels last.

    Images of one channel that are as wide as the filters are taken by their rows: their columns are
    then channels.

    Raises:
        Declined: It has more axes.
    """

    def __init__(
        self, engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape, storage: Stored = "float"
    ) -> None:
        super().__init__(engine, x)
        tuning = product_tuning(op, x, y, kernel_tuning(engine, storage=storage))
        self.by_rows = _by_rows(op, x)
        if self.by_rows:
            x = x[0], x[3], x[2], 1
            op = ops.Conv(**{**vars(op), "kernel": (op.kernel[0], 1), "bottom": x})
        self.op, self.schedule = op, plan_igemm(op, x, y, tuning)

    def forward(self, operands: ConvOperands) -> ConvCall:
        operands, images = self._images(operands, "source", "target")
        make = partial(
            igemm_forward, self.schedule, *images, operands.then,
            adds=operands.other is not None, by_tap=self.by_rows,
        )  # fmt: skip
        source = operands.source
        uses = [LayoutUse("preferred", source.blob, source.layout)]
        return ConvCall(self.engine, operands, self.schedule.code, make, uses)

    def data(self, operands: ConvOperands) -> ConvCall:
        parts = self.op.group * math.prod(self.schedule.step)
        message = f"{parts} products, one for each group and phase; at most {MOST_PARTS}"
        decline_if(parts > MOST_PARTS, message)
        operands, images = self._images(operands, "target", "source")
        make = partial(igemm_input_gradient, self.schedule, *images, by_tap=self.by_rows)
        return ConvCall(self.engine, operands, self.schedule.code, make)

    def weights(self, operands: GradientOperands) -> FilterGradientCall:
        operands, images = self._images(operands, "source", "dy")
        kernel = IgemmFilterGradient(self.schedule, self.op, *images)
        weight, strides = operands.weight, kernel.strides
        if self.by_rows:
            _, by_filter, by_channel, by_row, _ = strides
            strides = 0, by_filter, 0, by_row, by_channel
        shape = weight.layout.shape
        layout = layouts.strided(shape, strides[-len(shape) :])
        operands = replace(operands, weight=GradArg(weight.role, weight.blob, layout))
        code, scratch = self.schedule.code, kernel.scratch_size
        return FilterGradientCall(self.engine, operands, code, kernel, scratch=scratch)

    def _images(self, operands: Any, x: str, y: str) -> tuple[Any, tuple[Images, Images]]:
        """Return operands in layouts that are read, and the images of input and output."""
        image, maps = getattr(operands, x), volumes_of(getattr(operands, y).layout)
        if not self.by_rows:
            return operands, (volumes_of(image.layout), maps)
        n, _, rows, columns = self.x
        plain = type(image)(image.role, image.blob, layouts.plain(self.x), diff=image.diff)
        one = Images((n, columns, rows, 1), rows * columns, columns, columns, columns)
        return replace(operands, **{x: plain}), (one, maps)


FEWEST_COLUMNS = 16
"""Columns from which on images of one channel are taken by their rows."""


def _by_rows(op: ops.Conv, x: ops.Shape) -> bool:
    """Return whether filters are as wide as images of one channel."""
    if len(op.kernel) != IMAGE_AXES - 2 or x[1] != 1 or x[3] < FEWEST_COLUMNS or op.after:
        return False
    return (op.kernel[1], op.pad[1], op.dilation[1]) == (x[3], 0, 1)


@dataclass(eq=False)
class DepthwiseKernels(ConvKernels):
    """Convolutions of each channel by itself."""

    strips: DepthwiseSchedule

    def forward(self, operands: ConvOperands) -> ConvCall | None:
        strips, channels = self.strips, self.x[1]
        source = self._as_it_comes(operands, channels)
        ends = source, operands.target
        x, y = (images_in_vectors(argument.layout, channels) for argument in ends)
        if x is None or y is None:
            return None

        make = partial(DepthwiseConvolution, strips, x, y, operands.then)
        return ConvCall(self.engine, replace(operands, source=source), strips.code, make)

    def gradients(
        self, weights: GradientOperands, data: ConvOperands, wanted: tuple[bool, bool]
    ) -> KernelCall | None:
        ends = weights.source, weights.dy, data.target
        x, y, dx = (images_in_vectors(each.layout, self.x[1]) for each in ends)
        if x is None or y is None or dx is None:
            return None

        bias = wanted[0] and weights.bias is not None
        kernel = DepthwiseGradients(
            self.strips, (x, y, dx), weights=wanted[0], data=wanted[1], bias=bias
        )
        return DepthwiseGradientCall(self.engine, self.strips.code, kernel, weights, data, wanted)


class DepthwiseGradientCall(KernelCall):
    """The gradients of weights and bias, of the input, or of all, as ``wanted``."""

    def __init__(
        self, engine: Engine, code: str, kernel: DepthwiseGradients, weights: GradientOperands,
        data: ConvOperands, wanted: tuple[bool, bool],
    ) -> None:  # fmt: skip
        self._kernel, self._operands, self._wanted = kernel, weights, wanted
        self._target, self._weight = data.target, data.weight
        self._filters = Follower(kernel.update)
        arguments = weights.arguments if wanted[0] else (weights.dy,)
        if wanted[1]:
            arguments = *arguments, data.target
        held = kernel.filters.nbytes + kernel.sums.nbytes
        super().__init__(engine, arguments, code, held=held)

    def __call__(self) -> None:
        operands, (weights, data) = self._operands, self._wanted
        dy = operands.dy.array()
        source = operands.source.array() if weights else dy
        target = self._target.array() if data else None
        if data:
            self._filters.follow(self._weight.data_memory)
        if not weights:
            self._kernel(source, dy, target)
            return
        bias = operands.bias.array() if operands.bias else None
        self._kernel(source, dy, target, operands.weight.array(), bias)
        operands.done()


@dataclass(eq=False)
class NarrowKernels(ConvKernels):
    """Convolutions to few channels, without gradients; zeros fill the last vector of channels."""

    lines: FewOutputsSchedule

    def forward(self, operands: ConvOperands) -> ConvCall | None:
        lines = self.lines
        fills = lines.x[1] != self.x[1]
        if fills:
            blocks = layouts.channel_blocks(self.x, NARROW)
            source, x = InputArg("src", operands.source.blob, blocks), folded_images(blocks)
        else:
            source = self._as_it_comes(operands, lines.width)
            x = images_in_vectors(source.layout, lines.width)
        if x is None:
            return None

        target = OutputArg("dst", operands.target.blob, layouts.plain(lines.y))
        operands = replace(operands, source=source, target=target)

        make = partial(NarrowConvolution, lines, x, operands.then)
        call = _FilledCall if fills else ConvCall
        return call(self.engine, operands, lines.code, make)


class _FilledCall(ConvCall):
    """A convolution of channels that zeros fill up to whole vectors."""

    def _take(self, weights: np.ndarray) -> None:
        lines, channels = self.kernel.schedule, self.operands.source.layout.shape[1]
        shape = lines.y[1], lines.x[1], math.prod(lines.op.kernel)
        filled = np.zeros(shape, np.float32)
        real = weights[: shape[0] * channels * shape[2]]
        filled[:, :channels] = real.reshape(shape[0], channels, shape[2])
        self.kernel.update(filled.reshape(-1))


class DirectKernels(ConvKernels):
    """Direct convolutions of few input channels, which read images in C order."""

    def __init__(
        self, engine: Engine, x: ops.Shape, banding: DirectSchedule, *, training: bool
    ) -> None:
        super().__init__(engine, x)
        self.banding, self._training = banding, training

    def forward(self, operands: ConvOperands) -> ConvCall | None:
        width, target = self.banding.width, operands.target
        here = target.layout
        last: Any = here
        if not self._training:
            last = next(reversed(operands.layouts.preferred(target.memory)), here)
        y = images_in_vectors(last, width) if last.shape == here.shape else None
        if y is None:
            y = images_in_vectors(here, width)
        else:
            target = OutputArg("dst", target.blob, last)
        if y is None:
            return None

        operands = replace(operands, source=self._plain(operands.source), target=target)
        make = partial(DirectConvolution, self.banding, y, operands.then)
        return PackedConvCall(self.engine, operands, self.banding.code, make)

    def weights(self, operands: GradientOperands) -> FilterGradientCall | None:
        banding = self.banding
        y = images_in_vectors(operands.dy.layout, banding.width)
        if y is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        kernel = DirectGradient(banding, y, bias=operands.bias is not None)
        sizes = {"scratch": kernel.scratch_size, "held": kernel.sums.nbytes}
        return FilterGradientCall(self.engine, operands, banding.code, kernel, **sizes)


@dataclass(frozen=True)
class TransposedKernels:
    """Direct convolution of the output's gradient, for gradients of convolutions to few channels.

    Its methods return what a Step runs, or None where other kernels are to run.

    Attributes:
        banding: The convolution from the output's gradient to the input's.
    """

    engine: Engine
    banding: DirectSchedule

    def data(self, operands: ConvOperands) -> ConvCall | None:
        """Return the gradient of the input."""
        images = images_in_vectors(operands.target.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, source=self._plain(operands.source))
        make = partial(DirectConvolution, self.banding, images, operands.then)
        return TransposedCall(self.engine, operands, self.banding.code, make)

    def weights(self, operands: GradientOperands) -> TransposedGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        images = images_in_vectors(operands.source.layout, self.banding.width)
        if images is None:
            return None

        operands = replace(operands, dy=self._plain(operands.dy))
        return TransposedGradientCall(self.engine, self.banding, operands, images)

    def _plain(self, argument: InputArg) -> InputArg:
        """Return an argument for the same gradient in C order, which direct convolution reads."""
        return InputArg("diff_dst", argument.blob, layouts.plain(self.banding.x), diff=True)


def transposed_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape
) -> TransposedKernels | None:
    """Return what computes the gradients of a convolution to few channels; None for others.

    Shapes: ``x``, ``y`` (N, C, *spatial).
    """
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, op.kernel, strict=True))
    pad = tuple(r - p for r, p in zip(reach, op.pad, strict=True))
    if op.group > 1 or op.after or set(op.stride) != {1} or min(pad) < 0:
        return None
    flipped = ops.Conv(
        dtype=op.dtype, bottom=y, top=x, axis=1, kernel=op.kernel, stride=op.stride, pad=pad,
        dilation=op.dilation, group=1, bias=False,
    )  # fmt: skip
    with suppress(Declined):
        engine.tuning.require("transposed")
        return TransposedKernels(engine, plan_direct(flipped, y, x, engine.tuning.as_set(wanted())))
    return None


def _flipped(filters: np.ndarray, banding: DirectSchedule, *, back: bool = False) -> np.ndarray:
    """Return filters (M, C, *kernel) as (C, M, *kernel), turned round; or ``back``."""
    axes = (banding.y[1], banding.x[1]) if back else (banding.x[1], banding.y[1])
    by_filter = filters.reshape(*axes, *banding.op.kernel)
    return by_filter[:, :, ::-1, ::-1].swapaxes(0, 1)


class TransposedCall(PackedConvCall):
    """The gradient of the input."""

    def _take(self, weights: np.ndarray) -> None:
        flipped = _flipped(weights, self.kernel.banding)
        self.kernel.update(np.ascontiguousarray(flipped).reshape(-1))


class TransposedGradientCall(KernelCall):
    """The gradients of weights and bias; the output's gradient is in C order."""

    def __init__(
        self, engine: Engine, banding: DirectSchedule, operands: GradientOperands, images: Images
    ) -> None:
        self.operands, self._banding = operands, banding
        self._kernel = DirectGradient(banding, images, bias=False)
        self._flipped = aligned(banding.y[1] * banding.taps)
        scratch, held = self._kernel.scratch_size, self._kernel.sums.nbytes + self._flipped.nbytes
        super().__init__(engine, operands.arguments, banding.code, scratch=scratch, held=held)

    def __call__(self) -> None:
        operands = self.operands
        source, dy = operands.source.array(), operands.dy.array()
        weight = operands.weight.array()
        self._kernel(dy, source, self._flipped, None, *self.scratch())
        call_recorder.call(self._write, weight)
        operands.weight.done()
        if operands.bias:
            call_recorder.call(self._sum, dy, operands.bias.array())
            operands.bias.done()

    def _write(self, weight: np.ndarray) -> None:
        """Write the gradient of the filters."""
        filters = _flipped(self._flipped, self._banding, back=True)
        weight[: filters.size].reshape(filters.shape)[...] = filters

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        """Write the gradient of the bias."""
        n, m, *places = self._banding.x
        each = np.add.reduce(dy[: n * m * places[0] * places[1]].reshape(n, m, -1), axis=2)
        np.add.reduce(each, axis=0, out=bias[:m])
