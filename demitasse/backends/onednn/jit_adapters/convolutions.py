"""Kernels of convolutions: their choice, and their calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from demitasse.backends import ops
from demitasse.backends.arrays import aligned
from demitasse.backends.kernels.depthwise import DepthwiseSchedule, plan_depthwise
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
from demitasse.backends.kernels.grouped import (
    GroupedGradient,
    GroupedSchedule,
    InputGradient,
    group_convolution,
    plan_grouped,
)
from demitasse.backends.kernels.igemm import PANEL, IgemmSchedule, plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    IgemmFilterGradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import command_queue
from demitasse.backends.kernels.separable import plan_separable
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import plan_winograd
from demitasse.backends.onednn.arguments import (
    BlobArg,
    GradArg,
    InputArg,
    OutputArg,
    written_layout,
)
from demitasse.backends.onednn.jit_adapters.calls import (
    ConvCall,
    ConvKernels,
    ConvOperands,
    FilterGradientCall,
    GradientOperands,
    KernelCall,
    PackedConvCall,
    images_in_vectors,
    images_of,
    rectifier_of,
)
from demitasse.backends.onednn.jit_adapters.winograd import WinogradKernels
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import BLOCK, channel_blocks
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined, Layouts, LayoutUse, decline_if
from demitasse.backends.storage import Stored

NARROW = 8
"""Floats of the narrowest vectors that kernels are made for."""

LARGE = 3 << 19
"""Floats of a stack of images from which on most of them come from memory."""


def conv_kernels(
    engine: Engine,
    op: ops.Conv,
    x: ops.Shape,
    y: ops.Shape,
    followers: Sequence[ops.Op] = (),
    *,
    training: bool,
    storage: Stored = "float",
) -> ConvKernels:
    """Return the kernels that may run a convolution, whatever the layouts.

    Shapes: ``x``, ``y`` (N, C, *spatial).
    """
    if op.after:
        return ConvKernels(engine, x, why=("other pads after the axes than before",))
    asked, c, m = engine.tuning.as_set(wanted(), storage), x[1] // op.group, y[1] // op.group
    if op.group == x[1] > 1 and (engine.library is None or max(op.kernel) > 1):
        return _depthwise_kernels(engine, op, x, y, asked, followers, training=training)
    # half of a panel of few filters is padding, and few channels are copied one by one
    tuning = replace(asked, bf16=asked.bf16 and c >= asked.width < m and op.group <= MOST_GROUPS)
    groups = None
    if not training:
        with suppress(Declined):
            return NarrowKernels(engine, x, plan_few_outputs(op, x, y, tuning))
    if max(op.kernel) == 1:
        return _general_kernels(engine, op, x, y, tuning, training=training)
    with suppress(Declined):
        decline_if(tuning.bf16, "products in bfloat16 are faster")
        parts = plan_grouped(op, x, y, tuning)
        groups = parts if parts.shared or not training else None
    if groups is not None and groups.beats_tiles:
        return GroupedKernels(engine, x, groups)
    try:
        tiling = plan_winograd(op, x, y, tuning, training=training)
        return WinogradKernels(engine, x, tiling, training=training)
    except Declined as declined:
        tiled = str(declined)
    if groups is not None:
        return GroupedKernels(engine, x, groups)
    try:
        return DirectKernels(engine, x, plan_direct(op, x, y, tuning), training=training)
    except Declined as declined:
        why = tiled, str(declined)
    return _general_kernels(engine, op, x, y, tuning, why, training=training)


def _depthwise_kernels(
    engine: Engine, op: ops.Conv, x: ops.Shape, y: ops.Shape, tuning: Tuning,
    followers: Sequence[ops.Op], *, training: bool,
) -> ConvKernels:  # fmt: skip
    """Return the kernels of a convolution of each channel by itself."""
    narrow = NARROW <= x[1] < tuning.width  # vectors no wider than there are channels
    fitting = replace(tuning, width=NARROW) if narrow else tuning
    why = "gradients, for which the library's code is faster"
    try:
        if not training:
            strips = plan_depthwise(op, x, y, fitting)
            return DepthwiseKernels(engine, x, strips, joined=_joins(op, followers, tuning))
    except Declined as declined:
        why = str(declined)
    if engine.library is None:
        with suppress(Declined):
            return GroupedKernels(engine, x, plan_grouped(op, x, y, fitting))
    return ConvKernels(engine, x, why=(why,))


MOST_GROUPS, FEWEST_CHANNELS = 32, 8
"""Groups at most, and channels of a group at least, that are products of matrices."""

MOST_WASTE = 1.1
"""Pixels that are computed, as a multiple of those there are, up to which it pays."""

MOST_SPARE = 5
"""Superfluous products for each number up to which a product within limits pays: the library
computes fewer, but has a pass over memory after them."""


def _general_kernels(
    engine: Engine,
    op: ops.Conv,
    x: ops.Shape,
    y: ops.Shape,
    tuning: Tuning,
    why: tuple[str, ...] = (),
    *,
    training: bool,
) -> ConvKernels:
    """Return the kernels of any convolution: the library is better where it has code."""
    c, m = x[1] // op.group, y[1] // op.group
    everywhere = engine.library is None or tuning.bf16
    pixels = max(op.kernel) == 1 and not training
    if (everywhere or pixels) and op.group <= MOST_GROUPS and min(c, m) >= FEWEST_CHANNELS:
        with suppress(Declined):
            schedule = plan_igemm(op, x, y, tuning)
            return IgemmKernels(engine, x, op, schedule, everywhere=everywhere)
    return ConvKernels(engine, x, why=why)


def _joins(op: ops.Conv, followers: Sequence[ops.Op], tuning: Tuning) -> bool:
    """Return whether a depthwise convolution is fused with a 1x1 convolution that follows."""
    for follower in followers:
        if isinstance(follower, ops.Conv):
            with suppress(Declined):
                return plan_separable(op, follower, tuning) is not None
            return False
        if isinstance(follower, ops.Activation):
            try:
                rectifier_of(follower)
            except Declined:
                return False
        elif not isinstance(follower, (ops.BatchNorm, ops.Scale)):
            return False
    return False


@dataclass(eq=False)
class IgemmKernels(ConvKernels):
    """Convolutions of many channels, where the library is missing, slower, or has no code.

    Attributes:
        everywhere: False where the library's code is better, unless it lacks what follows.
    """

    op: ops.Conv
    schedule: IgemmSchedule
    everywhere: bool = field(kw_only=True)
    takes_slopes = False

    @property
    def channels_last(self) -> bool:  # type: ignore[override]
        """True if the library's code does not decide."""
        return self.everywhere

    @property
    def adds(self) -> bool:  # type: ignore[override]
        return self.schedule.tuning.bf16

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        images = self._images(operands.source, operands.target)
        if pool or images is None or not (self.everywhere or self._gains(operands)):
            return None
        schedule = replace(self.schedule, adds=operands.added is not None)
        make = partial(igemm_forward, schedule, *images, None, operands.then)
        return ConvCall(self.engine, operands, self.schedule.code, make)

    def data(self, operands: ConvOperands) -> ConvCall | None:
        images = self._images(operands.target, operands.source)
        if not self.everywhere or images is None:
            return None
        make = partial(igemm_input_gradient, self.schedule, *images)
        return ConvCall(self.engine, operands, self.schedule.code, make)

    def weights(self, operands: GradientOperands) -> FilterGradientCall | None:
        images = self._images(operands.source, operands.dy)
        if not self.everywhere or images is None:
            return None
        kernel = IgemmFilterGradient(self.schedule, self.op, *images)
        weight = operands.weight
        shape = weight.layout.shape
        layout = self.engine.strided_layout(shape, kernel.strides[-len(shape) :])
        operands = replace(operands, weight=GradArg(weight.role, weight.blob, layout))
        code, scratch = self.schedule.code, kernel.scratch_size
        return FilterGradientCall(self.engine, operands, code, kernel, scratch=scratch)

    def _gains(self, operands: ConvOperands) -> bool:
        """Return whether the library lacks what follows, which takes a pass over memory there."""
        one, part = self.schedule, operands.target.layout.channel_slice
        in_part = part is not None and not part.is_whole
        if "igemm" in one.tuning.always:
            return in_part or operands.then.limited
        few = one.channels < one.width or one.filters < PANEL * one.width
        limits_pay = operands.then.limited and one.spare <= MOST_SPARE
        return (in_part or limits_pay) and one.waste <= MOST_WASTE and not few

    def _images(self, x: BlobArg, y: BlobArg) -> tuple[Images, Images] | None:
        """Return the images of input and output; None where channels lie in blocks."""
        one, other = images_of(x.layout), images_of(y.layout)
        if one is None or other is None:
            return None
        last = one.block == one.shape[1] and other.block == other.shape[1]
        return (one, other) if last else None


