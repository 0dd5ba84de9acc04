"""What layers that pool regions of interest share: which bins there are.

The regions are looked at on the host, which waits for them.
"""

from __future__ import annotations

from demitasse.backends.regions import Region
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_shapes

__all__ = ["RegionPooling"]


class RegionPooling(Layer):
    """Pool bins of regions of a map.

    Regions get no gradient, even where ``propagate_down`` asks for it, as in the originals.

    Shapes: bottoms map (N, C, H, W), regions of R x 5 values: item, x1, y1, x2, y2 in pixels of the
    image -> top (R, D, height, width).

    Raises:
        ShapeError: The bottoms do not have these shapes, or a region's image is not in the batch.
        NetError: The top is a bottom.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    in_place = False
    differentiable = (0,)
    refuses_gradients = False
    dynamic_shapes = True  # the regions are looked at on the host

    found: list[Region]

    def top_shape(self, bottom: Blobs) -> tuple[int, ...]:
        """Return channels, height and width of the top."""
        raise NotImplementedError(type(self).__name__)

    def look(self, bottom: Blobs) -> list[Region]:
        """Return the regions with their bins."""
        raise NotImplementedError(type(self).__name__)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        rois = bottom[1]
        if bottom[0].num_axes != 4 or not rois.num_axes or rois.count != 5 * rois.shape[0]:
            raise wrong_shapes(self.type, "a map (N, C, H, W) and regions (R, 5)", *bottom)
        top[0].reshape((rois.shape[0], *self.top_shape(bottom)))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.found = self.look(bottom)
        if self.found:
            self.pool(bottom, top)
        else:
            top[0].write(self.zeros(top[0].shape))

    def pool(self, bottom: Blobs, top: Blobs) -> None:
        """Compute the top from ``found``, which is not empty."""
        raise NotImplementedError(type(self).__name__)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            self.spread(bottom, top)

    def spread(self, bottom: Blobs, top: Blobs) -> None:
        """Write the gradient of the map."""
        raise NotImplementedError(type(self).__name__)
