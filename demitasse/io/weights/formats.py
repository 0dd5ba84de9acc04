"""File formats of weights: detection, reading to arrays and writing, without a net."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from demitasse.core.axes import shape_string
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import (
    BlobProto,
    LayerParameter,
    NetParameter,
    read_net_arrays,
    set_floats,
    stored_shape,
    write_binary,
)
from demitasse.io.proto.zero_copy import Arrays
from demitasse.io.weights.batch_norm import converted_blobs
from demitasse.io.weights.hdf5 import NUMBER, is_hdf5, read_hdf5_weights, write_hdf5_arrays
from demitasse.io.weights.npz import read_npz, write_npz
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors

Parameters = dict[str, dict[int, np.ndarray]]
"""For each layer, its parameters by index, increasing: weight 0, bias 1, ... A parameter that is
shared with an earlier layer may be missing."""


def read_arrays(path: Path) -> Parameters | None:
    """Read an HDF5 file of Caffe, or a ``.npz`` or ``.safetensors`` file; None for other files."""
    if is_hdf5(path):
        return read_hdf5_weights(path)
    if path.suffix == ".npz":
        return _by_layer(path, read_npz(path))
    if path.suffix == ".safetensors":
        return _by_layer(path, read_safetensors(path))
    return None


def write_weights(path: Path, kind: str, weights: Parameters) -> None:
    """Write weights in one of ``FORMATS``, atomically."""
    FORMATS[kind](path, weights)


def _by_layer(path: Path, arrays: dict[str, np.ndarray]) -> Parameters:
    weights: Parameters = {}
    for name, array in arrays.items():
        layer, _, index = name.rpartition("/")
        if not NUMBER.fullmatch(index):
            message = f"{path} cannot be read as weights: {name!r} is not named LAYER/INDEX"
            raise WeightsError(message, code=ErrorCode.INVALID, file=str(path), got=name)
        weights.setdefault(layer, {})[int(index)] = array
    return {layer: dict(sorted(arrays.items())) for layer, arrays in weights.items()}


def _by_name(weights: Parameters) -> dict[str, np.ndarray]:
    return {
        f"{layer}/{i}": array for layer, arrays in weights.items() for i, array in arrays.items()
    }


def _write_caffemodel(path: Path, weights: Parameters) -> None:
    message = NetParameter()
    for name, arrays in weights.items():
        if list(arrays) != list(range(len(arrays))):
            present = ", ".join(map(str, arrays))
            text = (
                f"got only the parameters {present} of layer {name!r}, but a caffemodel stores "
                "all; write npz, h5 or safetensors"
            )
            raise WeightsError(text, code=ErrorCode.MISSING, layer=name, got=present)
        layer = message.layer.add(name=name)
        for array in arrays.values():
            blob = layer.blobs.add()
            if array.ndim == 4 and array.shape[0] == 1:  # the legacy shape fits fewer axes, too
                blob.num, blob.channels, blob.height, blob.width = array.shape
            else:
                blob.shape.dim.extend(array.shape)
            set_floats(blob, array)
    write_binary(path, message)


FORMATS: dict[str, Callable[[Path, Parameters], None]] = {
    "npz": lambda path, weights: write_npz(path, _by_name(weights)),
    "h5": write_hdf5_arrays,
    "safetensors": lambda path, weights: write_safetensors(path, _by_name(weights)),
    "caffemodel": _write_caffemodel,
}
"""File name extension -> writer."""


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
    """Read weights like ``load_weights``, with the index of each parameter."""
    found = read_arrays(Path(path))
    if found is not None:
        return {name: arrays for name, arrays in found.items() if arrays}
    net, arrays = read_net_arrays(path)
    try:
        weights = {
            layer.name: {
                i: _array_of(layer.name, i, blob, arrays)
                for i, blob in enumerate(converted_blobs(layer, len(layer.blobs), arrays))
            }
            for layer in net.layer
            if layer.blobs
        }
        arrays.check_unchanged()
        return weights
    except WeightsError as error:
        raise error.at(os.fspath(path)) from None


def read_layers(path: str | os.PathLike[str]) -> list[LayerParameter]:
    """Return the messages of a caffemodel's layers with parameters, without the parameters."""
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
            return np.array(values.reshape(shape))  # a copy: not a part of a message
    except ValueError:  # an axis of 0, and another that is too long
        pass
    got, wanted, code = values.size, shape_string(shape), ErrorCode.COUNT_MISMATCH
    message = f"got {got} values of parameter {index} of layer {layer!r}, expected {wanted}"
    raise WeightsError(message, code=code, layer=layer, param=index, got=got, expected=shape)
