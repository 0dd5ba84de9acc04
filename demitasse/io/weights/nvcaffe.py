"""Parameters of BatchNorm as NVCaffe stores them, made those that Caffe's layer expects.

NVCaffe's layer may have a scale and a bias of its own: five parameters. Its mean and variance are
averages already, where Caffe's are sums to be divided by the third parameter, so that becomes 1.

Source: NVCaffe (NVIDIA/caffe), ``src/caffe/layers/batch_norm_layer.cpp``, issues 276 and 436.
Not compared with the original: the order of version 0.15 was seen neither in a file nor in its
source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse.errors import WeightsError
from demitasse.io.proto import BlobProto, LayerParameter, floats, set_floats

__all__ = ["adopted"]


def adopted(layer: LayerParameter, wanted: int) -> Sequence[BlobProto]:
    """Return the stored parameters of a layer, converted if they are of NVCaffe's BatchNorm.

    Five parameters are mean, variance, a correction, scale and bias (0.16 and newer) or, where the
    last one is a single number, scale, bias, mean, variance and a correction (0.15). Three are
    NVCaffe's when they are stored as raw bytes, or have statistics that are divided by 0.

    Args:
        layer: A layer of a caffemodel.
        wanted: How many parameters the layer of the net has.

    Raises:
        WeightsError: Scale and bias are there and do something, but the layer has no place for
            them.
    """
    blobs = layer.blobs
    if layer.type != "BatchNorm" or len(blobs) not in {3, 5}:
        return blobs
    values = [floats(blob) for blob in blobs]
    if len(values) == 3:
        mean, variance, factor = values
        raw = any(blob.raw_data for blob in blobs)
        divided = factor.any() or not (mean.any() or variance.any())
        return blobs if divided and not raw else [blobs[0], blobs[1], _blob(np.ones(1))]
    if values[4].size == 1 != values[2].size:
        scale, bias, mean, variance, _ = values
    else:
        mean, variance, _, scale, bias = values
    statistics = [_blob(mean), _blob(variance), _blob(np.ones(1))]
    if wanted != 3:
        return [*statistics, _blob(scale), _blob(bias)]
    if (scale != 1).any() or bias.any():
        message = (
            f"the source's layer {layer.name!r} is NVCaffe's BatchNorm, with a scale and a bias; "
            "give the net's layer batch_norm_param { scale_bias: true }"
        )
        raise WeightsError(message)
    return statistics


def _blob(values: np.ndarray) -> BlobProto:
    blob = BlobProto()
    blob.shape.dim.append(values.size)
    set_floats(blob, values.astype(np.float32))
    return blob
