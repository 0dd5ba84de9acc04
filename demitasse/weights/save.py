"""A net's parameters written to a caffemodel.

Source: Caffe, ``Net::ToProto`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

from pathlib import Path

from demitasse.proto import LayerParameter, NetParameter
from demitasse.proto.zero_copy.write import (
    Pieces,
    blob_pieces,
    field_pieces,
    with_field,
    write_pieces,
)
from demitasse.weights.store import ParameterStore

__all__ = ["save"]


def save(net: ParameterStore, path: Path, write_diff: bool) -> None:
    """Write a net's parameters to a caffemodel, atomically, without copying them."""
    layers: Pieces = []
    for layer, message in zip(net.layers, net.layer_messages(), strict=True):
        blobs = [
            blob_pieces(blob.cpu_data(), blob.cpu_diff() if write_diff else None)
            for blob in layer.blobs
        ]
        pieces = with_field(message, LayerParameter.BLOBS_FIELD_NUMBER, blobs)
        layers += field_pieces(NetParameter.LAYER_FIELD_NUMBER, pieces)
    write_pieces(path, [NetParameter(name=net.name).SerializeToString(), *layers])
