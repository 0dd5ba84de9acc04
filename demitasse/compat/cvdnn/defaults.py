"""Fields that OpenCV's importer reads in another way than Caffe.

Source: OpenCV 4, ``modules/dnn/src/layers/lrn_layer.cpp``, ``prior_box_layer.cpp``.
"""

from __future__ import annotations

from demitasse.io.proto import LayerParameter

__all__ = ["read_as_opencv"]


def read_as_opencv(layer: LayerParameter) -> None:
    """Write into a layer, in place, what OpenCV takes it for.

    An LRN without alpha has 0.0001, not 1, and its k is always 1. Priors are clipped to the
    image unless the file says otherwise.
    """
    if layer.type == "LRN":
        if not layer.lrn_param.HasField("alpha"):
            layer.lrn_param.alpha = 1e-4
        layer.lrn_param.k = 1
    if layer.type == "PriorBox" and not layer.prior_box_param.HasField("clip"):
        layer.prior_box_param.clip = True
