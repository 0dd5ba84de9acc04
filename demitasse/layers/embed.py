"""Embed: each index is replaced by its row of a table, y = W[x] (+ b)."""

from demitasse.backends import ops
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import check_indices, positive
from demitasse.layers.registry import register_layer


@register_layer("Embed")
class Embed(Layer):
    """Return rows of a table: a fully connected layer whose one-hot input is given as indices.

    Source: Caffe, ``src/caffe/layers/embed_layer.cpp``.
    Shapes: bottom (...) of indices 0 to K - 1 -> top (..., M). Weight (K, M), bias (M,), where K is
    ``input_dim`` and M ``num_output``.

    Raises:
        ConfigError: ``num_output`` or ``input_dim`` is missing or 0.
        ShapeError: An index is not in the table. Indices that a device computes are not checked on
            GPUs: CuPy counts them modulo K, and a row outside of the table gets no gradient.
    """

    bottoms = tops = Exactly(1)
    differentiable = ()

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.embed_param
        self.m = positive(p.num_output, "embed_param.num_output")
        self.k = positive(p.input_dim, "embed_param.input_dim")
        self.has_bias = p.bias_term
        self.add_param((self.k, self.m), p.weight_filler)
        if self.has_bias:
            self.add_param((self.m,), p.bias_filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape((*bottom[0].shape, self.m))
        self.op = ops.Embed(self.dtype, bottom[0].count, self.k, self.m)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        check_indices(bottom[0], self.k, "rows in the table")
        words = xp.reshape(self.cast(bottom[0].read(), "int64"), (bottom[0].count,))
        try:
            y = xp.take(self.blobs[0].read(), words, axis=0)  # (count, M)
        except IndexError:  # raised by a library that checks indices which we have not
            check_indices(bottom[0], self.k, "rows in the table", wait=True)
            raise
        if self.has_bias:
            y = y + self.blobs[1].read()
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, count = self.xp, bottom[0].count
        dy = xp.reshape(top[0].read_diff(), (count, self.m))
        if self.param_propagate_down(0):
            words = xp.reshape(self.cast(bottom[0].read(), "int64"), (count,))
            self.blobs[0].add_diff(self.device.backend.scatter_add(dy, words, self.k))
        if self.has_bias and self.param_propagate_down(1):
            self.blobs[1].add_diff(xp.sum(dy, axis=0))
