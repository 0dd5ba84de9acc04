"""The kernels that may run a convolution in place of a primitive of the library."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import strips_of
from demitasse.backends.kernels.depthwise.strips import Strips
from demitasse.backends.kernels.direct import banding_of
from demitasse.backends.kernels.direct.banding import Banding
from demitasse.backends.kernels.grouped import group_parts_of
from demitasse.backends.kernels.grouped.parts import GroupParts
from demitasse.backends.kernels.images import Images
from demitasse.backends.kernels.narrow import lines_of
from demitasse.backends.kernels.narrow.lines import Lines
from demitasse.backends.kernels.pointwise import limits_pay, parts_of
from demitasse.backends.kernels.pointwise.parts import Parts
from demitasse.backends.kernels.separable import blocks_of
from demitasse.backends.kernels.tuning import Tuning
from demitasse.backends.kernels.winograd import pools_tiles, tiling_of
from demitasse.backends.kernels.winograd.tiling import Tiling
from demitasse.backends.onednn.library.candidates import BLOCK, channel_blocks
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.images import fitting, images_of
from demitasse.backends.onednn.own_kernels.rectifiers import rectifier_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands
from demitasse.backends.onednn.threads import wanted
from demitasse.backends.step import Declined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demitasse.backends.onednn.own_kernels.conv_calls import (
        DepthwiseCall,
        DirectCall,
        DirectGradientCall,
        GroupedCall,
        GroupedGradientCall,
        NarrowCall,
        PixelsCall,
        TiledFilters,
        UnpackedFilters,
        WinogradCall,
        WinogradGradientCall,
    )

__all__ = ["ConvKernels", "conv_kernels"]

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
        parts: How a pointwise convolution is divided, forward; None where it is another. Only for
            what the library's does not do: to write into a larger output, or within limits.
        lines: How one to few channels is divided, forward; None where it is another.
        groups: How one of small groups of channels is; None where it is another.
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
    lines: Lines | None = None
    groups: GroupParts | None = None
    joined: bool = False
    training: bool = False
    why: tuple[str, ...] = ()
    slow_library: bool = False
    _filters: TiledFilters | UnpackedFilters | None = field(default=None, repr=False)

    @property
    def pads_filters(self) -> bool:
        """Whether filters of few channels fill no whole vectors."""
        return self.banding is not None and self.banding.pads

    def within(self, x: Layout, y: Layout) -> ConvKernels:
        """Return those kernels that read and write images in these layouts."""
        tiling = self.tiling
        if tiling is None:
            return self
        if not (fitting(x, tiling.width) and fitting(y, tiling.width)):
            why = f"the layouts of the images have no blocks of {tiling.width} channels"
            return replace(self, tiling=None, why=(why,))
        return replace(self, _filters=self._tiled_filters(tiling))

    def forward(
        self, operands: ConvOperands, pool: ops.Pool | None
    ) -> WinogradCall | DirectCall | DepthwiseCall | PixelsCall | NarrowCall | GroupedCall | None:
        """Return the forward pass, and perhaps MAX pooling after it."""
        if self.tiling is not None:
            return self._tiled(self.tiling, operands, pool)
        if self.strips is not None:
            return self._depthwise(self.strips, operands, pool)
        if self.parts is not None:
            return self._pointwise(self.parts, operands, pool)
        if self.lines is not None:
            return self._narrow(self.lines, operands, pool)
        if self.groups is not None:
            return self._grouped(self.groups, operands, pool)
        return self._direct(operands, pool)

    @property
    def gains_more(self) -> bool:
        """Whether our kernels gain more than it would to add another blob in the library's code."""
        return any(one is not None for one in (self.tiling, self.lines, self.groups))

    @property
    def takes_slopes(self) -> bool:
        """Whether slopes of channels, for what is below 0, are no reason for the library's code."""
        return self.banding is None and self.parts is None

    def _tiled(
        self, tiling: Tiling, operands: ConvOperands, pool: ops.Pool | None
    ) -> WinogradCall | None:
        x, y = (fitting(port.layout, tiling.width) for port in (operands.source, operands.target))
        if x is None or y is None or (pool and not pools_tiles(pool)):
            return None
        if pool and operands.then.limited:  # minus infinity would not become the least number
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import WinogradCall

        shared = None if operands.given else self._filters
        filters = shared or self._tiled_filters(tiling)
        return WinogradCall(self.engine, tiling, operands, (x, y), filters, pool=pool is not None)

    def _tiled_filters(self, tiling: Tiling) -> TiledFilters | UnpackedFilters:
        from demitasse.backends.onednn.own_kernels.conv_calls import TiledFilters, UnpackedFilters

        if tiling.unpacked:
            return UnpackedFilters()
        return TiledFilters(self.engine, tiling, kept=not self.training)

    def _depthwise(
        self, strips: Strips, operands: ConvOperands, pool: ops.Pool | None
    ) -> DepthwiseCall | None:
        source = self._as_it_comes(operands.source, strips.width)
        target = self._in_blocks(operands.target)
        x, y = (fitting(port.layout, strips.width) for port in (source, target))
        if x is None or y is None or pool:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import DepthwiseCall

        if self.joined and self.x[0] == 1:
            self._wish_for_blocks(strips, source)
        operands = replace(operands, source=source, target=target)
        return DepthwiseCall(self.engine, strips, operands, (x, y))

    def _wish_for_blocks(self, strips: Strips, source: Reader) -> None:
        """Let who writes the image know that it is best read in blocks of a vector of channels.

        Rows of a block stay in the first cache, where the same channels of pixels with all theirs
        would compete for a few lines of it.
        """
        with suppress(Declined):
            blocks = channel_blocks(self.engine, self.x, BLOCK)
            images = images_of(blocks)
            if images is not None and strips.reads_blocks(images):
                self.engine.wish(source.memory, blocks, source.blob)

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
        in_part = home is not None and not home.is_whole
        gains = in_part or (operands.then.limited and limits_pay(parts))
        if not gains or x is None or y is None or pool:
            return None  # the library's own code is good
        from demitasse.backends.kernels.pointwise.convolution import is_rows
        from demitasse.backends.onednn.own_kernels.conv_calls import PixelsCall

        if not (is_rows(x) and is_rows(y)):
            return None
        return PixelsCall(self.engine, parts, operands, (x, y))

    def _narrow(
        self, lines: Lines, operands: ConvOperands, pool: ops.Pool | None
    ) -> NarrowCall | None:
        source = self._as_it_comes(operands.source, lines.width)
        x = fitting(source.layout, lines.width)
        if x is None or pool:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import NarrowCall

        target = Writer(Arg.DST, operands.target.blob, self.engine.plain(lines.y))
        operands = replace(operands, source=source, target=target)
        return NarrowCall(self.engine, lines, operands, x)

    def _grouped(
        self,
        groups: GroupParts,
        operands: ConvOperands,
        pool: ops.Pool | None = None,
        *,
        backward: bool = False,
    ) -> GroupedCall | None:
        source, x = self._read_groups(groups, operands.source)
        target, y = operands.target, _of_groups(groups, operands.target.layout)
        if x is None or pool:
            return None
        if y is None:
            alike = self._alike(x, groups.y)
            target = Writer(target.role, target.blob, alike, diff=target.diff)
            y = _of_groups(groups, alike)
        if y is None:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import GroupedCall

        operands = replace(operands, source=source, target=target)
        return GroupedCall(self.engine, groups, operands, (x, y), backward=backward)

    def _read_groups(self, groups: GroupParts, port: Reader) -> tuple[Reader, Images | None]:
        """Return a port of the same blob that the kernel of groups can read, and its images.

        The library's may lie in blocks of a group. Then it is the layout in which it is written.
        """
        images = _of_groups(groups, port.layout)
        if images is not None:
            return port, images
        expected = self.engine.expected(port.memory, port.layout.shape)
        return (
            Reader(port.role, port.blob, expected, diff=port.diff),
            _of_groups(groups, expected),
        )

    def _alike(self, images: Images, shape: ops.Shape) -> Layout:
        """Return the layout of images of a shape that lie as others do."""
        if images.block == images.shape[1]:
            return self.engine.innermost_layout(shape, 1)
        return channel_blocks(self.engine, shape, images.block)

    def _as_it_comes(self, port: Reader, width: int) -> Reader:
        """Return a port of the same blob in the layout in which it is written, if that fits."""
        expected = self.engine.expected(port.blob.data_memory, self.x)
        return Reader(Arg.SRC, port.blob, expected) if fitting(expected, width) else port

    def _direct(self, operands: ConvOperands, pool: ops.Pool | None) -> DirectCall | None:
        if self.banding is None or not (pool or self.banding.pads or self.slow_library):
            return None  # the library's own code is good
        target = operands.target
        if pool:  # without gradients; those would read it in the layout of before
            target = self._as_it_is_read(target, self.banding.width)
        y = fitting(target.layout, self.banding.width)
        if y is None:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import DirectCall

        banding = replace(self.banding, pool=pool)
        operands = replace(operands, source=self._plain(operands.source), target=target)
        return DirectCall(self.engine, banding, operands, y)

    def _as_it_is_read(self, port: Writer, width: int) -> Writer:
        """Return a port of the same blob in the layout in which it will be read, if that fits."""
        wished = self.engine.wished(port.blob.data_memory, port.layout.shape)
        if wished is None or not fitting(wished, width):
            return port
        return Writer(Arg.DST, port.blob, wished)

    def weights(
        self, operands: GradientOperands
    ) -> WinogradGradientCall | DirectGradientCall | GroupedGradientCall | None:
        """Return the gradient of the weights, in C order, and of the bias."""
        if self.groups is not None:
            return self._group_weights(self.groups, operands)
        if self.tiling is None and self.banding is None:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import (
            DirectGradientCall,
            WinogradGradientCall,
        )

        if self.tiling is not None:
            tiling, ports = self.tiling, (operands.source, operands.dy)
            x, y = (fitting(port.layout, tiling.width) for port in ports)
            if x is None or y is None:
                return None
            return WinogradGradientCall(self.engine, tiling, operands, (x, y))
        if self.banding is None:
            return None
        y = fitting(operands.dy.layout, self.banding.width)
        if y is None:
            return None
        operands = replace(operands, source=self._plain(operands.source))
        return DirectGradientCall(self.engine, self.banding, operands, y)

    def _group_weights(
        self, groups: GroupParts, operands: GradientOperands
    ) -> GroupedGradientCall | None:
        source, x = self._read_groups(groups, operands.source)
        dy, y = self._read_groups(groups, operands.dy)
        if x is None or y is None or not groups.shared:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import GroupedGradientCall

        operands = replace(operands, source=source, dy=dy)
        return GroupedGradientCall(self.engine, groups, operands, (x, y))

    def data(self, operands: ConvOperands) -> WinogradCall | GroupedCall | None:
        """Return the gradient of the input: a convolution of the output's with turned filters."""
        if self.groups is not None and self.groups.turned is not None:
            return self._grouped(self.groups.turned, operands, backward=True)
        if self.tiling is None:
            return None
        turned = self.tiling.backward
        x, y = (fitting(port.layout, turned.width) for port in (operands.source, operands.target))
        if x is None or y is None:
            return None
        from demitasse.backends.onednn.own_kernels.conv_calls import TiledFilters, WinogradCall

        filters = TiledFilters(self.engine, turned)
        return WinogradCall(self.engine, turned, operands, (x, y), filters)

    def _plain(self, port: Reader) -> Reader:
        """Return a port of the same blob in C order, which direct convolution reads."""
        return Reader(Arg.SRC, port.blob, self.engine.plain(self.x))


def _of_groups(groups: GroupParts, layout: Layout) -> Images | None:
    """Return the images of a layout; None where the kernel of groups does not take it."""
    images = images_of(layout)
    return images if images is not None and groups.fits(images) else None


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
    groups = None
    if not training:
        with suppress(Declined):
            return replace(found, lines=lines_of(op, x, y, tuning))
    with suppress(Declined):
        parts = group_parts_of(op, x, y, tuning)
        groups = parts if parts.shared or not training else None
    if groups is not None and groups.beats_tiles:
        return replace(found, groups=groups)
    try:
        return replace(found, tiling=tiling_of(op, x, y, tuning, training=training))
    except Declined as declined:
        tiled = str(declined)
    if groups is not None:
        return replace(found, groups=groups)
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
        if isinstance(follower, ops.Activation):
            try:
                rectifier_of(follower)
            except Declined:
                return False
        elif not isinstance(follower, (ops.BatchNorm, ops.Scale)):
            return False
    return False
