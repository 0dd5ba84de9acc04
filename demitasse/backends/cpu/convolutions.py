"""Kernels of convolutions, and their choice.

``conv_kernels`` returns the kernels of a convolution, in the order in which a Step tries them.
Implicit GEMM, which computes all convolutions, is the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from demitasse.backends import ops
from demitasse.backends.cpu import layout as layouts
from demitasse.backends.cpu.arguments import (
    Argument,
    DerivedArg,
    GradArg,
    InputArg,
    OutputArg,
    PreferredArg,
    ScratchArg,
    Source,
    rounded_addend,
    rounded_ends,
    written_layout,
)
from demitasse.backends.cpu.engine import Engine
from demitasse.backends.cpu.images import IMAGE_AXES, first_suitable, suitable_images, volumes_of
from demitasse.backends.cpu.kernel_calls import KernelCall, PackedKernel, kernel_tuning
from demitasse.backends.kernels.amx_convolution import AmxConvolution, AmxInputGradient
from demitasse.backends.kernels.amx_schedule import MOST_GROUPS, plan_amx, plan_phases
from demitasse.backends.kernels.depthwise import (
    DepthwiseConvolution,
    DepthwiseGradients,
    plan_depthwise,
)
from demitasse.backends.kernels.epilogue import NOTHING, Rectifier
from demitasse.backends.kernels.few_inputs import (
    DirectConvolution,
    DirectGradient,
    DirectSchedule,
    plan_direct,
)
from demitasse.backends.kernels.few_outputs import NarrowConvolution, plan_few_outputs
from demitasse.backends.kernels.few_planes import FewPlanesConvolution, plan_few_planes
from demitasse.backends.kernels.igemm import MOST_AXES, plan_igemm
from demitasse.backends.kernels.igemm_convolution import (
    filter_gradient,
    igemm_forward,
    igemm_input_gradient,
)
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.language import call_recorder
from demitasse.backends.kernels.tuning import FLAT, NARROW, Depth, Tuning
from demitasse.backends.kernels.winograd import WinogradSchedule, plan_winograd
from demitasse.backends.step import Declined, Operands, decline_if

MOST_PHASES = 2048
"""Products of a convolution at most: one for each phase of the strides."""


@dataclass(frozen=True, eq=False)
class ConvCase:
    """A convolution for which kernels are chosen.

    Attributes:
        x: Shape of the input, (N, C, *spatial).
        y: Shape of the output, (N, M, *positions).
        at: The blobs, and whether gradients are wanted.
        depth: Planes of the blobs' items, which are images then: blobs are (N, C, D, H, W).
        turned: Whether rows of the images are columns of the blobs.

    Raises:
        Declined: No kernels can be compiled.
    """

    engine: Engine
    op: ops.Conv
    x: ops.Shape
    y: ops.Shape
    at: Operands
    depth: Depth = FLAT
    turned: bool = False

    def of_planes(self) -> ConvCase:
        """Return a convolution of three axes as one of images, which are planes, if it can be."""
        op, (n, c, *size) = self.op, self.x
        if len(size) != MOST_AXES or size[0] == 1:
            return self
        depth = Depth(op.kernel[0], size[0], self.y[2], op.pad[0])
        steps = op.stride[0] == op.dilation[0] == 1 and depth.pad < depth.taps
        if not steps or op.group > 1 < depth.taps:
            return self
        x, y = (n * depth.size, c, *size[1:]), (n * depth.output, self.y[1], *self.y[3:])
        names = ("kernel", "stride", "pad", "dilation")
        flat: dict[str, Any] = {name: getattr(op, name)[1:] for name in names}
        flat |= {"bottom": x, "top": y, "axis": 1, "after": op.after and op.after[1:]}
        return replace(self, op=ops.Conv(**{**vars(op), **flat}), x=x, y=y, depth=depth)

    def of_rows(self) -> ConvCase:
        """Return a convolution along one axis as one along the rows of images, if it is one."""
        op, axes = self.op, len(self.op.kernel)
        columns = axes == IMAGE_AXES - 2 and self.x[3] == self.y[3] == op.kernel[1] == 1
        after = op.after or op.pad
        if not (axes == 1 or (columns and op.pad[1] == after[1] == 0)):
            return self
        (x, y), neutral = ((*shape[:2], 1, shape[2]) for shape in (self.x, self.y)), (1, 1, 0, 1)
        names = zip(("kernel", "stride", "pad", "dilation"), neutral, strict=True)
        along: dict[str, Any] = {name: (one, getattr(op, name)[0]) for name, one in names}
        along |= {"bottom": x, "top": y, "axis": 1, "after": op.after and (0, after[0])}
        rows = ops.Conv(**{**vars(op), **along})
        return replace(self, op=rows, x=x, y=y, turned=columns)

    def in_order(self, layout: layouts.Layout) -> layouts.Layout:
        """Return the layout of the input in which its images are in C order, given any."""
        if self.depth.size == 1:
            return layouts.plain(layout.shape)
        n, c, planes, *size = layout.shape
        image, channel, *steps = layouts.c_order((n * planes, c, *size))
        return layouts.strided(layout.shape, (image * planes, channel, image, *steps))

    def images(
        self, layout: layouts.Layout, width: int, *, padded: bool = False, bf16: bool = False
    ) -> Images:
        """Return the images of a layout that has vectors of so many channels.

        With ``padded``, channels that fill a pixel up count. Images are of float32, or also
        ``bf16``.

        Raises:
            Declined: It has none.
        """
        images = suitable_images(layout, width, padded=padded, bf16=bf16)
        images = images if self.depth.size == 1 else images.in_planes(layout.shape[2])
        return images.turned if self.turned else images

    @cached_property
    def tuning(self) -> Tuning:
        """Tuning of the products, in float32 where bfloat16 does not pay.

        Half of a panel of few filters is padding, and few channels are copied one by one.
        """
        tuning, group = kernel_tuning(self.engine, storage=self.at.storage), self.op.group
        c, m = self.x[1] // group, self.y[1] // group
        pays = c >= tuning.width < m and group <= MOST_GROUPS
        return replace(tuning, bf16=tuning.bf16 and pays)


@dataclass(frozen=True)
class ConvOperands:
    """The operands of a convolution's forward pass, or of its input's gradient.

    Attributes:
        weight: Weights in C order.
        offsets: One offset per channel of the target; None for none.
        then: What follows.
        slopes: One slope for each channel of the target, for negative values; None for none.
        other: What is added before the activation, in the target's layout; None for nothing.
    """

    source: InputArg
    target: OutputArg
    weight: Source
    offsets: Source | None = None
    then: Rectifier = NOTHING
    slopes: InputArg | None = None
    other: InputArg | None = None


@dataclass(frozen=True)
class GradientOperands:
    """The operands of the gradients of weights, in C order, and bias; None for no bias."""

    source: InputArg
    dy: InputArg
    weight: GradArg
    bias: GradArg | None = None


A = TypeVar("A", InputArg, OutputArg)
Ends = TypeVar("Ends", ConvOperands, GradientOperands)

OTHER_PASSES = "these kernels compute other passes"


class ConvKernels:
    """Interface of kernels for some convolutions. All methods return what a Step runs.

    Attributes:
        schedule: Schedule of the kernels.

    Raises:
        Declined: Other kernels are to run; also in each method.
    """

    schedule: Any

    def __init__(self, case: ConvCase) -> None:
        self.case, self.engine = case, case.engine

    def forward(self, operands: ConvOperands) -> KernelCall:
        """Return the forward pass."""
        raise Declined(OTHER_PASSES)

    def weights(self, operands: GradientOperands) -> KernelCall:
        """Return the gradient of the weights, in C order, and of the bias."""
        raise Declined(OTHER_PASSES)

    def data(self, operands: ConvOperands) -> KernelCall:
        """Return the gradient of the input."""
        raise Declined(OTHER_PASSES)

    def gradients(self, weights: GradientOperands, data: ConvOperands) -> KernelCall:
        """Return both gradients in one pass."""
        raise Declined(OTHER_PASSES)

    def _call(
        self, make: Callable[[], Any], operands: ConvOperands, *more: Argument | None,
        **takes: Source | None,
    ) -> KernelCall:  # fmt: skip
        """Return a convolution by a kernel that packs the weights, and also ``takes`` parameters.

        The arguments ``more`` follow the offsets.
        """
        takes |= {"update": operands.weight, "take_slopes": operands.slopes}
        arguments = operands.source, operands.target, operands.offsets, *more
        kernel = PackedKernel(make, **takes)
        return KernelCall(self.engine, kernel, *arguments, code=self.schedule.code)

    def _gradient(
        self, kernel: Callable[..., None], operands: GradientOperands, *more: Argument
    ) -> KernelCall:
        """Return the gradients of the weights and the bias by a kernel."""
        arguments = operands.source, operands.dy, operands.weight, operands.bias, *more
        return KernelCall(self.engine, kernel, *arguments, code=self.schedule.code)

    def _in_vectors(self, width: int, *arguments: Argument) -> tuple[Images, ...]:
        """Return the images of arguments whose layouts have vectors of so many channels."""
        return tuple(self.case.images(argument.layout, width) for argument in arguments)

    def _as_written(self, operands: ConvOperands, width: int) -> tuple[ConvOperands, Images]:
        """Return operands with the source in the layout in which it is written, if that fits."""
        source, case = operands.source, self.case
        expected = written_layout(case.at.layouts, source.memory, source.layout.shape)
        find = partial(case.images, width=width)
        layout, images = first_suitable((expected, source.layout), find)
        return replace(operands, source=source.in_layout(layout)), images


def conv_kernels(case: ConvCase) -> tuple[list[ConvKernels], tuple[str, ...]]:
    """Return the kernels of a convolution, in order, and why no faster kernels are the first.

    Raises:
        Declined: There are none, not even implicit GEMM.
    """
    igemm = IgemmKernels(case)
    general: list[ConvKernels] = [igemm]
    with suppress(Declined):
        return [AmxKernels(case)], ()
    if igemm.by_rows:
        return general, ()
    case = case.of_planes().of_rows()
    if case.depth.size == 1 and case.at.backward:
        with suppress(Declined):
            general.insert(0, TransposedKernels(case))
    elif case.depth.size == 1:
        for narrow in (PlanesKernels, NarrowKernels):
            with suppress(Declined):
                return [narrow(case), *general], ()
    kinds: Sequence[type[ConvKernels]] = (WinogradKernels, DirectKernels)
    if case.op.group == case.x[1] > 1:
        kinds = (DepthwiseKernels,)
    elif max(case.op.kernel, default=1) == 1:
        kinds = ()
    elif case.op.group > 1:
        kinds = (DepthwiseKernels, WinogradKernels)
    if case.op.group > 1:
        with suppress(Declined):
            general.insert(0, UpsamplingKernels(case))
    reasons: list[str] = []
    for kind in kinds:
        try:
            return [kind(case), *general], ()
        except Declined as declined:
            reasons.append(str(declined))
    return general, tuple(reasons)


class AmxKernels(ConvKernels):
    """Convolutions in bfloat16 by AMX, from and to images of bfloat16 where all agree."""

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        self.schedule = plan_amx(case.op, case.x, case.y, case.tuning)

    def data(self, operands: ConvOperands) -> KernelCall:
        phases, (source, target) = plan_phases(self.schedule), self._ends(operands)
        x, y = (suitable_images(end.layout, 1, bf16=True) for end in (target, source))
        make = partial(AmxInputGradient, self.schedule.op, phases, x, y)
        return self._call(make, replace(operands, source=source, target=target))

    def _ends(self, operands: ConvOperands) -> tuple[InputArg, OutputArg]:
        """Return source and target, in bfloat16 where others agree."""
        ends, groups = (operands.source, operands.target), self.schedule.op.group
        return rounded_ends(self.case.at.layouts, *ends, groups)

    def forward(self, operands: ConvOperands) -> KernelCall:
        one, other, (source, target) = self.schedule, operands.other, self._ends(operands)
        found = written_layout(self.case.at.layouts, source.memory, source.layout.shape)
        if one.reads_planes and found.plain:
            n, c, h, w = self.case.x
            source, x = InputArg(source.blob, found), Images.in_order((n, c, h, w))
        else:
            x = suitable_images(source.layout, 1, bf16=True)
        if other is not None:
            other = rounded_addend(target, other.blob, one.op.group)
        y = suitable_images(target.layout, 1, bf16=True)
        has = {"adds": other is not None, "slopes": operands.slopes is not None}
        make = partial(AmxConvolution, one, x, y, operands.then, **has)
        return self._call(make, replace(operands, source=source, target=target), other)


class IgemmKernels(ConvKernels):
    """Any convolution over one to three axes, with the channels last.

    Images of one channel that are as wide as the filters are taken by their rows: their columns are
    then channels.

    Raises:
        Declined: It has more axes.
    """

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        op, x = case.op, case.x
        self.by_rows = _by_rows(op, x, case.tuning.width)
        if self.by_rows:
            x = x[0], x[3], x[2], 1
            op = ops.Conv(**{**vars(op), "kernel": (op.kernel[0], 1), "bottom": x})
        self.op, self.schedule = op, plan_igemm(op, x, case.y, case.tuning)

    def forward(self, operands: ConvOperands) -> KernelCall:
        source, x = self._image(operands.source)
        target, other = operands.target, operands.other
        if self.schedule.tuning.bf16:
            source, target = self._rounded(source, target)
            x = volumes_of(source.layout, bf16=True)
            if other is not None:
                other = rounded_addend(target, other.blob, self.op.group)
        else:
            source = PreferredArg(source.blob, source.layout, diff=source.diff)
        y = volumes_of(target.layout, bf16=True)
        make = partial(
            igemm_forward, self.schedule, x, y, operands.then, adds=other is not None,
            by_tap=self.by_rows,
        )  # fmt: skip
        return self._call(make, replace(operands, source=source, target=target), other)

    def _rounded(self, source: InputArg, target: OutputArg) -> tuple[InputArg, OutputArg]:
        """Return source and target, in bfloat16 where others agree.

        A target to which several blocks of sums are added is in float32.
        """
        ends = rounded_ends(self.case.at.layouts, source, target, self.op.group)
        x, y = (volumes_of(end.layout, bf16=True) for end in ends)
        schedule = self.schedule.of_pairs() if x.bf16 else self.schedule
        several = len(schedule.blocks(in_place=schedule.in_place(x, y))) > 1
        return ends[0], target if several else ends[1]

    def data(self, operands: ConvOperands) -> KernelCall:
        phases = math.prod(self.schedule.step)
        message = f"{phases} products, one for each phase of the strides; at most {MOST_PHASES}"
        decline_if(phases > MOST_PHASES, message)
        target, x = self._image(operands.target)
        ends = x, volumes_of(operands.source.layout)
        make = partial(igemm_input_gradient, self.schedule, *ends, by_tap=self.by_rows)
        return self._call(make, replace(operands, target=target), None)

    def weights(self, operands: GradientOperands) -> KernelCall:
        source, x = self._image(operands.source)
        kernel = filter_gradient(
            self.schedule, x, volumes_of(operands.dy.layout), self.op.kernel,
            bias=operands.bias is not None,
        )  # fmt: skip
        weight, strides = operands.weight, kernel.strides
        if self.by_rows:
            _, by_filter, by_channel, by_row, _ = strides
            strides = 0, by_filter, 0, by_row, by_channel
        shape = weight.layout.shape
        layout = layouts.strided(shape, strides[-len(shape) :])
        operands = replace(operands, source=source, weight=weight.in_layout(layout))
        return self._gradient(kernel, operands)

    def _image(self, image: A) -> tuple[A, Images]:
        """Return the argument of an image as kernels take it, and its images."""
        if not self.by_rows:
            return image, volumes_of(image.layout)
        n, _, rows, columns = shape = self.case.x
        return image.in_layout(layouts.plain(shape)), Images.channels_last((n, columns, rows, 1))


def _by_rows(op: ops.Conv, x: ops.Shape, width: int) -> bool:
    """Return whether filters are as wide as images of one channel, and as a vector at least.

    Direct convolution has too few sums then, one pixel of each row.
    """
    if len(op.kernel) != IMAGE_AXES - 2 or x[1] != 1 or x[3] < width or op.after:
        return False
    return (op.kernel[1], op.pad[1], op.dilation[1]) == (x[3], 0, 1)


class UpsamplingKernels(ConvKernels):
    """Gradients of the input of depthwise or grouped convolutions with large windows."""

    back = True

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        c, width = case.x[1], case.tuning.width
        whole = c if case.op.group == c else math.gcd(c, width)  # groups fill whole vectors
        tuning = case.tuning.for_channels(max(whole, NARROW))
        self.schedule = plan_depthwise(case.op, case.x, case.y, tuning, back=self.back)

    def data(self, operands: ConvOperands) -> KernelCall:
        operands, (y, dx) = self._filled(operands)
        offset = operands.offsets is not None
        make = partial(DepthwiseGradients, self.schedule, (dx, y, dx), weights=False, offset=offset)
        packs = {"update": operands.weight, "take_offsets": operands.offsets}
        kernel, dy = PackedKernel(make, **packs), operands.source
        arguments = dy, dy, None, None, operands.target
        return KernelCall(self.engine, kernel, *arguments, code=self.schedule.code)

    def _filled(self, operands: Ends) -> tuple[Ends, list[Images]]:
        """Return operands whose channels fill a vector, and the images of both."""
        ends, images, channels = {}, [], self.schedule.channels
        few = self.case.x[1] < channels
        for name in ("source", "target", "dy"):
            if end := getattr(operands, name, None):
                if few:
                    end = end.in_layout(layouts.channels_last(end.layout.shape, channels))
                ends[name] = end
                images.append(self.case.images(end.layout, channels, padded=few, bf16=True))
        return replace(operands, **ends), images


class DepthwiseKernels(UpsamplingKernels):
    """All passes of convolutions of each channel by itself, or of groups of few channels."""

    back = False

    def forward(self, operands: ConvOperands) -> KernelCall:
        few, taken = self.case.x[1] < self.schedule.channels, None
        low, high = operands.then.limits or (0.0, 0.0)
        decline_if(few and not low <= 0 <= high, "limits that change the zeros behind few channels")
        if few:  # whole vectors of offsets are read
            operands, taken = replace(operands, offsets=None), operands.offsets
        else:
            operands, _ = self._as_written(operands, self.case.x[1])
        at = self.case.at
        rounds = kernel_tuning(self.engine, storage=at.storage).rounds
        if rounds and self.schedule.group.size == 1 and not few:
            ends = rounded_ends(at.layouts, operands.source, operands.target)
            operands = replace(operands, source=ends[0], target=ends[1])
        operands, (x, y) = self._filled(operands)
        make = partial(DepthwiseConvolution, self.schedule, x, y, operands.then)
        return self._call(make, operands, take_offsets=taken)

    def weights(self, operands: GradientOperands) -> KernelCall:
        operands, (x, y) = self._filled(operands)
        bias = operands.bias is not None
        kernel = DepthwiseGradients(self.schedule, (x, y, x), data=False, bias=bias)
        return self._gradient(kernel, operands)

    def gradients(self, weights: GradientOperands, data: ConvOperands) -> KernelCall:
        (weights, (x, y)), (data, (_, dx)) = self._filled(weights), self._filled(data)
        make = partial(DepthwiseGradients, self.schedule, (x, y, dx), bias=weights.bias is not None)
        return self._gradient(PackedKernel(make, update=data.weight), weights, data.target)


class NarrowKernels(ConvKernels):
    """Convolutions to few channels, without gradients; zeros fill the last vector of channels."""

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        op, (n, c, *spatial), y, tuning = case.op, case.x, case.y, case.tuning
        try:
            self.schedule = plan_few_outputs(op, case.x, y, tuning)
        except Declined:
            few = replace(tuning, width=min(NARROW, tuning.width))
            filled = n, -(-c // NARROW) * NARROW, *spatial
            self.schedule = plan_few_outputs(op, filled, y, few)

    def forward(self, operands: ConvOperands) -> KernelCall:
        schedule, source = self.schedule, operands.source
        if schedule.x[1] == self.case.x[1]:
            operands, x = self._as_written(operands, schedule.width)
        else:
            filled = layouts.channels_last(source.layout.shape, NARROW)
            operands = replace(operands, source=source.in_layout(filled))
            x = self.case.images(filled, NARROW, padded=True)
        target = operands.target.in_layout(layouts.plain(operands.target.layout.shape))
        make = partial(NarrowConvolution, schedule, x, operands.then)
        return self._call(make, replace(operands, target=target))


class PlanesKernels(ConvKernels):
    """Convolutions of few channels that fill no vectors to few, without gradients."""

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        decline_if(case.x[1] % NARROW == 0, "channels that fill vectors")
        self.schedule = plan_few_planes(case.op, case.x, case.y, case.tuning)

    def forward(self, operands: ConvOperands) -> KernelCall:
        source, target = operands.source, operands.target
        source = source.in_layout(layouts.plain(source.layout.shape))
        target = target.in_layout(layouts.plain(target.layout.shape))
        make = partial(FewPlanesConvolution, self.schedule, operands.then)
        return self._call(make, replace(operands, source=source, target=target))


class WinogradKernels(ConvKernels):
    """Convolutions by Winograd's filtering."""

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        x, y, training = case.x, case.y, case.at.backward
        tuning = case.tuning.for_channels(min(x[1], y[1]))
        self.schedule = plan_winograd(case.op, x, y, tuning, case.depth, training=training)

    def forward(self, operands: ConvOperands) -> KernelCall:
        return self._tiled(self.schedule, operands)

    def data(self, operands: ConvOperands) -> KernelCall:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        return self._tiled(self.schedule.backward, operands)

    def _tiled(self, schedule: WinogradSchedule, operands: ConvOperands) -> KernelCall:
        from demitasse.backends.kernels.winograd.convolution import WinogradConvolution
        from demitasse.backends.kernels.winograd.filters import filter_transform

        size = layouts.plain((schedule.filter_size,))
        transform, kept = filter_transform(schedule), not self.case.at.backward
        transformed = DerivedArg(self.engine, size, transform, operands.weight, kept=kept)
        ends = operands.source, operands.target
        x, y = self._in_vectors(schedule.width, *ends)
        make = partial(WinogradConvolution, schedule, x, y, operands.then)
        kernel = PackedKernel(make, take_slopes=operands.slopes, take_offsets=operands.offsets)
        return KernelCall(self.engine, kernel, *ends, transformed, code=schedule.code)

    def weights(self, operands: GradientOperands) -> KernelCall:
        from demitasse.backends.kernels.winograd.convolution import WinogradGradient

        x, y = self._in_vectors(self.schedule.width, operands.source, operands.dy)
        kernel = WinogradGradient(self.schedule, x, y)
        sums = ScratchArg(layouts.plain((kernel.sums_size,)))
        return self._gradient(kernel, operands, sums)


