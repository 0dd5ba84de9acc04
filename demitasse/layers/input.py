"""Input and Parameter: blobs that the caller fills, or that are learned."""

from demitasse.layers.base import AtLeast, Blobs, Exactly, Flags, Layer
from demitasse.layers.checks import wrong_count
from demitasse.layers.registry import register_layer


@register_layer("Input")
class Input(Layer):
    """Blobs that the caller fills: net inputs, with one shape for all tops or one for each.

    Source: Caffe, ``src/caffe/layers/input_layer.cpp``.
    Shapes: no bottom -> tops as given.

    Raises:
        ConfigError: The number of shapes is neither 0, 1 nor the number of tops.
    """

    bottoms = Exactly(0)
    tops = AtLeast(1)
    is_alias = True

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        shapes = self.param.input_param.shape
        if len(shapes) not in {0, 1, len(top)}:
            expected = f"0, 1 or {len(top)}, one for each top"
            raise wrong_count("input_param.shape", len(shapes), expected)
        for index, blob in enumerate(top):
            if shapes:
                blob.reshape(shapes[min(index, len(shapes) - 1)])

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: the caller may have reshaped the inputs."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: the caller fills the inputs."""

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        """Do nothing: there is no bottom."""


@register_layer("Parameter")
class Parameter(Layer):
    """Parameter as a top, initially zeros; the top shares its data.

    The gradients of several passes add up. (In Caffe top and parameter share the memory of the
    gradient, so only the last pass counts.)

    Source: Caffe, ``src/caffe/layers/parameter_layer.cpp``.
    Shapes: no bottom -> top and parameter of ``shape``.
    """

    bottoms = Exactly(0)
    tops = Exactly(1)

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        self.add_param(tuple(self.param.parameter_param.shape.dim))
        top[0].reshape(self.blobs[0].shape)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        """Do nothing: ``setup`` sets the shape."""

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        top[0].share_data(self.blobs[0])

    def backward(self, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if self.param_propagate_down(0):
            self.blobs[0].add_diff(top[0].read_diff())
