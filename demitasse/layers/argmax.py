"""ArgMax: where the largest values are, and what they are if asked."""

import math

from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Layer
from demitasse.layers.checks import out_of_range, positive
from demitasse.layers.registry import register_layer


@register_layer("ArgMax")
class ArgMax(Layer):
    """The ``top_k`` largest values of each row or, with ``axis``, along that axis.

    They come in falling order; of equal values, the one with the higher index comes first.

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
        choice = bottom[0].count_from(1) if self.axis is None else bottom[0].shape[self.axis]
        if self.k > choice:
            expected = f"at most the {choice} values of bottom {bottom[0].name!r} {bottom[0].shape}"
            raise out_of_range("argmax_param.top_k", self.k, expected)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        shape = bottom[0].shape
        if self.axis is None:
            ones = (1,) * max(0, len(shape) - 3)
            top[0].reshape((shape[0], 1 + self.values, self.k, *ones))
        else:
            top[0].reshape((*shape[: self.axis], self.k, *shape[self.axis + 1 :]))

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, bottom[0].read()
        if self.axis is None:
            x = xp.reshape(x, (x.shape[0], bottom[0].count_from(1)))
        else:
            x = xp.moveaxis(x, self.axis, -1)
        lead, n = x.shape[:-1], x.shape[-1]
        x = xp.reshape(x, (math.prod(lead), n))  # (rows, n)
        indices = self._largest(x, n)  # (rows, k)
        if self.values:
            values = xp.take_along_axis(x, indices, axis=1)
        if self.axis is not None:
            best = values if self.values else self.cast(indices)
            best = xp.moveaxis(xp.reshape(best, (*lead, self.k)), -1, self.axis)
        else:
            best = self.cast(indices)
            if self.values:
                best = xp.stack([best, values], axis=1)  # (rows, 2, k)
            best = xp.reshape(best, top[0].shape)
        top[0].write(best)

    def _largest(self, x: Array, n: int) -> Array:
        """Return where the k largest of each row are. Shapes: (rows, n) -> (rows, k)."""
        xp = self.xp
        backwards = xp.flip(x, axis=1)  # so that of equal values the last comes first
        if self.k == 1:
            order = xp.argmax(backwards, axis=1, keepdims=True)
        else:
            order = xp.argsort(-backwards, axis=1, stable=True)[:, : self.k]
        return (n - 1) - order
