"""Activations: elementwise functions with one bottom and one top of equal shapes.

Source: Caffe, ``src/caffe/layers``; other sources are named in the classes.
"""

from demitasse.backends import normal, ops
from demitasse.backends.arrays import Array
from demitasse.io.proto import FillerParameter
from demitasse.layers.axes import Channels
from demitasse.layers.base import Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import missing
from demitasse.layers.numerics import sigmoid
from demitasse.layers.registry import register_layer


class NeuronLayer(Layer):
    """Base class of elementwise functions; usable in place. Shapes: bottom any -> top the same."""

    bottoms = tops = Exactly(1)
    function: str = ""
    """Function of the operation."""
    constants: tuple[float, ...] = ()
    """Constants of the function."""
    needs_input = False
    """True if ``derivative`` reads ``saved_input``."""

    def value(self, x: Array) -> Array:
        """Return the function of x."""
        raise NotImplementedError(type(self).__name__)

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        """Return the derivative, by which a gradient is multiplied."""
        raise NotImplementedError(type(self).__name__)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        if self.needs_input:
            self.save_input(bottom, top)
        top[0].write(self.value(bottom[0].read()))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            bottom[0].write_diff(top[0].read_diff() * self.derivative(bottom, top))

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape_like(bottom[0])
        if self.function:
            self.op = ops.Activation(self.dtype, self.function, bottom[0].count, self.constants)

    def save_input(self, bottom: Blobs, top: Blobs) -> None:
        """Save the input of a layer that runs in place, for ``saved_input``."""
        if top[0] is bottom[0]:
            self.saved("input", bottom[0].shape).write(bottom[0].read())

    def saved_input(self, bottom: Blobs, top: Blobs) -> Array:
        """Return the input of the last forward, also after the output has overwritten it."""
        if top[0] is bottom[0]:
            return self.saved("input", bottom[0].shape).read()
        return bottom[0].read()


@register_layer("AbsVal")
class AbsVal(NeuronLayer):
    """Absolute value of every element; the gradient at 0 is 0.

    y = |x|.

    Source: Caffe, ``src/caffe/layers/absval_layer.cpp``.
    Shapes: bottom any -> top the same.

    Raises:
        NetError: The top is the bottom, which would lose the signs.
    """

    in_place = False
    function = "abs"

    def value(self, x: Array) -> Array:
        return self.xp.abs(x)

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        return self.xp.sign(bottom[0].read())


LARGEST = 50.0  # largest exponent in the gradient


@register_layer("BNLL")
class BNLL(NeuronLayer):
    """Softplus of every element, stable for large values; may run in place.

    y = log(1 + exp(x)), the binomial negative log likelihood.

    Source: Caffe, ``src/caffe/layers/bnll_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "bnll"
    needs_input = True

    def value(self, x: Array) -> Array:
        xp = self.xp
        return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        xp = self.xp
        e = xp.exp(xp.minimum(self.saved_input(bottom, top), LARGEST))
        return e / (e + 1)


@register_layer("Clip")
class Clip(NeuronLayer):
    """Limit every element to [min, max]; the gradient passes there, ends included.

    y = max(min, min(x, max)).
    May run in place.

    Source: Caffe, ``src/caffe/layers/clip_layer.cpp``.
    Shapes: bottom any -> top the same.

    Raises:
        ConfigError: ``clip_param`` lacks ``min`` or ``max``.
    """

    function = "clip"
    needs_input = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.clip_param
        if not (p.HasField("min") and p.HasField("max")):
            field = "max" if p.HasField("min") else "min"
            raise missing(f"clip_param.{field}", "Clip needs both min and max")
        self.min, self.max = self.constants = p.min, p.max

    def value(self, x: Array) -> Array:
        return self.xp.maximum(self.xp.minimum(x, self.max), self.min)

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        x = self.saved_input(bottom, top)
        return self.cast((x >= self.min) & (x <= self.max))


@register_layer("ELU")
class ELU(NeuronLayer):
    """Exponential linear unit of every element; may run in place.

    y = x where x > 0, else alpha (exp(x) - 1).

    Source: Caffe, ``src/caffe/layers/elu_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "elu"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.alpha = self.param.elu_param.alpha
        self.constants = (self.alpha,)
        self.needs_input = self.alpha < 0  # otherwise the output has the sign of the input

    def value(self, x: Array) -> Array:
        xp = self.xp
        below = xp.expm1(xp.minimum(x, 0.0))  # exact for small x, too
        return xp.maximum(x, 0.0) + self.alpha * below

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        x = self.saved_input(bottom, top) if self.needs_input else bottom[0].read()
        above = self.cast(x > 0)
        return above + (1 - above) * (top[0].read() + self.alpha)


