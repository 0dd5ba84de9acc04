"""Weights in and out of nets, and arrays through them.

Source: Caffe, ``Net::CopyTrainedLayersFrom``, ``ToProto``, ``ToHDF5`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.axes import shape_string
from demitasse.blob import Blob
from demitasse.errors import ConfigError, NetError, ShapeError, WeightsError
from demitasse.hdf5 import is_hdf5, read_hdf5_weights, write_hdf5_weights
from demitasse.nvcaffe import adopted
from demitasse.pairing import (
    LoadReport,
    OnMismatch,
    array_pairs,
    finished,
    fits,
    matched,
    message_pairs,
    target,
)
from demitasse.proto import (
    BlobProto,
    LayerParameter,
    NetParameter,
    read_net_arrays,
    stored_shape,
    upgrade_net,
)
from demitasse.proto.cut import Arrays
from demitasse.proto.stream import Pieces, blob_pieces, field_pieces, with_field, write_pieces

if TYPE_CHECKING:
    from demitasse.net import Net

__all__ = [
    "LoadReport",
    "OnMismatch",
    "load_into",
    "load_weights",
    "matched",
    "run_in_batches",
    "save",
    "save_hdf5",
]


def load_weights(path: str | os.PathLike[str]) -> dict[str, list[np.ndarray]]:
    """Read the parameters of every layer of a caffemodel or HDF5 file; needs no net.

    Returns:
        For each layer that has parameters, its arrays in Caffe's order (weight, bias, ...).

    Raises:
        WeightsError: The file is not there, or cannot be read.
    """
    if is_hdf5(Path(path)):
        found = read_hdf5_weights(Path(path))
        return {name: list(arrays.values()) for name, arrays in found.items() if arrays}
    net, arrays = read_net_arrays(path)
    try:
        return {
            layer.name: [
                _array_of(layer.name, i, blob, arrays) for i, blob in enumerate(layer.blobs)
            ]
            for layer in net.layer
            if layer.blobs
        }
    except WeightsError as error:
        raise error.at(os.fspath(path)) from None


def _array_of(layer: str, index: int, blob: BlobProto, arrays: Arrays) -> np.ndarray:
    try:
        values, shape = arrays.floats(blob), stored_shape(blob)
    except WeightsError as error:
        place = f"parameter {index} of layer {layer!r}"
        raise error.at(place) from None
    try:
        if min(shape, default=1) >= 0 and values.size == math.prod(shape):
            return np.array(values.reshape(shape))  # lets go of the rest of the file
    except ValueError:  # no values, but axes too long all the same
        pass
    message = (
        f"parameter {index} of layer {layer!r} has {values.size} values for its shape "
        f"{shape_string(shape)}"
    )
    raise WeightsError(message)


def load_into(
    net: Net, source: str | os.PathLike[str] | NetParameter, on_mismatch: OnMismatch = "error"
) -> LoadReport:
    """Load parameters into a net, by layer name.

    Everything is checked before anything is changed.

    Args:
        net: The net.
        source: A caffemodel, an HDF5 file or a message.
        on_mismatch: "error" or "skip".

    Raises:
        ConfigError: ``on_mismatch`` is neither.
        WeightsError: The file cannot be read, or a layer has another number of parameters.
        ShapeError: A parameter has another shape; both are shown.
    """
    if on_mismatch not in {"error", "skip"}:
        message = f"on_mismatch must be 'error' or 'skip', not {on_mismatch!r}"
        raise ConfigError(message)
    skip = on_mismatch == "skip"
    if isinstance(source, NetParameter):
        given = NetParameter()
        given.CopyFrom(source)
        upgrade_net(given)
        return _load_message(net, given, Arrays(), skip)
    path = Path(source)
    if is_hdf5(path):
        weights = read_hdf5_weights(path)
        return _at(path, lambda: _load_arrays(net, weights, skip))
    given, arrays = read_net_arrays(path)
    return _at(path, lambda: _load_message(net, given, arrays, skip))


def _at(path: Path, load: Callable[[], LoadReport]) -> LoadReport:
    try:
        return load()
    except (NetError, ShapeError, WeightsError) as error:
        raise error.at(os.fspath(path)) from None


def _load_message(net: Net, message: NetParameter, arrays: Arrays, skip: bool) -> LoadReport:
    report, pairs = LoadReport(), dict[str, list[tuple[Blob, BlobProto]]]()
    for layer in message.layer:
        mine = target(net, layer.name, bool(layer.blobs), report)
        if mine is None:
            continue
        if layer.type == "BatchNorm":  # perhaps to be converted
            for stored in layer.blobs:
                arrays.put_back(stored)
        pairs.pop(layer.name, None)
        with fits(layer.name, report, skip):
            stored_blobs = adopted(layer, len(mine))
            pairs[layer.name] = message_pairs(layer.name, mine, stored_blobs, arrays)
    with np.errstate(over="ignore", invalid="ignore"):  # doubles may become infinite, as in C
        for blob, proto in chain.from_iterable(pairs.values()):
            blob.set_floats(arrays.floats(proto), arrays.floats(proto, diff=True))
    return finished(net, report)


def _load_arrays(net: Net, weights: dict[str, dict[int, np.ndarray]], skip: bool) -> LoadReport:
    report, pairs = LoadReport(), list[tuple[Blob, np.ndarray]]()
    for name, arrays in weights.items():
        mine = target(net, name, bool(arrays), report)
        if mine is None:
            continue
        with fits(name, report, skip):
            pairs += array_pairs(net, name, mine, arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        for blob, array in pairs:
            blob.mutable_cpu_data()[...] = array
    return finished(net, report)


def save(net: Net, path: Path, write_diff: bool) -> None:
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


def save_hdf5(net: Net, path: Path, write_diff: bool) -> None:
    """Write a net's parameters to an HDF5 file, atomically."""
    write_hdf5_weights(net, path, write_diff)


def run_in_batches(net: Net, inputs: dict[str, Any], batch: int | None) -> dict[str, np.ndarray]:
    """Run a net on arrays, at most ``batch`` items at a time, and join its outputs."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    total = max((len(a) for a in arrays.values() if a.ndim), default=1)
    size = total if batch is None else max(1, batch)
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, max(total, 1), max(size, 1)):
        for name, array in arrays.items():
            net.set_input(name, array[start : start + size] if array.ndim else array)
        net.forward()
        parts.append({name: net.blobs[name].cpu_data().copy() for name in net.outputs})
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
