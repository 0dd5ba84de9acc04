"""Layers of users: ``registerLayer`` is OpenCV's ``cv2.dnn_registerLayer``.

Source: OpenCV 4, ``modules/dnn/misc/python/pyopencv_dnn.hpp``.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from demitasse.blob import Blob
from demitasse.io.proto import NetParameter, PythonParameter
from demitasse.layers.user_layer import UserLayer

classes: dict[str, list[type]] = {}
"""Registered classes by type; the last one counts."""


def registerLayer(type: str, cls: type) -> None:
    """Compute layers of a type by a class, in nets that have not run yet.

    ``cls(params, blobs)`` gets the fields that the prototxt sets, and no blobs.
    ``getMemoryShapes(inputs)`` returns the shapes of the outputs for those of the inputs, and
    ``forward(inputs)`` the outputs for the inputs.
    """
    classes.setdefault(type, []).append(cls)


def unregisterLayer(type: str) -> None:
    """Remove the last registered class of a type."""
    if len(classes.get(type, ())) > 1:
        classes[type].pop()
    else:
        classes.pop(type, None)


def with_own_layers(net: NetParameter) -> NetParameter:
    """Return a copy of a net in which ``OwnLayer`` computes the layers of registered types."""
    copy = NetParameter()
    copy.CopyFrom(net)
    for layer in copy.layer:
        if layer.type in classes:
            p = PythonParameter(module=__name__, layer=OwnLayer.__name__, param_str=layer.type)
            layer.python_param.CopyFrom(p)
            layer.type = "Python"
    return copy


class OwnLayer(UserLayer):
    """Calls the object of a registered class."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Make the object from the fields of the layer."""
        messages = [value for _, value in self.layer_param.ListFields()]  # type: ignore[union-attr]
        params = {
            field.name: list(value) if hasattr(value, "append") else value
            for one in messages if isinstance(one, Message) and not isinstance(one, PythonParameter)
            for field, value in one.ListFields()
        }  # fmt: skip
        self.own: Any = classes[self.param_str][-1](params, [])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give the tops the shapes of the object."""
        shapes = self.own.getMemoryShapes([list(blob.shape) for blob in bottom])
        for blob, shape in zip(top, shapes, strict=True):
            blob.reshape(*shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Fill the tops with the object's arrays."""
        for blob, values in zip(top, self.own.forward([b.data for b in bottom]), strict=True):
            blob.data[...] = values