@register_layer("GELU")
class GELU(NeuronLayer):
    """Gaussian error linear unit of every element; may run in place.

    y = x Phi(x), where Phi is the distribution function of a standard normal variable.

    Source: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415; the exact form, by
    erf, as ``torch.nn.GELU`` computes it. Caffe does not have it.
    Shapes: bottom any -> top the same.
    """

    function = "gelu"
    needs_input = True

    def value(self, x: Array) -> Array:
        return normal.gelu(self.xp, x)

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        return normal.gelu_slope(self.xp, self.saved_input(bottom, top))


@register_layer("PReLU")
class PReLU(NeuronLayer):
    """Leaky rectified linear unit whose slope is learned; may run in place.

    y = max(x, 0) + slope min(x, 0), with a learned slope.

    Source: Caffe, ``src/caffe/layers/prelu_layer.cpp``.
    Shapes: bottom (N, C, ...) -> top the same. Slope (C,), or () with ``channel_shared``.

    Raises:
        ShapeError: The bottom has fewer than two axes, or other channels than the slope.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        p = self.param.prelu_param
        self.shared = p.channel_shared
        self.channels = Channels.of(bottom[0], self.type).count
        filler = p.filler if p.HasField("filler") else FillerParameter(value=0.25)
        self.add_param(() if self.shared else (self.channels,), filler)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        channels = Channels.of(bottom[0], self.type)
        if not self.shared:
            channels.need(self.channels, bottom[0], "slopes")
        self.channel_shape = () if self.shared else channels.channel_shape
        super().reshape(bottom, top)
        self.op = ops.PReLU(dtype=self.dtype, bottom=bottom[0].shape, shared=self.shared)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        self.save_input(bottom, top)
        xp, x = self.xp, bottom[0].read()
        top[0].write(xp.maximum(x, 0.0) + self._slope() * xp.minimum(x, 0.0))

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        xp, x, dy = self.xp, self.saved_input(bottom, top), top[0].read_diff()
        if self.param_propagate_down(0):
            axes = [i for i in range(bottom[0].num_axes) if self.shared or i != 1]
            slope_diff = xp.sum(dy * xp.minimum(x, 0.0), axis=tuple(axes))
            self.blobs[0].add_diff(xp.reshape(slope_diff, self.blobs[0].shape))
        if propagate_down[0]:
            above = self.cast(x > 0)
            bottom[0].write_diff(dy * (above + (1 - above) * self._slope()))

    def _slope(self) -> Array:
        """Return the slope in a shape that broadcasts with the bottom."""
        return self.xp.reshape(self.blobs[0].read(), self.channel_shape)


TOP = 6.0
"""The largest value of ReLU6."""


class Rectifier(NeuronLayer):
    """Rectified linear unit of every element.

    Attributes:
        slope: Factor of values below 0.
        limited: True if the result is at most 6.
    """

    slope: float
    limited: bool

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        self.needs_input = self.slope < 0  # otherwise the output determines the slope
        self.function, self.constants = "relu6" if self.limited else "relu", (self.slope,)
        super().reshape(bottom, top)

    def value(self, x: Array) -> Array:
        y = self.xp.maximum(x, 0.0)
        if self.slope or not self.limited:  # Caffe's ReLU is NaN at -inf, ReLU6 is 0
            y = y + self.slope * self.xp.minimum(x, 0.0)
        return self.xp.minimum(y, TOP) if self.limited else y

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        x = self.saved_input(bottom, top) if self.needs_input else bottom[0].read()
        above = (x > 0) & (x < TOP) if self.limited else x > 0
        factor = self.cast(above)  # a product is several times as fast as where
        return factor + self.slope * self.cast(x <= 0) if self.slope else factor


@register_layer("ReLU")
class ReLU(Rectifier):
    """Rectified linear unit of every element, leaky with ``negative_slope``; may run in place.

    y = max(x, 0) + negative_slope * min(x, 0), and at most 6 with ``relu6``, as ReLU6.

    Source: Caffe, ``src/caffe/layers/relu_layer.cpp``. ``relu6`` is Synopsys Caffe's.
    Shapes: bottom any -> top the same.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.slope, self.limited = self.param.relu_param.negative_slope, self.param.relu_param.relu6


