"""Input: blobs that the caller fills.

Source: Caffe, ``src/caffe/layers/input_layer.cpp``.
"""

from __future__ import annotations

from demitasse.layers.base import AtLeast, Blobs, Exactly, Layer
from demitasse.layers.checks import wrong_count
from demitasse.layers.registry import register

__all__ = ["Input"]


@register("Input")
class Input(Layer):
    """Net inputs: one shape for all tops, or one for each.

    Shapes: no bottom -> tops as given.

    Raises:
        ConfigError: The number of shapes is neither 0, 1 nor the number of tops.
    """

    bottoms = Exactly(0)
    tops = AtLeast(1)
    only_shares = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        del bottom
        shapes = self.param.input_param.shape
        if len(shapes) not in {0, 1, len(top)}:
            raise wrong_count(
                "input_param.shape", len(shapes), f"0, 1 or {len(top)}, one for each top"
            )
        for index, blob in enumerate(top):
            if shapes:
                blob.reshape(shapes[min(index, len(shapes) - 1)])

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Nothing: the caller may have reshaped the inputs."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Nothing: the caller has filled the inputs."""

    def backward(self, top: Blobs, propagate_down: list[bool], bottom: Blobs) -> None:  # type: ignore[override]
        """Nothing: there is nobody above."""
