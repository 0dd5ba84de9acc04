"""The kernels of our own that Steps may run in place of the library's primitives."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels import norm
from demitasse.backends.kernels.depthwise import strips_of
from demitasse.backends.kernels.depthwise.strips import Strips
from demitasse.backends.kernels.direct import banding_of
from demitasse.backends.kernels.direct.banding import Banding
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.pointwise import parts_of
from demitasse.backends.kernels.pointwise.parts import Parts
from demitasse.backends.kernels.separable import blocks_of
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import pools_tiles, tiling_of
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.onednn.library.candidates import BLOCK, channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.ports import Parameter, Reader, Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands
from demitasse.backends.onednn.steps.norm_parts import NormParts
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined, Operand, Operands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from demitasse.backends.kernels.classes import FewClasses
    from demitasse.backends.kernels.lengths import Lengths
    from demitasse.backends.kernels.lrn import LocalResponse
    from demitasse.backends.kernels.norm.forward import Normalization
    from demitasse.backends.kernels.norm.planes import PlaneNorm
    from demitasse.backends.onednn.steps.conv_operands import Folded
    from demitasse.backends.onednn.steps.elementwise_calls import ElementwiseCall
    from demitasse.backends.onednn.steps.kernel_calls import (
        DepthwiseCall,
        DirectCall,
        DirectGradientCall,
        MapCall,
        Maps,
        OffsetCall,
        PixelsCall,
        TiledFilters,
        WinogradCall,
        WinogradGradientCall,
    )
    from demitasse.backends.onednn.steps.recurrent_calls import OutputCall, StepsCall

__all__ = [
    "ConvKernels", "conv_kernels", "elementwise_call", "factors_call", "images_of",
    "lengths_kernel", "lrn_kernel", "map_call", "norm_kernel", "output_call", "plane_norm_kernel",
    "pointwise_call", "rows_kernel", "separable_call", "steps_call",
]  # fmt: skip

IMAGE_AXES = 4

LARGE = 3 << 19
"""Floats of a stack of images from which on most of them come from memory."""


@dataclass(frozen=True)
class ConvKernels:
    """Which kernels run a convolution, if any.

    Its methods return what a Step runs, or None where the library's code is to run.

    Attributes:
        engine: The engine.
        x: The input's shape, (N, C, *spatial).
        tiling: How it is tiled; None where it does not go over tiles.
        banding: How a direct convolution of few channels is divided; None where it is another.
        strips: How a depthwise convolution is divided, forward; None where it is another.
        parts: How a pointwise convolution is divided, forward; None where it is another. Only where
            its output lies in a larger one, which the library's does not write.
        joined: Whether a depthwise one runs as one with the convolution behind it.
        training: Whether filters change between passes.
        why: Why there is none of them; empty where there is one.
        slow_library: Whether the library multiplies matrices made of copied windows here, as where
            an image has more padding than a window is wide.
    """

    engine: Engine
    x: ops.Shape
    tiling: Tiling | None
    banding: Banding | None
    strips: Strips | None = None
    parts: Parts | None = None
    joined: bool = False
    training: bool = False
    why: tuple[str, ...] = ()
    slow_library: bool = False
    _filters: TiledFilters | None = field(default=None, repr=False)

    @property
    def pads_filters(self) -> bool:
        """Whether filters of few channels fill no whole vectors."""
        return self.banding is not None and self.banding.pads

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        """Return those kernels that read and write images in these layouts."""
        tiling = self.tiling
        if tiling is None:
            return self
        if not (_fitting(x, tiling.width) and _fitting(y, tiling.width)):
            why = f"the layouts of the images have no blocks of {tiling.width} channels"
            return replace(self, tiling=None, why=(why,))
        return replace(self, _filters=self._tiled_filters(tiling))

    def forward(
        self, operands: ConvOperands, pool: ops.Pool | None
    ) -> WinogradCall | DirectCall | DepthwiseCall | PixelsCall | None:
        """Return the forward pass, and perhaps MAX pooling after it."""
        if self.tiling is not None:
            return self._tiled(self.tiling, operands, pool)
        if self.strips is not None:
            return self._depthwise(self.strips, operands, pool)
        if self.parts is not None:
            return self._pointwise(self.parts, operands, pool)
        return self._direct(operands, pool)

    @property
    def takes_slopes(self) -> bool:
        """Whether slopes of channels, for what is below 0, are no reason for the library's code."""
        return self.banding is None and self.parts is None

    def _tiled(
        self, tiling: Tiling, operands: ConvOperands, pool: ops.Pool | None
    ) -> WinogradCall | None:
        x, y = (_fitting(port.layout, tiling.width) for port in (operands.source, operands.target))
        if x is None or y is None or (pool and not pools_tiles(pool)):
            return None
        from demitasse.backends.onednn.steps.kernel_calls import WinogradCall

        shared = self._filters if operands.weight is not None else None
        filters = shared or self._tiled_filters(tiling)
        return WinogradCall(self.engine, tiling, operands, (x, y), filters, pool=pool is not None)

    def _tiled_filters(self, tiling: Tiling) -> TiledFilters:
        from demitasse.backends.onednn.steps.kernel_calls import TiledFilters

        return TiledFilters(self.engine, tiling, kept=not self.training)

    def _depthwise(
        self, strips: Strips, operands: ConvOperands, pool: ops.Pool | None
    ) -> DepthwiseCall | None:
        source = self._as_it_comes(operands.source, strips.width)
        target = self._in_blocks(operands.target)
        x, y = (_fitting(port.layout, strips.width) for port in (source, target))
        if x is None or y is None or pool:
            return None
        from demitasse.backends.onednn.steps.kernel_calls import DepthwiseCall

        operands = replace(operands, source=source, target=target)
        return DepthwiseCall(self.engine, strips, operands, (x, y))

    def _in_blocks(self, port: Writer) -> Writer:
        """Return a port of the same blob in blocks of channels, if it is large; else this one.

        The convolution of single pixels that follows goes over pixels with all their channels
        several times, each time for other filters, and over blocks once. Where they come from
        memory that takes longer; for the kernel one is like the other.
        """
        shape = port.layout.shape
        if not self.engine.wide or shape[1] % BLOCK or math.prod(shape) < LARGE or self.joined:
            return port
        if port.layout.home is not None:  # it has its place in what a Concat joins
            return port
        with suppress(Declined):
            blocks = channel_blocks(self.engine, shape, BLOCK)
            if self.engine.wished(port.memory, shape) in (None, blocks):
                self.engine.note_blocks(port.memory)
                return Writer(Arg.DST, port.blob, blocks)
        return port

    def _pointwise(
        self, parts: Parts, operands: ConvOperands, pool: ops.Pool | None
    ) -> PixelsCall | None:
        home = operands.target.layout.home
        x, y = (images_of(port.layout) for port in (operands.source, operands.target))
        if home is None or home.is_whole or x is None or y is None or pool:
            return None  # the library's own code is good
        from demitasse.backends.kernels.pointwise.convolution import is_rows
        from demitasse.backends.onednn.steps.kernel_calls import PixelsCall

        if not (is_rows(x) and is_rows(y)):
            return None
        return PixelsCall(self.engine, parts, operands, (x, y))

    def _as_it_comes(self, port: Reader, width: int) -> Reader:
        """Return a port of the same blob in the layout in which it is written, if that fits."""
        expected = self.engine.expected(port.blob.data_memory, self.x)
        return Reader(Arg.SRC, port.blob, expected) if _fitting(expected, width) else port

    def _direct(self, operands: ConvOperands, pool: ops.Pool | None) -> DirectCall | None:
        if self.banding is None or not (pool or self.banding.pads or self.slow_library):
            return None  # the library's own code is good
        target = operands.target
        if pool:  # without gradients; those would read it in the layout of before
            target = self._as_it_is_read(target, self.banding.width)
        y = _fitting(target.layout, self.banding.width)
        if y is None:
            return None
        from demitasse.backends.onednn.steps.kernel_calls import DirectCall

        banding = replace(self.banding, pool=pool)
        operands = replace(operands, source=self._plain(operands.source), target=target)
        return DirectCall(self.engine, banding, operands, y)

    def _as_it_is_read(self, port: Writer, width: int) -> Writer:
        """Return a port of the same blob in the layout in which it will be read, if that fits."""
        wished = self.engine.wished(port.blob.data_memory, port.layout.shape)
        if wished is None or not _fitting(wished, width):
            return port
        return Writer(Arg.DST, port.blob, wished)

    def weights(
        self, operands: GradientOperands
    ) -> WinogradGradientCall | DirectGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        if self.tiling is None and self.banding is None:
            return None
        from demitasse.backends.onednn.steps.kernel_calls import (
            DirectGradientCall,
            WinogradGradientCall,
        )

        if self.tiling is not None:
            tiling, ports = self.tiling, (operands.source, operands.dy)
            x, y = (_fitting(port.layout, tiling.width) for port in ports)
            if x is None or y is None:
                return None
            return WinogradGradientCall(self.engine, tiling, operands, (x, y))
        if self.banding is None:
            return None
        y = _fitting(operands.dy.layout, self.banding.width)
        if y is None:
            return None
        operands = replace(operands, source=self._plain(operands.source))
        return DirectGradientCall(self.engine, self.banding, operands, y)

    def data(self, operands: ConvOperands) -> WinogradCall | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        if self.tiling is None:
            return None
        turned = self.tiling.backward
        x, y = (_fitting(port.layout, turned.width) for port in (operands.source, operands.target))
        if x is None or y is None:
            return None
        from demitasse.backends.onednn.steps.kernel_calls import TiledFilters, WinogradCall

        filters = TiledFilters(self.engine, turned, backward=True)
        return WinogradCall(self.engine, turned, operands, (x, y), filters)

    def _plain(self, port: Reader) -> Reader:
        """Return a port of the same blob in C order, which direct convolution reads."""
        return Reader(Arg.SRC, port.blob, self.engine.plain(self.x))


