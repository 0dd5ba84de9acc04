"""Shared code of both directions of a convolution."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from demitasse.backends import ops
from demitasse.backends.onednn.library.engine import Engine
from demitasse.backends.onednn.library.layout import dims
from demitasse.backends.onednn.step import NEEDS_BOTTOM, OnednnStep
from demitasse.backends.step import Declined, Operands, decline_in_place
from demitasse.backends.windows import ConvGeometry

__all__ = ["WindowStep"]

C = TypeVar("C", bound=ops.Conv)

MOST_AXES = 3


class WindowStep(OnednnStep[C]):
    """A convolution, or the gradient of one, between an image and a map.

    Attributes:
        image: Shape of the image, (N, C, *spatial).
        maps: Shape of the map, (N, M, *positions).
        w: Shape of the weight, (M, C, *kernel), or (G, M / G, C / G, *kernel) of several groups.
        window: Strides, dilations and pads, before and after, as a primitive takes them.
    """

    def __init__(self, engine: Engine, op: C, at: Operands) -> None:
        super().__init__(engine, op, at)
        decline_in_place(self.at, NEEDS_BOTTOM)
        axes = len(op.kernel)
        if not 1 <= axes <= MOST_AXES:
            message = f"{axes} spatial axes; oneDNN takes 1 to {MOST_AXES}"
            raise Declined(message)
        if len(at.bottom) != 1:
            message = f"{len(at.bottom)} bottoms; oneDNN's Step takes one"
            raise Declined(message)
        g = self.geometry()
        self.image, self.maps = (g.n, g.channels, *g.spatial), (g.n, g.maps, *g.positions)
        shape = (g.maps // g.group, g.channels // g.group, *op.kernel)
        self.w = shape if g.group == 1 else (g.group, *shape)
        pad = dims(op.pad)
        self.window = [dims(op.stride), dims(tuple(d - 1 for d in op.dilation)), pad, pad]

    @abstractmethod
    def geometry(self) -> ConvGeometry:
        """Return where image and map are."""
