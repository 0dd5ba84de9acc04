"""Writing of a net's parameters: caffemodel, HDF5, npz or safetensors, by extension.

Source: Caffe, ``Net::ToProto`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.proto import LayerParameter, NetParameter
from demitasse.io.proto.write import Pieces, write_pieces
from demitasse.io.proto.zero_copy import blob_pieces, field_pieces, with_field
from demitasse.io.weights.formats import write_weights
from demitasse.io.weights.hdf5 import need_own_names, write_hdf5_weights

if TYPE_CHECKING:
    from hashlib import _Hash

    from demitasse.net.structure import Structure

Parameter = tuple[np.ndarray, np.ndarray | None]  # values, and gradients or None

STATE_DICT = "the command demitasse weights export, which writes a state_dict"
FOREIGN = {
    ".bin": STATE_DICT,
    ".ckpt": STATE_DICT,
    ".json": "net.to_proto()",
    ".onnx": "demitasse.export_onnx",
    ".pkl": "a name that ends in .npz",
    ".pt": STATE_DICT,
    ".pth": STATE_DICT,
    ".prototxt": "net.to_proto()",
    ".py": "demitasse.export_torch",
}
"""Extensions of other formats, and what writes them."""

ARRAYS = {".npz", ".safetensors"}
"""Extensions of files of named arrays, which cannot store gradients."""


def save(net: Structure, path: Path, write_diff: bool) -> None:
    """Write a net's parameters in the format of the path's extension."""
    if path.suffix in FOREIGN:
        message = (
            f"{path} cannot be written: net.save has no such format; use {FOREIGN[path.suffix]}"
        )
        raise WeightsError(message, code=ErrorCode.UNSUPPORTED, file=str(path))
    if path.suffix == ".h5":
        write_hdf5_weights(net, path, write_diff)
    elif path.suffix not in ARRAYS:
        save_caffemodel(net, path, write_diff)
    elif write_diff:
        message = f"{path} cannot store gradients (write_diff); write a .caffemodel or .h5 file"
        raise WeightsError(message, code=ErrorCode.UNSUPPORTED, file=str(path), field="write_diff")
    else:
        layers = [layer for layer in net.layers if layer.blobs]
        need_own_names((layer.name for layer in layers), reserved=())
        weights = {
            layer.name: {i: blob.cpu_data() for i, blob in enumerate(layer.blobs)}
            for layer in layers
        }
        write_weights(path, path.suffix[1:], weights)


def save_caffemodel(
    net: Structure, path: Path, write_diff: bool, hashed: _Hash | None = None
) -> None:
    """Write a caffemodel, atomically, without copies of parameters; update a hash by its bytes."""
    blobs = [
        [(blob.cpu_data(), blob.cpu_diff() if write_diff else None) for blob in layer.blobs]
        for layer in net.layers
    ]
    write_pieces(path, caffemodel_pieces(net.name, net.layer_messages(), blobs), hashed)


def caffemodel_pieces(
    name: str, layers: Iterable[LayerParameter], blobs: Iterable[Iterable[Parameter]]
) -> Pieces:
    """Return a caffemodel in pieces, without copying the arrays; the layers have no parameters."""
    pieces: Pieces = [NetParameter(name=name).SerializeToString()]
    for layer, arrays in zip(layers, blobs, strict=True):
        values = [blob_pieces(data, diff) for data, diff in arrays]
        message = with_field(layer, LayerParameter.BLOBS_FIELD_NUMBER, values)
        pieces += field_pieces(NetParameter.LAYER_FIELD_NUMBER, message)
    return pieces