@dataclass(eq=False)
class DepthwiseKernels(ConvKernels):
    """Convolutions of each channel by itself, without gradients.

    Attributes:
        joined: True if it is fused with the convolution behind it.
    """

    strips: DepthwiseSchedule
    joined: bool = field(kw_only=True)

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        strips = self.strips
        source = self._as_it_comes(operands, strips.width)
        target = self._in_blocks(operands)
        x, y = (images_in_vectors(argument.layout, strips.width) for argument in (source, target))
        if x is None or y is None or pool:
            return None

        uses = []
        if target is not operands.target:
            uses.append(LayoutUse("offered", target.blob, target.layout))
        if self.joined and self.x[0] == 1 and (blocks := self._preferred_blocks()):
            uses.append(LayoutUse("preferred", source.blob, blocks))
        operands = replace(operands, source=source, target=target)

        def make() -> Any:
            from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution

            return DepthwiseConvolution(strips, x, y, operands.then)

        return ConvCall(self.engine, operands, strips.code, make, uses)

    def _preferred_blocks(self) -> Layout | None:
        """Return blocks of a vector of channels if the image is best read in them.

        Rows of a block stay in the first cache, where the same channels of pixels with all theirs
        would compete for a few lines of it.
        """
        with suppress(Declined):
            blocks = channel_blocks(self.engine, self.x, BLOCK)
            images = images_of(blocks)
            if images is not None and self.strips.reads_blocks(images):
                return blocks
        return None

    def _in_blocks(self, operands: ConvOperands) -> OutputArg:
        """Return the target in blocks of channels, if the blob is large; else the target.

        The convolution of single pixels that follows goes over pixels with all their channels
        several times, each time for other filters, and over blocks once. Where they come from
        memory that takes longer; for the kernel one is like the other.
        """
        argument = operands.target
        shape = argument.layout.shape
        if not self.engine.wide or shape[1] % BLOCK or math.prod(shape) < LARGE or self.joined:
            return argument
        if argument.layout.channel_slice is not None:  # it has its place in what a Concat joins
            return argument
        with suppress(Declined):
            blocks = channel_blocks(self.engine, shape, BLOCK)
            if operands.layouts.accepted(argument.memory, blocks):
                return OutputArg(Arg.DST, argument.blob, blocks)
        return argument


