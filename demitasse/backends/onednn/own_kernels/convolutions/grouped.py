"""Convolutions of small groups of channels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from demitasse.backends import ops
from demitasse.backends.kernels.grouped.schedule import GroupParts
from demitasse.backends.kernels.images import Images
from demitasse.backends.onednn.library.candidates import channel_blocks
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import Layout
from demitasse.backends.onednn.own_kernels.convolutions.kernels import ConvKernels
from demitasse.backends.onednn.own_kernels.images import images_of
from demitasse.backends.onednn.ports import Reader, Writer
from demitasse.backends.onednn.steps.conv_operands import ConvOperands, GradientOperands

if TYPE_CHECKING:
    from demitasse.backends.onednn.own_kernels.convolutions.grouped_calls import (
        GroupedCall,
        GroupedGradientCall,
    )

__all__ = ["GroupedKernels"]


class GroupedKernels(ConvKernels):
    """Kernels of convolutions of groups of few channels.

    Args:
        engine: The engine.
        x: The input's shape, (N, C, H, W).
        groups: How it is divided.
    """

    channels_last = True
    gains_more = True

    def __init__(self, engine: Engine, x: ops.Shape, groups: GroupParts) -> None:
        super().__init__(engine, x)
        self.groups = groups

    def forward(self, operands: ConvOperands, pool: ops.Pool | None) -> GroupedCall | None:
        return None if pool else self._grouped(self.groups, operands)

    def data(self, operands: ConvOperands) -> GroupedCall | None:
        turned = self.groups.turned
        return self._grouped(turned, operands, backward=True) if turned else None

    def weights(self, operands: GradientOperands) -> GroupedGradientCall | None:
        groups = self.groups
        source, x = self._read_groups(groups, operands.source)
        dy, y = self._read_groups(groups, operands.dy)
        if x is None or y is None or not groups.shared:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.grouped_calls import (
            GroupedGradientCall,
        )

        operands = replace(operands, source=source, dy=dy)
        return GroupedGradientCall(self.engine, groups, operands, (x, y))

    def _grouped(
        self,
        groups: GroupParts,
        operands: ConvOperands,
        *,
        backward: bool = False,
    ) -> GroupedCall | None:
        source, x = self._read_groups(groups, operands.source)
        target, y = operands.target, _of_groups(groups, operands.target.layout)
        if x is None:
            return None
        if y is None:
            alike = self._alike(x, groups.y)
            target = Writer(target.role, target.blob, alike, diff=target.diff)
            y = _of_groups(groups, alike)
        if y is None:
            return None
        from demitasse.backends.onednn.own_kernels.convolutions.grouped_calls import GroupedCall

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


def _of_groups(groups: GroupParts, layout: Layout) -> Images | None:
    """Return the images of a layout; None where the kernel of groups does not take it."""
    images = images_of(layout)
    return images if images is not None and groups.fits(images) else None
