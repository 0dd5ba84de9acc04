"""BatchReindex: items of a batch chosen, repeated and ordered by a list of indices.

Source: Caffe, ``src/caffe/layers/batch_reindex_layer.cpp``.
"""

from __future__ import annotations

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import check_indices, wrong_shapes
from demitasse.layers.registry import register

__all__ = ["BatchReindex"]


@register("BatchReindex")
class BatchReindex(Layer):
    """y[i] = x[index[i]]; the gradients of an item that was chosen several times add up.

    Shapes: bottoms x (N, ...), index (M,) -> top (M, ...).

    Raises:
        ShapeError: The indices are not a list, or one of them is not in the batch.
    """

    bottoms = Exactly(2)
    tops = Exactly(1)
    differentiable = (0,)
    dynamic_shapes = True  # the indices are looked at on the host

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        if bottom[1].num_axes != 1 or not bottom[0].num_axes:
            raise wrong_shapes("BatchReindex", "items (N, ...) and indices (M,)", *bottom)
        top[0].reshape((bottom[1].count, *bottom[0].shape[1:]))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        check_indices(bottom[1], bottom[0].shape[0], "items in the batch", wait=True)
        top[0].write(self.xp.take(bottom[0].read(), self._indices(bottom), axis=0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp, n = self.xp, bottom[0].shape[0]
        dy = xp.reshape(top[0].read_diff(), (bottom[1].count, bottom[0].count_from(1)))
        dx = self.device.backend.scatter_add(dy, self._indices(bottom), n)
        bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))

    def _indices(self, bottom: Blobs) -> Array:
        return self.cast(bottom[1].read(), "int64")
