"""InnerProduct: a fully connected layer, y = x W^T + b."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import check_row_size, positive
from demitasse.layers.registry import register_layer


@register_layer("InnerProduct")
class InnerProduct(Layer):
    """Multiply each flattened row by a weight matrix and add a bias.

    Source: Caffe, ``src/caffe/layers/inner_product_layer.cpp``.
    Shapes: bottom (*lead, *rest) -> top (*lead, M); ``rest`` starts at ``axis``, K is its product.
    Weight (M, K), or (K, M) with ``transpose``; bias (M,).

    Raises:
        ConfigError: ``num_output`` is missing or 0.
        ShapeError: The bottom's K is not the weight's.
        NetError: The gradient of the weight is wanted in place.
    """

    bottoms = tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.inner_product_param
        self.m = positive(p.num_output, "inner_product_param.num_output")
        self.transpose, self.has_bias = p.transpose, p.bias_term
        self.axis = bottom[0].canonical_axis(p.axis)
        self.k = bottom[0].count_from(self.axis)
        self.add_param((self.k, self.m) if self.transpose else (self.m, self.k), p.weight_filler)
        if self.has_bias:
            self.add_param((self.m,), p.bias_filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        check_row_size(bottom[0], self.axis, self.k, f"the weight {self.blobs[0].shape}")
        self.rows = bottom[0].count_to(self.axis)
        top[0].reshape((*bottom[0].shape[: self.axis], self.m))
        sizes = self.rows, self.k, self.m
        self.op = ops.InnerProduct(self.dtype, *sizes, self.transpose, self.has_bias)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        x = xp.reshape(bottom[0].read(), (self.rows, self.k))
        y = xp.matmul(x, self._weight_km())  # (rows, M)
        if self.has_bias:
            y = y + self.blobs[1].read()
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp = self.xp
        dy = xp.reshape(top[0].read_diff(), (self.rows, self.m))
        if self.param_propagate_down(0):
            self.refuse_overwritten(bottom, top, propagate_down)
            x = xp.reshape(bottom[0].read(), (self.rows, self.k))
            pair = (x, dy) if self.transpose else (dy, x)
            self.blobs[0].add_diff(xp.matmul(pair[0].T, pair[1]))
        if self.has_bias and self.param_propagate_down(1):
            self.blobs[1].add_diff(xp.sum(dy, axis=0))
        if propagate_down[0]:
            dx = xp.matmul(dy, self._weight_km().T)  # (rows, K)
            bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))

    def _weight_km(self) -> Array:
        weight = self.blobs[0].read()
        return weight if self.transpose else weight.T
