"""Scale and Bias: a product or a sum with an operand that is broadcast over other axes."""

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.blob import Blob
from demitasse.io.proto import FillerParameter
from demitasse.layers.axes import broadcast_dims, learned_shape
from demitasse.layers.base import Between, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import shape_mismatch
from demitasse.layers.registry import register_layer


class OperandLayer(Layer):
    """Base class of layers whose operand is a second bottom, or else the first parameter."""

    bottoms = Between(1, 2)
    tops = Exactly(1)

    def operand(self, bottom: Blobs) -> Blob:
        """Return the operand."""
        return bottom[1] if len(bottom) > 1 else self.blobs[0]

    def wants_operand_diff(self, bottom: Blobs, propagate_down: Flags) -> bool:
        """Return True if the gradient of the operand is computed."""
        return self.param_propagate_down(0) if len(bottom) == 1 else propagate_down[1]

    def write_operand_diff(self, bottom: Blobs, diff: Array) -> None:
        """Write the sum of a gradient (outer, dim, inner), or add the sum to a parameter's."""
        operand = self.operand(bottom)
        total = self.xp.reshape(self.xp.sum(diff, axis=(0, 2)), operand.shape)
        write = operand.add_diff if len(bottom) == 1 else operand.write_diff
        write(total)

    def broadcast(self, operand: Blob) -> Array:
        """Return an operand in a shape that broadcasts with (outer, dim, inner)."""
        return self.xp.reshape(operand.read(), (1, operand.count, 1))


@register_layer("Scale")
class Scale(OperandLayer):
    """Multiply by a learned scale, or by a second bottom, and add a learned bias if asked to.

    y = x * s (+ b), where s and b span some axes of x and repeat over the others.
    May run in place.

    Source: Caffe, ``src/caffe/layers/scale_layer.cpp``.
    Shapes: bottoms x (*outer, *dims, *inner)[, s dims] -> top as x; ``dims`` begin at ``axis``.
    Parameters s dims, unless it is a bottom, and with ``bias_term`` b dims.

    Raises:
        ConfigError: ``num_axes`` is below -1.
        ShapeError: The scale does not fit the first bottom.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.scale_param
        self.axis, self.has_bias = p.axis, p.bias_term
        if len(bottom) == 1:
            shape = learned_shape(bottom[0], p.axis, p.num_axes, "scale_param")
            ones = FillerParameter(type="constant", value=1)
            self.add_param(shape, p.filler if p.HasField("filler") else ones)
        else:
            shape = bottom[1].shape
        if self.has_bias:
            self.add_param(shape, p.bias_filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        scale = self.operand(bottom)
        self.view = broadcast_dims(bottom[0], scale, self.axis)
        if self.has_bias and self.blobs[-1].shape != scale.shape:
            message = (
                f"the scale {scale.name!r} is now {scale.shape}, but the learned bias is "
                f"{self.blobs[-1].shape}; give the scale the shape it had when the net was made"
            )
            raise shape_mismatch(message, blob=scale.name, got=scale.shape)
        top[0].reshape_like(bottom[0])
        self.op = ops.Scale(self.dtype, *self.view, self.has_bias)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp, x = self.xp, bottom[0].read()
        if top[0] is bottom[0]:
            self.saved("x", bottom[0].shape).write(x)
        y = xp.reshape(x, self.view) * self.broadcast(self.operand(bottom))
        if self.has_bias:
            y = y + self.broadcast(self.blobs[-1])
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp = self.xp
        dy = xp.reshape(top[0].read_diff(), self.view)
        if self.has_bias and self.param_propagate_down(len(self.blobs) - 1):
            bias = self.blobs[-1]
            bias.add_diff(xp.reshape(xp.sum(dy, axis=(0, 2)), bias.shape))
        if self.wants_operand_diff(bottom, propagate_down):
            x = self.saved("x", bottom[0].shape) if top[0] is bottom[0] else bottom[0]
            self.write_operand_diff(bottom, dy * xp.reshape(x.read(), self.view))
        if propagate_down[0]:
            dx = dy * self.broadcast(self.operand(bottom))
            bottom[0].write_diff(xp.reshape(dx, bottom[0].shape))


@register_layer("Bias")
class Bias(OperandLayer):
    """Add a learned bias, or a second bottom; may run in place.

    y = x + b, where b spans some axes of x and repeats over the others.

    Source: Caffe, ``src/caffe/layers/bias_layer.cpp``.
    Shapes: bottoms x (*outer, *dims, *inner)[, b dims] -> top as x; ``dims`` begin at ``axis``.
    Parameter b dims, unless it is a bottom.

    Raises:
        ConfigError: ``num_axes`` is below -1.
        ShapeError: The bias does not fit the first bottom.
    """

    graph_capturable = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.bias_param
        self.axis = p.axis
        if len(bottom) == 1:
            shape = learned_shape(bottom[0], p.axis, p.num_axes, "bias_param")
            self.add_param(shape, p.filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.view = broadcast_dims(bottom[0], self.operand(bottom), self.axis)
        top[0].reshape_like(bottom[0])
        self.op = ops.Bias(self.dtype, *self.view)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        xp = self.xp
        y = xp.reshape(bottom[0].read(), self.view) + self.broadcast(self.operand(bottom))
        top[0].write(xp.reshape(y, top[0].shape))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].read_diff()
        if self.wants_operand_diff(bottom, propagate_down):
            self.write_operand_diff(bottom, self.xp.reshape(dy, self.view))
        if propagate_down[0] and bottom[0] is not top[0]:
            bottom[0].write_diff(dy)
