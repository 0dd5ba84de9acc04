"""A net's parameters written to a file: a caffemodel, or what its ending names.

Source: Caffe, ``Net::ToProto`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from demitasse.errors import WeightsError
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.io.proto.zero_copy.write import (
    Pieces,
    blob_pieces,
    field_pieces,
    with_field,
    write_pieces,
)
from demitasse.io.weights.formats import write_weights
from demitasse.io.weights.hdf5 import write_hdf5_weights
from demitasse.io.weights.store import ParameterStore

__all__ = ["ARRAYS", "caffemodel_pieces", "save", "save_caffemodel"]

Parameter = tuple[np.ndarray, np.ndarray | None]
"""Values, and gradients or none."""

ARRAYS = {".npz", ".safetensors"}
"""Endings of files of named arrays, which hold no gradients."""


def save(net: ParameterStore, path: Path, write_diff: bool) -> None:
    """Write a net's parameters in the format that loading expects of the path's ending.

    Raises:
        WeightsError: h5py is not installed, or the format holds no gradients and they are wanted.
        OSError: The file cannot be written; an old one is kept.
    """
    if path.suffix == ".h5":
        write_hdf5_weights(net, path, write_diff)
    elif path.suffix not in ARRAYS:
        save_caffemodel(net, path, write_diff)
    elif write_diff:
        message = f"{path} cannot hold gradients (write_diff); write a .caffemodel or .h5 file"
        raise WeightsError(message)
    else:
        weights = {
            layer.name: {i: blob.cpu_data() for i, blob in enumerate(layer.blobs)}
            for layer in net.layers
        }
        write_weights(path, path.suffix[1:], weights)


def save_caffemodel(net: ParameterStore, path: Path, write_diff: bool) -> None:
    """Write a net's parameters to a caffemodel, atomically, without copying them."""
    blobs = [
        [(blob.cpu_data(), blob.cpu_diff() if write_diff else None) for blob in layer.blobs]
        for layer in net.layers
    ]
    write_pieces(path, caffemodel_pieces(net.name, net.layer_messages(), blobs))


def caffemodel_pieces(
    name: str, layers: Iterable[LayerParameter], blobs: Iterable[Iterable[Parameter]]
) -> Pieces:
    """Return a caffemodel in pieces, the arrays not copied.

    Args:
        name: Name of the net.
        layers: The layers, without parameters.
        blobs: For each layer its parameters, and their gradients where these are stored.
    """
    pieces: Pieces = [NetParameter(name=name).SerializeToString()]
    for layer, arrays in zip(layers, blobs, strict=True):
        values = [blob_pieces(data, diff) for data, diff in arrays]
        message = with_field(layer, LayerParameter.BLOBS_FIELD_NUMBER, values)
        pieces += field_pieces(NetParameter.LAYER_FIELD_NUMBER, message)
    return pieces