class DirectKernels(ConvKernels):
    """Direct convolutions of few input channels, which read images in C order."""

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        fewest = 0 if case.at.backward else min(NARROW, case.tuning.width)
        self.schedule = plan_direct(case.op, case.x, case.y, case.tuning, case.depth, fewest=fewest)

    def forward(self, operands: ConvOperands) -> KernelCall:
        target, known = operands.target, [operands.target.layout]
        if not self.case.at.backward:
            wished: Any = self.case.at.layouts.preferred(target.memory)[-1:]
            same = [one for one in wished if one.shape == target.layout.shape]
            known[:0] = [layouts.stored(one, bf16=False) for one in same]
        layout, y = first_suitable(known, partial(self.case.images, width=self.schedule.channels))
        source = operands.source.in_layout(self.case.in_order(operands.source.layout))
        operands = replace(operands, source=source, target=target.in_layout(layout))
        return self._call(partial(DirectConvolution, self.schedule, y, operands.then), operands)

    def weights(self, operands: GradientOperands) -> KernelCall:
        decline_if(self.case.depth.taps > 1, OTHER_PASSES)
        [y] = self._in_vectors(self.schedule.width, operands.dy)
        kernel = DirectGradient(self.schedule, y, bias=operands.bias is not None)
        source = operands.source.in_layout(self.case.in_order(operands.source.layout))
        return self._gradient(kernel, replace(operands, source=source))


