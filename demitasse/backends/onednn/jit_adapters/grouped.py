"""Convolutions of small groups: kernels of a Step, and their calls."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from demitasse.backends import ops
from demitasse.backends.kernels.grouped import GroupedSchedule
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.arguments import InputArg, OutputArg, written_layout
from demitasse.backends.onednn.jit_adapters.calls import (
    ChannelCall,
    ConvKernels,
    ConvOperands,
    FilterGradientCall,
    GradientOperands,
    images_of,
)
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.library.primitive import channel_blocks
from demitasse.backends.step import Layouts

if TYPE_CHECKING:
    from demitasse.backends.kernels.grouped import GroupedConvolution


class GroupedKernels(ConvKernels):
    """Kernels of convolutions of groups of few channels.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        groups: How it is divided.
    """

    channels_last = True
    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, groups: GroupedSchedule) -> None:
        super().__init__(engine, x)
        self.groups = groups

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> GroupedCall | None:
        return None if pool else self._grouped(self.groups, operands)

    def data(self, operands: ConvOperands) -> GroupedCall | None:
        gradient = self.groups.input_gradient
        return self._grouped(gradient, operands, backward=True) if gradient else None

    def weights(self, operands: GradientOperands) -> GroupedGradientCall | None:
        groups = self.groups
        source, x = self._read_groups(groups, operands.source, operands.layouts)
        dy, y = self._read_groups(groups, operands.dy, operands.layouts)
        if x is None or y is None or not groups.shared:
            return None

        operands = replace(operands, source=source, dy=dy)
        return GroupedGradientCall(self.engine, groups, operands, (x, y))

    def _grouped(
        self,
        groups: GroupedSchedule,
        operands: ConvOperands,
        *,
        backward: bool = False,
    ) -> GroupedCall | None:
        source, x = self._read_groups(groups, operands.source, operands.layouts)
        target, y = operands.target, _of_groups(groups, operands.target.layout)
        if x is None:
            return None
        if y is None:
            alike = self._alike(x, groups.y)
            target = OutputArg(target.role, target.blob, alike, diff=target.diff)
            y = _of_groups(groups, alike)
        if y is None:
            return None

        operands = replace(operands, source=source, target=target)
        return GroupedCall(self.engine, groups, operands, (x, y), backward=backward)

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


class GroupedCall(ChannelCall):
    """A convolution of small groups of channels.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where those lie that are read, and those that are written.
        backward: Whether it is the gradient of another's input, whose weights it takes.
    """

    def __init__(
        self,
        engine: Engine,
        parts: GroupedSchedule,
        operands: ConvOperands,
        images: tuple[Images, Images],
        *,
        backward: bool = False,
    ) -> None:
        self._parts, self._images, self._backward = parts, images, backward
        super().__init__(engine, operands, parts.code)

    @cached_property
    def _kernel(self) -> GroupedConvolution:
        from demitasse.backends.kernels.grouped import GroupedConvolution

        return GroupedConvolution(self._parts, *self._images, self.operands.then)

    def _pass_weights(self, weights: np.ndarray) -> None:
        self._kernel.update(weights, backward=self._backward)


class GroupedGradientCall(FilterGradientCall):
    """The gradient of the weights of small groups of channels.

    Args:
        engine: The engine.
        parts: The convolution.
        operands: Its operands.
        images: Where the input's lie, and the output's gradient.
    """

    def __init__(
        self,
        engine: Engine,
        parts: GroupedSchedule,
        operands: GradientOperands,
        images: tuple[Images, Images],
    ) -> None:
        from demitasse.backends.kernels.grouped import GroupedGradient

        self._kernel = GroupedGradient(parts, *images, bias=operands.bias is not None)
        super().__init__(engine, operands, parts.code)

    @property
    def kept_bytes(self) -> int:
        return self._kernel.sums.nbytes

    def _write(
        self, source: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
    ) -> None:
        self._kernel(source, dy, weight, bias)
