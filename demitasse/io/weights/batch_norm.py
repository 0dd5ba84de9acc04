"""Statistics of BatchNorm in files: running averages, and conversion of forks' parameters.

Caffe's mean and variance are sums to be divided by the third parameter, with or without scale and
bias (Intel Caffe, Demitasse); NVCaffe's are averages, and its third parameter is 0 or 1.

Source: Caffe, NVCaffe and Intel Caffe, ``src/caffe/layers/batch_norm_layer.cpp``; issues 276 and
436 of NVIDIA/caffe. Not compared with the originals: no file was available.
"""

from collections.abc import Sequence

import numpy as np

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import BlobProto, LayerParameter, floats, set_floats
from demitasse.io.proto.zero_copy import Arrays


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
    PSPNet's BN has shapes (1, C, 1, 1) for (1, C), and biases of C3D 1.1 have five axes.
    ``wanted`` is the number of parameters of the net's layer; ``arrays`` are those of the file.
    """
    blobs: Sequence[BlobProto] = layer.blobs
    for blob in blobs if layer.type == "BN" and len(blobs) == 4 else ():
        if blob.shape.dim[2:] == [1, 1]:
            del blob.shape.dim[2:]
    for blob in blobs[1:] if layer.type == "Convolution" else ():
        if blob.shape.dim[:-1] == [1, 1, 1, 1]:
            del blob.shape.dim[:-1]
    if layer.type != "BatchNorm" or len(blobs) not in {3, 5}:
        return blobs
    for blob in blobs:
        arrays.restore_arrays(blob)
    if len(blobs) > 3 and floats(blobs[4]).size == 1 != floats(blobs[2]).size:
        blobs = [*blobs[2:4], _blob(np.ones(1)), *blobs[:2]]
    mean, variance, divisor, *affine = map(floats, blobs)
    averages = not divisor.any() and (mean.any() or variance.any())
    if averages or any(blob.raw_data for blob in blobs):
        blobs = [*blobs[:2], _blob(np.ones(1)), *blobs[3:]]
    if not affine or (wanted != 3 and all(len(blob.shape.dim) == 1 for blob in blobs)):
        return blobs
    flat = [_blob(floats(blob)) for blob in blobs]
    if wanted == 3 and ((affine[0] != 1).any() or affine[1].any()):
        message = (
            f"layer {layer.name!r} of the source is NVCaffe's BatchNorm with scale and bias; "
            "set batch_norm_param { scale_bias: true } in the net's layer"
        )
        code = ErrorCode.INCOMPATIBLE
        raise WeightsError(message, code=code, layer=layer.name, field="scale_bias")
    return flat[: 3 if wanted == 3 else 5]


def _blob(values: np.ndarray) -> BlobProto:
    blob = BlobProto()
    blob.shape.dim.append(values.size)
    set_floats(blob, values.astype(np.float32))
    return blob
