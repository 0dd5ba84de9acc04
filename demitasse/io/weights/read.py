"""Reading of weights to arrays, without a net."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import BlobProto, LayerParameter, read_net_arrays, stored_shape
from demitasse.io.proto.zero_copy.read import Arrays
from demitasse.io.weights.formats import Parameters, read_arrays

__all__ = ["load_weights", "read_layers", "read_weights"]


def load_weights(path: str | os.PathLike[str]) -> dict[str, list[np.ndarray]]:
    """Read the parameters of every layer of a file of weights; needs no net.

    Args:
        path: A caffemodel, an HDF5 file, or a ``.npz`` or ``.safetensors`` file written by
            ``demitasse weights export``.

    Returns:
        For each layer with parameters, its arrays in Caffe's order (weight, bias, ...).

    Raises:
        WeightsError: The file does not exist, or cannot be read.
    """
    return {name: list(arrays.values()) for name, arrays in read_weights(path).items()}


def read_weights(path: str | os.PathLike[str]) -> Parameters:
    """Read weights like ``load_weights``, with the index of each parameter.

    Raises:
        WeightsError: The file does not exist, or cannot be read.
    """
    found = read_arrays(Path(path))
    if found is not None:
        return {name: arrays for name, arrays in found.items() if arrays}
    net, arrays = read_net_arrays(path)
    try:
        return {
            layer.name: {
                i: _array_of(layer.name, i, blob, arrays) for i, blob in enumerate(layer.blobs)
            }
            for layer in net.layer
            if layer.blobs
        }
    except WeightsError as error:
        raise error.at(os.fspath(path)) from None


def read_layers(path: str | os.PathLike[str]) -> list[LayerParameter]:
    """Return the messages of a caffemodel's layers with parameters, without the parameters.

    Raises:
        WeightsError: The file is no caffemodel, or cannot be read.
    """
    if read_arrays(Path(path)) is not None:
        name = os.fspath(path)
        message = f"{name} has no layer types; give the caffemodel"
        raise WeightsError(message, code=ErrorCode.UNSUPPORTED, file=name)
    layers = []
    for layer in read_net_arrays(path)[0].layer:
        if layer.blobs:
            del layer.blobs[:]
            layers.append(layer)
    return layers


def _array_of(layer: str, index: int, blob: BlobProto, arrays: Arrays) -> np.ndarray:
    try:
        values, shape = arrays.floats(blob), stored_shape(blob)
    except WeightsError as error:
        place = f"parameter {index} of layer {layer!r}"
        raise error.at(place) from None
    try:
        if min(shape, default=1) >= 0 and values.size == math.prod(shape):
            return np.array(values.reshape(shape))  # a copy, to release the file
    except ValueError:  # an axis of 0, and another that is too long
        pass
    message = (
        f"got {values.size} values of parameter {index} of layer {layer!r}, expected "
        f"{shape_string(shape)}"
    )
    raise WeightsError(
        message,
        code=ErrorCode.COUNT_MISMATCH,
        layer=layer,
        param=index,
        got=values.size,
        expected=shape,
    )
