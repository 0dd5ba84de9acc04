"""Statistics of BatchNorm in files: running averages, and conversion of forks' parameters.

NVCaffe's layer may have a scale and a bias: five parameters. Its mean and variance are averages,
while Caffe's are sums to be divided by the third parameter, as are those of five in Intel Caffe and
Demitasse. NVCaffe's third parameter is 0 or 1, and becomes 1.

Source: Caffe, ``src/caffe/layers/batch_norm_layer.cpp``; NVCaffe (NVIDIA/caffe), the same file,
issues 276 and 436; Intel Caffe (intel/caffe), ``src/caffe/layers/mkldnn_batch_norm_layer.cpp``. Not
compared with these: no file was available.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import BlobProto, LayerParameter, floats, set_floats
from demitasse.io.proto.zero_copy import Arrays

PSPNET = 4
"""Parameters of PSPNet's BN: slope, bias, mean, variance."""


def running_averages(blobs: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of sums of means, variances and weights; 0 before any update."""
    mean, variance, weight = blobs
    factor = float(weight.reshape(-1)[0]) if weight.size else 0.0
    times = np.float32(1 / factor) if factor else np.float32(0)
    return mean.reshape(-1) * times, variance.reshape(-1) * times


def converted_blobs(layer: LayerParameter, wanted: int, arrays: Arrays) -> Sequence[BlobProto]:
    """Return the stored parameters of a layer, converted if a fork has others.

    Five parameters are mean, variance, their divisor, scale and bias; if the last parameter is a
    single number: scale, bias, mean, variance and a correction (NVCaffe 0.15). The divisor counts
    as 1 if stored as raw bytes, or if the divisor of statistics other than 0 is 0 (NVCaffe).
    Those of PSPNet's BN have the shape (1, C, 1, 1), those of yjxiong's and of Demitasse (1, C).
    Biases of C3D 1.1 have five axes.
    ``wanted`` is the number of parameters of the net's layer; ``arrays`` are those of the file.
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
    for blob in blobs:
        arrays.restore_arrays(blob)
    values = [floats(blob) for blob in blobs]
    if len(values) > 3 and values[4].size == 1 != values[2].size:
        scale, bias, mean, variance, _ = values
        affine, factor = [scale, bias], np.ones(1)
    else:
        mean, variance, factor, *affine = values
    raw = any(blob.raw_data for blob in blobs)
    if raw or (not factor.any() and (mean.any() or variance.any())):
        factor = np.ones(1)
    if not affine:
        return blobs if factor is values[2] else [blobs[0], blobs[1], _blob(factor)]
    if factor is values[2] and wanted != 3 and all(len(blob.shape.dim) == 1 for blob in blobs):
        return blobs
    statistics = [_blob(mean), _blob(variance), _blob(factor)]
    if wanted != 3:
        return [*statistics, *map(_blob, affine)]
    if (affine[0] != 1).any() or affine[1].any():
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