def conv_kernels(
    engine: Engine,
    op: ops.Conv,
    x: ops.Shape,
    y: ops.Shape,
    followers: Sequence[ops.Op] = (),
    *,
    training: bool,
) -> ConvKernels:
    """Return which kernels may run a convolution, whatever the layouts.

    Args:
        engine: The engine.
        op: The convolution.
        x: Its input's shape, (N, C, *spatial).
        y: Its output's shape.
        followers: What may run as one with it.
        training: Whether filters change between passes.
    """
    tuning = engine.tuning.as_set(wanted())
    found = ConvKernels(engine, x, tiling=None, banding=None, training=training)
    if max(op.kernel) == 1:  # a product of matrices, which the library does best
        if not training:
            with suppress(Declined):
                found = replace(found, parts=parts_of(op, x, y, tuning))
        return found
    if op.group == x[1] > 1 and not training:
        try:
            strips, joined = strips_of(op, x, y, tuning), _joins(op, followers, tuning)
            return replace(found, strips=strips, joined=joined)
        except Declined as declined:
            return replace(found, why=(str(declined),))
    try:
        return replace(found, tiling=tiling_of(op, x, y, tuning, training=training))
    except Declined as declined:
        tiled = str(declined)
    try:
        return replace(found, banding=banding_of(op, x, y, tuning))
    except Declined as declined:
        return replace(found, why=(tiled, str(declined)))


