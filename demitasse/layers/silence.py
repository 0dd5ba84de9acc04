"""Silence: a reader of unused blobs, which are then no outputs of the net.

Source: Caffe, ``src/caffe/layers/silence_layer.cpp``.
"""

from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register_layer


@register_layer("Silence")
class Silence(Layer):
    """Read any blobs and compute nothing; the gradients are 0. Shapes: bottoms any -> no top."""

    bottoms = AtLeast(1)
    tops = Exactly(0)
    is_alias = True

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: there are no tops."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing."""

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                blob.set_diff(0)