@register_layer("ReLU6")
class ReLU6(Rectifier):
    """Rectified linear unit that ends at 6; may run in place.

    y = min(max(x, 0) + negative_slope min(x, 0), 6).
    Not compared with the original.

    Source: MobileNet-YOLO (eric612), ``src/caffe/layers/relu6_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.slope, self.limited = self.param.relu6_param.negative_slope, True


@register_layer("Sigmoid")
class Sigmoid(NeuronLayer):
    """Logistic function of every element; may run in place.

    y = 1 / (1 + exp(-x)).

    Source: Caffe, ``src/caffe/layers/sigmoid_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "sigmoid"

    def value(self, x: Array) -> Array:
        return sigmoid(self.xp, x)

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            y = top[0].read()
            bottom[0].write_diff(top[0].read_diff() * y * (1 - y))


@register_layer("HardSwish")
class HardSwish(NeuronLayer):
    """Swish with straight lines in place of the logistic function; may run in place.

    y = x min(max(x + 3, 0), 6) / 6.
    Not compared with the original, which has no gradient.

    Source: Synopsys Caffe (foss-for-synopsys-dwc-arc-processors/synopsys-caffe),
    ``src/caffe/layers/hard_swish_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "hard_swish"
    needs_input = True

    def value(self, x: Array) -> Array:
        return x * self.xp.minimum(self.xp.maximum(x + 3.0, 0.0), 6.0) / 6.0

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        x = self.saved_input(bottom, top)
        curve = self.cast((x > -3) & (x < 3)) * (2 * x + 3) / 6
        return self.cast(x >= 3) + curve


@register_layer("Swish")
class Swish(NeuronLayer):
    """Self-gated unit of every element; may run in place.

    y = x sigmoid(beta x).

    Source: Caffe, ``src/caffe/layers/swish_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "swish"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.beta = self.param.swish_param.beta
        self.constants = (self.beta,)

    def value(self, x: Array) -> Array:
        gate = sigmoid(self.xp, x * self.beta)
        self.saved("gate", x.shape).write(gate)
        return x * gate

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        gate = self.saved("gate", top[0].shape).read()
        by = self.beta * top[0].read()
        return by + gate * (1 - by)


@register_layer("TanH")
class TanH(NeuronLayer):
    """Hyperbolic tangent of every element; may run in place.

    y = tanh(x).

    Source: Caffe, ``src/caffe/layers/tanh_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "tanh"

    def value(self, x: Array) -> Array:
        return self.xp.tanh(x)

    def derivative(self, bottom: Blobs, top: Blobs) -> Array:
        y = top[0].read()
        return 1 - y * y


@register_layer("Threshold")
class Threshold(NeuronLayer):
    """Return 1 where an element is above ``threshold``, else 0; no gradient; may run in place.

    y = 1 where x > threshold, else 0.

    Source: Caffe, ``src/caffe/layers/threshold_layer.cpp``.
    Shapes: bottom any -> top the same.
    """

    function = "threshold"

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.threshold = self.param.threshold_param.threshold
        self.constants = (self.threshold,)

    def value(self, x: Array) -> Array:
        return self.cast(x > self.threshold)

    backward = Layer.backward  # there is no gradient