def _joins(op: ops.Conv, followers: Sequence[ops.Op], tuning: Tuning) -> bool:
    """Whether a depthwise convolution runs as one with the next, which is among the followers."""
    for follower in followers:
        if isinstance(follower, ops.Conv):
            with suppress(Declined):
                return blocks_of(op, follower, tuning) is not None
            return False
        if isinstance(follower, ops.Activation) and follower.function != "relu":
            return False
        if not isinstance(follower, (ops.Activation, ops.BatchNorm, ops.Scale)):
            return False
    return False


def elementwise_call(
    engine: Engine,
    function: str,
    numbers: Sequence[float],
    sources: Sequence[Reader],
    target: Writer,
) -> ElementwiseCall:
    """Return what computes a function of every element.

    Args:
        engine: The engine.
        function: Its name in ``kernels.elementwise``.
        numbers: Its constants.
        sources: What is read, one array or two.
        target: What is written, in the same layout.

    Raises:
        Declined: There are no kernels here.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = f"no kernels are made at run time; {function} needs those"
        raise Declined(message)
    from demitasse.backends.kernels.elementwise import Elementwise
    from demitasse.backends.onednn.steps.elementwise_calls import ElementwiseCall

    kernel = Elementwise(function, numbers, target.layout.size, tuning)
    return ElementwiseCall(engine, kernel, sources, target)


def factors_call(
    engine: Engine, source: Reader, target: Writer, values: tuple[np.ndarray, np.ndarray]
) -> MapCall | None:
    """Return what multiplies channels with factors, adds offsets and rectifies; perhaps None.

    Args:
        engine: The engine.
        source: What is read.
        target: What is written, in the same layout or one with the same blocks of channels.
        values: Factors and offsets, which may change between calls.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    x, y = (images_of(port.layout) for port in (source, target))
    if x is None or y is None:
        return None
    from demitasse.backends.kernels.factors import ChannelFactors, takes

    if not takes(x, tuning.width):
        return None
    return map_call(engine, source, target, ChannelFactors((x, y), *values, tuning))


