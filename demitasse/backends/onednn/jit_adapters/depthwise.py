"""Depthwise convolutions: kernels of a Step, and their calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.depthwise import DepthwiseSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.arguments import OutputArg
from demitasse.backends.onednn.jit_adapters.calls import (
    ChannelCall,
    ConvKernels,
    ConvOperands,
    images_in_vectors,
    images_of,
)
from demitasse.backends.onednn.library.constants import Arg
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import BLOCK, channel_blocks
from demitasse.backends.step import Declined, LayoutUse

if TYPE_CHECKING:
    from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution

LARGE = 3 << 19
"""Floats of a stack of images from which on most of them come from memory."""


class DepthwiseKernels(ConvKernels):
    """Kernels of convolutions of each channel by itself, without gradients.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        strips: How it is divided.
        joined: Whether it runs as one with the convolution behind it.
    """

    def __init__(
        self, engine: Engine, x: ops.Shape, strips: DepthwiseSchedule, *, joined: bool
    ) -> None:
        super().__init__(engine, x)
        self.strips, self.joined = strips, joined

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> DepthwiseCall | None:
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
        return DepthwiseCall(self.engine, strips, operands, (x, y), uses)

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


class DepthwiseCall(ChannelCall):
    """A depthwise convolution.

    Args:
        engine: The engine.
        strips: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
        uses: The layouts that it offers and prefers.
    """

    def __init__(
        self,
        engine: Engine,
        strips: DepthwiseSchedule,
        operands: ConvOperands,
        images: tuple[Images, Images],
        uses: Sequence[LayoutUse],
    ) -> None:
        self._strips, self._images, self._uses = strips, images, uses
        super().__init__(engine, operands, strips.code)

    @property
    def layout_uses(self) -> list[LayoutUse]:
        return [*super().layout_uses, *self._uses]

    @cached_property
    def _kernel(self) -> DepthwiseConvolution:
        from demitasse.backends.kernels.depthwise.convolution import DepthwiseConvolution

        return DepthwiseConvolution(self._strips, *self._images, self.operands.then)
