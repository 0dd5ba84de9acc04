"""Flatten: several axes made one; nothing is copied.

Source: Caffe, ``src/caffe/layers/flatten_layer.cpp``.
"""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.layers.registry import register
from demitasse.layers.view import ViewLayer

__all__ = ["Flatten"]


@register("Flatten")
class Flatten(ViewLayer):
    """Join the axes ``axis`` to ``end_axis``, both included.

    Shapes: bottom (*lead, *joined, *rest) -> top (*lead, product of joined, *rest), the same data.

    Raises:
        ShapeError: There are no such axes, or the last comes before the first.
        NetError: The top is the bottom.
    """

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        p = self.param.flatten_param
        first, last = bottom.canonical_axis(p.axis), bottom.canonical_axis(p.end_axis)
        joined = bottom.count_between(first, last + 1)
        return (*bottom.shape[:first], joined, *bottom.shape[last + 1 :])