def map_call(engine: Engine, source: Reader, target: Writer, kernel: Maps) -> MapCall:
    """Return what runs a kernel that makes one blob of another."""
    from demitasse.backends.onednn.steps.kernel_calls import MapCall

    return MapCall(engine, source, target, kernel)


def lengths_kernel(engine: Engine, layout: Layout, eps: float) -> Lengths | None:
    """Return what divides pixels in a layout by their lengths; perhaps None.

    Args:
        engine: The engine.
        layout: Of input and output.
        eps: What is added to the sums of squares.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout)
    if not tuning.width or images is None:
        return None
    from demitasse.backends.kernels import lengths

    return lengths.Lengths(images, eps, tuning) if lengths.takes(images, tuning.width) else None


def rows_kernel(
    engine: Engine, rows: int, length: int, images: int | None = None
) -> FewClasses | None:
    """Return the softmax of many short rows; None for others, or where none can be made.

    Args:
        engine: The engine.
        rows: How many there are, one behind the other, or in each image.
        length: Elements of a row.
        images: How many images there are whose planes are classes.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels import classes

    pays = classes.takes(rows, length, tuning.width)
    return classes.FewClasses(rows, length, tuning, images) if pays else None


def lrn_kernel(engine: Engine, op: ops.LRN, layout: Layout) -> LocalResponse | None:
    """Return what normalises by neighbours in a layout, in both directions; perhaps None.

    Args:
        engine: The engine.
        op: What is to be computed.
        layout: Of input, output and their gradients.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        return None
    from demitasse.backends.kernels import lrn

    images = images_of(layout)
    if images is None or not lrn.takes(images, op.size, op.beta, tuning.width):
        return None
    return lrn.LocalResponse(images, op.size, op.alpha, op.k, tuning)


def norm_kernel(engine: Engine, parts: NormParts, layout: Layout) -> Normalization | None:
    """Return what normalises by the batch's statistics in a layout; None where it is not for us.

    Args:
        engine: The engine.
        parts: What is to be computed.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    if parts.norm is None or not parts.measures or not tuning.width:
        return None
    images = images_of(layout)
    if images is None or not norm.takes(images, tuning.width):
        return None
    from demitasse.backends.kernels.norm.forward import Normalization

    return Normalization(images, parts.norm[0].eps, tuning, relu=parts.relu)


def plane_norm_kernel(engine: Engine, eps: float, layout: Layout) -> PlaneNorm | None:
    """Return what normalises each channel of each image by itself; perhaps None.

    Args:
        engine: The engine.
        eps: What is added to deviations.
        layout: Of input and output.
    """
    tuning = engine.tuning.as_set(wanted())
    images = images_of(layout) or _padded_blocks(engine, layout)
    if not tuning.width or images is None:
        return None
    if not norm.takes(images, tuning.width):
        return None
    from demitasse.backends.kernels.norm.planes import PlaneNorm

    return PlaneNorm(images, eps, tuning)


def pointwise_call(
    engine: Engine,
    op: ops.Conv,
    source: Reader,
    target: Writer,
    factors: tuple[np.ndarray, np.ndarray],
    offsets: np.ndarray,
    *,
    relu: bool,
) -> tuple[OffsetCall, Callable[[np.ndarray], None]]:
    """Return what normalises and rectifies pixels and convolves them, and what takes its weights.

    Args:
        engine: The engine.
        op: The convolution.
        source: What is read.
        target: What is written.
        factors: Factors and offsets of the channels that are read; they may change between calls.
        offsets: One for each channel that is written; they may change too.
        relu: Whether a rectifier follows.

    Raises:
        Declined: Our kernels do not take it.
    """
    parts = parts_of(op, source.layout.shape, target.layout.shape, engine.tuning.as_set(wanted()))
    x, y = (images_of(port.layout) for port in (source, target))
    from demitasse.backends.kernels.pointwise.convolution import PointwiseConvolution, is_rows
    from demitasse.backends.onednn.steps.kernel_calls import OffsetCall

    if x is None or y is None or not (is_rows(x) and is_rows(y)):
        message = "images whose channels do not lie side by side; kernels of pixels need that"
        raise Declined(message)
    kernel = PointwiseConvolution(parts, x, y, factors, relu=relu)
    return OffsetCall(engine, source, target, kernel, offsets), kernel.update


