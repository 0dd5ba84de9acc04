"""Reduction: all axes from ``axis`` on become one number, a sum or a mean, times ``coeff``."""

from demitasse.backends.arrays import Array
from demitasse.io.proto import ReductionParameter
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.registry import register_layer


@register_layer("Reduction")
class Reduction(Layer):
    """SUM of x, ASUM of abs(x), SUMSQ of x * x, or MEAN of x; with a loss weight it is a loss.

    Source: Caffe, ``src/caffe/layers/reduction_layer.cpp``.
    Shapes: bottom (*lead, *rest) -> top (*lead,); ``rest`` starts at ``axis``.

    Raises:
        ShapeError: The bottom has no such axis.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.reduction_param
        self.operation = ReductionParameter.ReductionOp.Name(p.operation)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.reduction_param
        axis = bottom[0].canonical_axis(p.axis)
        top[0].reshape(bottom[0].shape[:axis])
        self.view = (bottom[0].count_to(axis), bottom[0].count_from(axis))
        self.factor = p.coeff
        if self.operation == "MEAN" and self.view[1]:
            self.factor = p.coeff / self.view[1]

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, self._rows(bottom)
        if self.operation == "ASUM":
            x = xp.abs(x)
        elif self.operation == "SUMSQ":
            x = x * x
        top[0].write(xp.reshape(xp.sum(x, axis=1) * self.factor, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not propagate_down[0]:
            return
        xp = self.xp
        dy = xp.reshape(top[0].read_diff(), (self.view[0], 1)) * self.factor
        if self.operation == "ASUM":
            dx = dy * xp.sign(self._rows(bottom))
        elif self.operation == "SUMSQ":
            dx = 2 * dy * self._rows(bottom)
        else:
            dx = xp.broadcast_to(dy, self.view)
        bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))

    def _rows(self, bottom: Blobs) -> Array:
        return self.xp.reshape(bottom[0].read(), self.view)