@dataclass(eq=False)
class NarrowKernels(ConvKernels):
    """Convolutions to few channels, without gradients."""

    lines: FewOutputsSchedule
    gains_more = True

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        lines = self.lines
        source = self._as_it_comes(operands, lines.width)
        x = images_in_vectors(source.layout, lines.width)
        if x is None or pool:
            return None

        target = OutputArg(Arg.DST, operands.target.blob, self.engine.plain(lines.y))
        operands = replace(operands, source=source, target=target)

        make = partial(NarrowConvolution, lines, x, operands.then)
        return ConvCall(self.engine, operands, lines.code, make)


class DirectKernels(ConvKernels):
    """Direct convolutions of few input channels, which read images in C order.

    Attributes:
        replaces_copies: True if the library would multiply matrices made of copied windows, as
            where an image has more padding than a window is wide; the kernels run then.
    """

    def __init__(
        self, engine: Engine, x: ops.Shape, banding: DirectSchedule, *, training: bool
    ) -> None:
        super().__init__(engine, x)
        self.banding, self.replaces_copies, self._training = banding, False, training
        self.pads_filters = banding.pads

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        width, target = self.banding.width, operands.target
        here = target.layout
        last: Any = here
        if not self._training and here.channel_slice is None:
            last = next(reversed(operands.layouts.preferred(target.memory)), here)
        y = images_in_vectors(last, width) if last.shape == here.shape else None
        # the library writes blocks, which are copied for readers of pixels
        copied = last is not here and y is not None and y.block == y.shape[1]
        if not (pool or self.banding.pads or self.replaces_copies or copied):
            return None  # the library's own code is good
        if y is None:
            y = images_in_vectors(here, width)
        else:
            target = OutputArg(Arg.DST, target.blob, last)
        if y is None:
            return None

        operands = replace(operands, source=self._plain(operands.source), target=target)
        banding = replace(self.banding, pool=pool)
        make = partial(DirectConvolution, banding, y, operands.then)
        return PackedConvCall(self.engine, operands, banding.code, make)

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

    Its methods return what a Step runs, or None where the library's code is to run.

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
        return InputArg(Arg.DIFF_DST, argument.blob, self.engine.plain(self.banding.x), diff=True)


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
        command_queue.enqueue(self._write, (weight,), None)
        operands.weight.done()
        if operands.bias:
            command_queue.enqueue(self._sum, (dy, operands.bias.array()), None)
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