class TransposedKernels(ConvKernels):
    """Direct convolution of the output's gradient, for gradients of convolutions to few channels.

    The schedule is that of the convolution from the output's gradient to the input's.
    """

    def __init__(self, case: ConvCase) -> None:
        super().__init__(case)
        op = case.op
        reach = tuple(d * (k - 1) for d, k in zip(op.dilation, op.kernel, strict=True))
        pad = tuple(r - p for r, p in zip(reach, op.pad, strict=True))
        message = "gradients that are convolutions over one group, of stride 1, with less padding"
        unlike = op.group > 1 or set(op.stride) != {1} or op.after is not None
        decline_if(unlike or min(pad) < 0, message)
        case.tuning.require("transposed")
        turned = {"bottom": case.y, "top": case.x, "axis": 1, "pad": pad, "bias": False}
        flipped = ops.Conv(**{**vars(op), **turned})
        self.schedule = plan_direct(flipped, case.y, case.x, case.tuning)

    def data(self, operands: ConvOperands) -> KernelCall:
        images = self.case.images(operands.target.layout, self.schedule.width)
        source = operands.source.in_layout(layouts.plain(operands.source.layout.shape))
        operands = replace(operands, source=source)
        make = partial(TransposedConvolution, self.schedule, images, operands.then)
        return self._call(make, operands)

    def weights(self, operands: GradientOperands) -> KernelCall:
        images = self.case.images(operands.source.layout, self.schedule.width)
        kernel = TransposedGradient(self.schedule, images)
        dy = operands.dy.in_layout(layouts.plain(operands.dy.layout.shape))
        return self._gradient(kernel, replace(operands, dy=dy))


