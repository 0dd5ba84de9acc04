"""File formats of weights: detection, reading to arrays and writing, without a net."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import NetParameter, set_floats, write_binary
from demitasse.io.weights.hdf5 import NUMBER, is_hdf5, read_hdf5_weights, write_hdf5_arrays
from demitasse.io.weights.npz import read_npz, write_npz
from demitasse.io.weights.safetensors import read_safetensors, write_safetensors

__all__ = ["FORMATS", "Parameters", "read_arrays", "write_weights"]

Parameters = dict[str, dict[int, np.ndarray]]
"""For each layer, its parameters by index, increasing: weight 0, bias 1, ... A parameter that is
shared with an earlier layer may be missing."""


def read_arrays(path: Path) -> Parameters | None:
    """Read an HDF5 file of Caffe, or a ``.npz`` or ``.safetensors`` file of Demitasse.

    Returns:
        None for any other file, e.g. a caffemodel.

    Raises:
        WeightsError: The file does not exist or cannot be read.
    """
    if is_hdf5(path):
        return read_hdf5_weights(path)
    named = {".npz": read_npz, ".safetensors": read_safetensors}.get(path.suffix)
    return None if named is None else _by_layer(path, named(path))


def write_weights(path: Path, kind: str, weights: Parameters) -> None:
    """Write weights in one of ``FORMATS``, atomically.

    Raises:
        WeightsError: h5py is not installed; or a caffemodel cannot store the weights, as they are
            too large or incomplete.
        OSError: The file cannot be written; an old file is kept.
    """
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


def _named(weights: Parameters) -> dict[str, np.ndarray]:
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
    "npz": lambda path, weights: write_npz(path, _named(weights)),
    "h5": write_hdf5_arrays,
    "safetensors": lambda path, weights: write_safetensors(path, _named(weights)),
    "caffemodel": _write_caffemodel,
}
"""File name extension -> writer."""
