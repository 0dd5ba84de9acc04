"""Scale, mean, crop and mirror of a V1 data layer move to its ``transform_param``.

Source: Caffe, ``src/caffe/util/upgrade_proto.cpp`` (UpgradeNetDataTransformation).
"""

from collections.abc import Iterator
from typing import Any

from demitasse.io.proto.caffe_pb2 import NetParameter, TransformationParameter, V1LayerParameter

__all__ = ["upgrade_data_transformation"]

OWNERS = {
    V1LayerParameter.DATA: "data_param",
    V1LayerParameter.IMAGE_DATA: "image_data_param",
    V1LayerParameter.WINDOW_DATA: "window_data_param",
}
MOVED = ("scale", "mean_file", "crop_size", "mirror")


def upgrade_data_transformation(net: NetParameter) -> list[str]:
    """Move scale, mean, crop and mirror of V1 data layers to ``transform_param``, in place."""
    if not any(data.HasField(name) for data, _ in _data_layers(net) for name in MOVED):
        return []
    for data, transform in _data_layers(net):
        data.SetInParent()  # as in Caffe, empty messages remain
        transform.SetInParent()
        for name in MOVED:
            if data.HasField(name):
                setattr(transform, name, getattr(data, name))
                data.ClearField(name)
    return ["scale, mean_file, crop_size and mirror moved to transform_param"]


def _data_layers(net: NetParameter) -> Iterator[tuple[Any, TransformationParameter]]:
    for layer in net.layers:
        if layer.type in OWNERS:
            yield getattr(layer, OWNERS[layer.type]), layer.transform_param
