"""Split: several readers of one blob; their gradients are summed."""

from demitasse.backends import ops
from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register_layer


@register_layer("Split")
class Split(Layer):
    """Give each reader its own gradient; the data is shared, not copied.

    Source: Caffe, ``src/caffe/layers/split_layer.cpp``.
    Shapes: bottom any -> every top the same.

    Raises:
        NetError: A top is the bottom.
    """

    bottoms = Exactly(1)
    tops = AtLeast(1)
    in_place = False

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob in top:
            blob.reshape_like(bottom[0])
            blob.share_data(bottom[0])
        self.op = ops.Split(dtype=self.dtype, shape=bottom[0].shape, tops=len(top))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        for blob in top:
            blob.share_data(bottom[0])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            total = top[0].read_diff()
            for blob in top[1:]:
                total = total + blob.read_diff()
            bottom[0].write_diff(total)
