"""What Flatten and Reshape share: the top is the bottom's memory in another shape."""

from __future__ import annotations

from demitasse.blob import Blob
from demitasse.layers.base import Blobs, Exactly, Flags, Layer

__all__ = ["ViewLayer"]


class ViewLayer(Layer):
    """Give the bottom's data and gradient another shape, without copying.

    Raises:
        NetError: The top is the bottom.
    """

    bottoms = tops = Exactly(1)
    in_place = False
    only_shares = True

    def top_shape(self, bottom: Blob) -> tuple[int, ...]:
        """Return the top's shape, which holds as many elements as the bottom's."""
        raise NotImplementedError(type(self).__name__)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape(self.top_shape(bottom[0]))
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].share_data(bottom[0])
        top[0].share_diff(bottom[0])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Do nothing: the gradient is the bottom's already."""
