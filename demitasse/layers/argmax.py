"""ArgMax: indices of the largest values, and the values on request."""

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive
from demitasse.layers.registry import register_layer


@register_layer("ArgMax")
class ArgMax(Layer):
    """The ``top_k`` largest values of each row or, with ``axis``, along that axis.

    The values are in falling order; of equal values, the value with the higher index is first.

    Source: Caffe, ``src/caffe/layers/argmax_layer.cpp``.
    Shapes: bottom (N, ...) -> top (N, 1, top_k) of indices into the flattened row, or with
    ``out_max_val`` (N, 2, top_k) of indices and values. With ``axis``: the bottom's shape, but
    top_k long along that axis, of indices, or with ``out_max_val`` of values.

    Raises:
        ConfigError: ``top_k`` is 0, or more than there are values.
        ShapeError: The bottom has no such axis.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.argmax_param
        self.values, self.k = p.out_max_val, positive(p.top_k, "argmax_param.top_k")
        self.axis = bottom[0].canonical_axis(p.axis) if p.HasField("axis") else None

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape, axis = bottom[0].shape, self.axis
        choice = bottom[0].count_from(1) if axis is None else shape[bottom[0].canonical_axis(axis)]
        if self.k > choice:
            expected = f"at most the {choice} values of bottom {bottom[0].name!r} {shape}"
            raise out_of_range("argmax_param.top_k", self.k, expected)
        if axis is None:
            ones = (1,) * max(0, len(shape) - 3)
            top[0].reshape((shape[0], 1 + self.values, self.k, *ones))
        else:
            top[0].reshape((*shape[:axis], self.k, *shape[axis + 1 :]))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x, axis = self.xp, bottom[0].read(), self.axis
        if axis is None:
            x, axis = xp.reshape(x, (x.shape[0], bottom[0].count_from(1))), 1
        indices, values = self._largest(x, axis)
        best = values if self.values else indices
        if self.values and self.axis is None:
            best = xp.stack([indices, values], axis=1)  # (N, 2, k)
        top[0].write(xp.reshape(best, top[0].shape))

    def _largest(self, x: Array, axis: int) -> tuple[Array, Array]:
        """Return indices and values of the k largest along an axis, both k long along the axis."""
        xp, n = self.xp, x.shape[axis]
        if self.k == 1:
            largest = xp.max(x, axis=axis, keepdims=True)
            numbers = xp.reshape(self.cast(self.arange(n)), (n, *(1,) * (x.ndim - axis - 1)))
            places = xp.where((x == largest) | xp.isnan(x), numbers, 0.0)  # NaN is the largest
            return xp.max(places, axis=axis, keepdims=True), largest
        # backwards, so that of equal values the last comes first
        order = xp.argsort(-xp.flip(x, axis=axis), axis=axis, stable=True)
        places = (n - 1) - xp.take(order, self.arange(self.k), axis=axis)
        return self.cast(places), xp.take_along_axis(x, places, axis=axis)