def _turned_places(schedule: DirectSchedule) -> np.ndarray:
    """Return the index of each weight of the transposed convolution, in C order.

    Its filters (C, M, *kernel) are those (M, C, *kernel) of the convolution, turned round.
    """
    places = np.arange(schedule.y[1] * schedule.taps)
    by_filter = places.reshape(schedule.x[1], schedule.y[1], *schedule.op.kernel)
    return by_filter[:, :, ::-1, ::-1].swapaxes(0, 1)


class TransposedConvolution(DirectConvolution):
    """The gradient of the input."""

    def __init__(self, schedule: DirectSchedule, y: Images, then: Rectifier) -> None:
        super().__init__(schedule, y, then, places=_turned_places(schedule))


class TransposedGradient:
    """The gradients of weights and bias; the output's gradient is in C order."""

    def __init__(self, schedule: DirectSchedule, images: Images) -> None:
        self._schedule = schedule
        self._kernel = DirectGradient(schedule, images, bias=False, places=_turned_places(schedule))
        self.nbytes = self._kernel.nbytes

    def __call__(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self._kernel(dy, source, weight, None)
        if bias is not None:
            call_recorder.call(self._sum, dy, bias)

    def _sum(self, dy: np.ndarray, bias: np.ndarray) -> None:
        """Write the gradient of the bias."""
        n, m, *places = self._schedule.x
        each = np.add.reduce(dy[: n * m * places[0] * places[1]].reshape(n, m, -1), axis=2)
        np.add.reduce(each, axis=0, out=bias[:m])