def separable_call(
    engine: Engine,
    convolutions: tuple[ops.Conv, ops.Conv],
    source: Reader,
    target: Writer,
    folded: tuple[Folded, Folded],
    relus: tuple[bool, bool],
) -> OffsetCall:
    """Return what runs a depthwise convolution and a pointwise one behind it.

    Args:
        engine: The engine.
        convolutions: Both.
        source: What is read.
        target: What is written.
        folded: Weights and offsets of both; they are given who takes new weights.
        relus: Whether a rectifier follows the first, and the second.

    Raises:
        Declined: Our kernels do not take it.
    """
    blocks = blocks_of(*convolutions, engine.tuning.as_set(wanted()))
    x, y = _fitting(source.layout, blocks.strips.width), images_of(target.layout)
    from demitasse.backends.kernels.pointwise.convolution import is_rows
    from demitasse.backends.kernels.separable.convolution import SeparableConvolution
    from demitasse.backends.onednn.steps.kernel_calls import OffsetCall

    if x is None or y is None or not is_rows(y):
        message = "images whose channels do not lie side by side; separable convolution needs that"
        raise Declined(message)
    kernel = SeparableConvolution(blocks, x, y, relus)
    folded[0].update, folded[1].update = kernel.depthwise.update, kernel.update
    return OffsetCall(engine, source, target, kernel, (folded[0].bias, folded[1].bias))


def steps_call(
    engine: Engine,
    op: ops.Recurrent,
    at: Operands,
    z: np.ndarray,
    static: np.ndarray | None,
    hidden: Callable[[], np.ndarray],
) -> StepsCall:
    """Return what computes the steps of a recurrent layer.

    Args:
        engine: The engine.
        op: The operation.
        at: Its blobs.
        z: The inputs of the gates. Shape: (T, N, G * H).
        static: What each sequence adds to its inputs in all steps; None for nothing. Shape:
            (N, G * H).
        hidden: Returns where the hidden states go. Shape: (T, N, H).

    Raises:
        Declined: There are no kernels here.
    """
    tuning = engine.tuning.as_set(wanted())
    if not tuning.width:
        message = "no kernels are made at run time; steps without gradients need those"
        raise Declined(message)
    weight, size = at.params[3 if op.static else 2], op.m
    blocks = channel_blocks(engine, (z.shape[-1] // size, size, size), tuning.width)
    from demitasse.backends.kernels.recurrence.recurrence import Recurrence
    from demitasse.backends.onednn.steps.recurrent_calls import StepsCall

    kernel = Recurrence(op.cell, z, tuning, static=static)
    return StepsCall(engine, op, at, Parameter(Arg.WEIGHTS, weight, blocks), kernel, hidden)


def output_call(engine: Engine, blob: Operand) -> OutputCall:
    """Return what makes tanh of what a blob holds, where there are kernels.

    Args:
        engine: The engine.
        blob: The blob.
    """
    from demitasse.backends.kernels.recurrence.output import Squashing
    from demitasse.backends.onednn.steps.recurrent_calls import OutputCall

    return OutputCall(engine, blob, Squashing(blob.count, engine.tuning.as_set(wanted())))


def images_of(layout: Layout) -> Images | None:
    """Return a layout of (N, C, H, W) as kernels know it.

    None where there are other axes, or channels lie neither side by side nor in blocks, or are
    padded.
    """
    if len(layout.shape) != IMAGE_AXES:
        return None
    loops: dict[int, list[tuple[int, int]]] = {axis: [] for axis in range(4)}
    n, c, h, w = shape = layout.shape
    plain = [(axis, count, math.prod(shape[axis + 1 :])) for axis, count in enumerate(shape)]
    for axis, count, stride in plain if layout.plain else layout.key[1]:
        loops[axis].append((count, stride))
    channels = loops[1]
    if any(len(loops[axis]) > 1 for axis in (0, 2, 3)) or not 1 <= len(channels) <= 2:
        return None
    block, side_by_side = channels[-1]
    if side_by_side != 1 or math.prod(count for count, _ in channels) != c:
        return None
    image, row, column = (loops[axis][0][1] if loops[axis] else layout.size for axis in (0, 2, 3))
    return Images((n, c, h, w), image, row, column, block, channels[0][1] if block < c else 0)


def _padded_blocks(engine: Engine, layout: Layout) -> Images | None:
    """Return the images of a layout in blocks with the channels that fill the last; else None."""
    if layout is not channel_blocks(engine, layout.shape, BLOCK):
        return None
    n, c, h, w = layout.shape
    return Images.in_blocks((n, -(-c // BLOCK) * BLOCK, h, w), BLOCK)


def _fitting(layout: Layout, width: int) -> Images | None:
    """Return the images of a layout; None where it has no vectors of so many channels."""
    images = images_of(layout)
    return images if images is not None and images.fits(width) else None