@dataclass(eq=False)
class GroupedKernels(ConvKernels):
    """Convolutions of groups of few channels."""

    groups: GroupedSchedule
    channels_last = True
    gains_more = True

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> ConvCall | None:
        if pool:
            return None
        groups = self.groups
        return self._grouped(partial(group_convolution, groups, then=operands.then), operands)

    def data(self, operands: ConvOperands) -> ConvCall | None:
        groups = self.groups
        if not groups.shared:
            return None
        return self._grouped(lambda y, x: InputGradient(groups, x, y), operands)

    def weights(self, operands: GradientOperands) -> FilterGradientCall | None:
        groups = self.groups
        source, x = self._read_groups(groups, operands.source, operands.layouts)
        dy, y = self._read_groups(groups, operands.dy, operands.layouts)
        if x is None or y is None or not groups.shared:
            return None

        operands = replace(operands, source=source, dy=dy)
        kernel = GroupedGradient(groups, x, y)
        return FilterGradientCall(
            self.engine, operands, groups.code, kernel, held=kernel.sums.nbytes
        )

    def _grouped(
        self, make: Callable[[Images, Images], Any], operands: ConvOperands
    ) -> ConvCall | None:
        groups = self.groups
        source, x = self._read_groups(groups, operands.source, operands.layouts)
        target, y = operands.target, _of_groups(groups, operands.target.layout)
        if x is None:
            return None
        if y is None:
            alike = self._alike(x, target.layout.shape)
            target = OutputArg(target.role, target.blob, alike, diff=target.diff)
            y = _of_groups(groups, alike)
        if y is None:
            return None

        operands = replace(operands, source=source, target=target)
        return ConvCall(self.engine, operands, groups.code, partial(make, x, y))

    def _read_groups(
        self, groups: GroupedSchedule, argument: InputArg, layouts: Layouts
    ) -> tuple[InputArg, Images | None]:
        """Return an argument for the same blob that the kernel of groups can read, and its images.

        The library's may lie in blocks of a group. Then it is the layout in which it is written.
        """
        images = _of_groups(groups, argument.layout)
        if images is not None:
            return argument, images
        shape = argument.layout.shape
        expected = written_layout(self.engine, layouts, argument.memory, shape)
        return (
            InputArg(argument.role, argument.blob, expected, diff=argument.diff),
            _of_groups(groups, expected),
        )

    def _alike(self, images: Images, shape: ops.Shape) -> Layout:
        """Return the layout of images of a shape that lie as others do."""
        if images.block == images.shape[1]:
            return self.engine.innermost_layout(shape, 1)
        return channel_blocks(self.engine, shape, images.block)


def _of_groups(groups: GroupedSchedule, layout: Layout) -> Images | None:
    """Return the images of a layout; None where the kernel of groups does not take it."""
    images = images_of(layout)
    return images if images is not None and groups.fits(images) else None
