"""Statistics of BatchNorm in files: running averages, and conversion of forks' parameters.

NVCaffe's layer may have a scale and a bias: five parameters. Its mean and variance are averages,
while Caffe's are sums to be divided by the third parameter; so the third becomes 1.

Source: Caffe, ``src/caffe/layers/batch_norm_layer.cpp``; NVCaffe (NVIDIA/caffe), the same file,
issues 276 and 436. Not compared with NVCaffe: no file and no source of version 0.15 was available.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import BlobProto, LayerParameter, floats, set_floats

PSPNET = 4
"""Parameters of PSPNet's BN: slope, bias, mean, variance."""


def running_averages(blobs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of sums of means, variances and weights; 0 before any update."""
    mean, variance, weight = blobs
    factor = float(weight.reshape(-1)[0]) if weight.size else 0.0
    times = np.float32(1 / factor) if factor else np.float32(0)
    return mean.reshape(-1) * times, variance.reshape(-1) * times


def converted_blobs(layer: LayerParameter, wanted: int) -> Sequence[BlobProto]:
    """Return the stored parameters of a layer, converted if a fork has others.

    Five parameters are mean, variance, a correction, scale and bias (0.16 and later); if the last
    parameter is a single number: scale, bias, mean, variance and a correction (0.15). Three
    parameters are NVCaffe's if stored as raw bytes, or if the divisor of the statistics is 0.
    Those of PSPNet's BN have the shape (1, C, 1, 1), those of yjxiong's and of Demitasse (1, C).
    Biases of C3D 1.1 have five axes.
    ``wanted`` is the number of parameters of the net's layer.
    """
    blobs = layer.blobs
    if layer.type == "BN" and len(blobs) == wanted == PSPNET:
        for blob in blobs:
            if blob.shape.dim[2:] == [1, 1]:
                del blob.shape.dim[2:]
    if layer.type == "Convolution":
        for blob in blobs[1:]:
            if blob.shape.dim[:-1] == [1, 1, 1, 1]:
                del blob.shape.dim[:-1]
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
            f"layer {layer.name!r} of the source is NVCaffe's BatchNorm with scale and bias; "
            "set batch_norm_param { scale_bias: true } in the net's layer"
        )
        raise WeightsError(
            message, code=ErrorCode.INCOMPATIBLE, layer=layer.name, field="scale_bias"
        )
    return statistics


def _blob(values: np.ndarray) -> BlobProto:
    blob = BlobProto()
    blob.shape.dim.append(values.size)
    set_floats(blob, values.astype(np.float32))
    return blob
