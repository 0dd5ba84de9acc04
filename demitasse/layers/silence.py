"""Silence: readers for blobs that nobody reads, so that they are not net outputs.

Source: Caffe, ``src/caffe/layers/silence_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register_layer


@register_layer("Silence")
class Silence(Layer):
    """Take any blobs and do nothing with them; their gradients are 0.

    Shapes: bottoms any -> no top.
    """

    bottoms = AtLeast(1)
    tops = Exactly(0)
    is_alias = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Nothing: there are no tops."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Nothing."""

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                blob.set_diff(0)
