"""What elementwise layers share: one bottom, one top, equal shapes; usable in place."""

from __future__ import annotations

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Layer

__all__ = ["NeuronLayer"]


class NeuronLayer(Layer):
    """A function of every element.

    Shapes: bottom any -> top the same.
    """

    bottoms = tops = Exactly(1)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape_like(bottom[0])

    def activation(self, function: str, bottom: Blobs, *parameters: float) -> ops.Activation:
        """Return the descriptor of an elementwise function with these constants."""
        return ops.Activation(
            dtype=self.dtype, function=function, count=bottom[0].count, parameters=parameters
        )

    def keep_input(self, bottom: Blobs, top: Blobs) -> None:
        """In place, save the input, for a layer whose backward needs it: ``kept_input``."""
        if top[0] is bottom[0]:
            self.saved("input", bottom[0].shape).write(bottom[0].read())

    def kept_input(self, bottom: Blobs, top: Blobs) -> Array:
        """Return the input of the last forward, also when the output has overwritten it."""
        if top[0] is bottom[0]:
            return self.saved("input", bottom[0].shape).read()
        return bottom[0].read()
