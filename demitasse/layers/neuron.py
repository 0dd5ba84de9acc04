"""What elementwise layers share: one bottom, one top, equal shapes; usable in place."""

from __future__ import annotations

from demitasse.layers.base import Blobs, Exactly, Layer

__all__ = ["NeuronLayer"]


class NeuronLayer(Layer):
    """A function of every element.

    Shapes: bottom any -> top the same.
    """

    bottoms = tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape_like(bottom[0])
