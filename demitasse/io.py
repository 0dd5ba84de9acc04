"""Weights in and out of nets, and arrays through them.

Source: Caffe, ``Net::CopyTrainedLayersFrom``, ``ToProto``, ``ToHDF5`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from demitasse.axes import shape_string
from demitasse.blob import Blob
from demitasse.errors import ConfigError, NetError, ShapeError, WeightsError
from demitasse.hdf5 import is_hdf5, read_hdf5_weights, write_hdf5_weights
from demitasse.nvcaffe import adopted
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


OnMismatch = Literal["error", "skip"]
"""What to do with a layer whose parameters do not fit: refuse the file, or leave the layer out."""


@dataclass
class LoadReport:
    """What became of the layers of a weights file.

    Attributes:
        loaded: Layers whose parameters were taken.
        ignored: Layers of the file with parameters that the net does not have.
        missing: Layers of the net with parameters that were not loaded: the file does not have
            them, or they are among the mismatched.
        repeated: Names that occur more than once in the file; the last one's values stand.
        mismatched: Layers that were left out because they do not fit, and why. Of such a layer no
            parameter is taken.
    """

    loaded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)


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
    where = "" if isinstance(source, NetParameter) else os.fspath(source)
    try:
        if where and is_hdf5(Path(where)):
            return _load_arrays(net, read_hdf5_weights(Path(where)), skip)
        return _load_message(net, source, skip)
    except (NetError, ShapeError) as error:
        raise error.at(where) if where else error from None


def _load_message(
    net: Net, source: str | os.PathLike[str] | NetParameter, skip: bool
) -> LoadReport:
    if isinstance(source, NetParameter):
        message = NetParameter()
        message.CopyFrom(source)
        upgrade_net(message)
        arrays = Arrays()
    else:
        message, arrays = read_net_arrays(source)
    report, pairs = LoadReport(), list[tuple[Blob, BlobProto]]()
    for layer in message.layer:
        mine = _target(net, layer.name, bool(layer.blobs), report)
        if mine is None:
            continue
        if layer.type == "BatchNorm":  # perhaps to be converted
            for stored in layer.blobs:
                arrays.put_back(stored)
        with _fits(layer.name, report, skip):
            pairs += _message_pairs(layer.name, mine, adopted(layer, len(mine)), arrays)
    with np.errstate(over="ignore", invalid="ignore"):  # doubles may become infinite, as in C
        for blob, proto in pairs:
            blob.set_floats(arrays.floats(proto), arrays.floats(proto, diff=True))
    return _finished(net, report)


def _message_pairs(
    name: str, mine: Sequence[Blob], theirs: Sequence[BlobProto], arrays: Arrays
) -> list[tuple[Blob, BlobProto]]:
    _same_number(name, len(mine), len(theirs))
    for index, (blob, proto) in enumerate(zip(mine, theirs, strict=True)):
        if not blob.shape_equals(proto):
            raise _misfit(name, index, blob.shape, stored_shape(proto))
        for what, diff in (("values", False), ("gradients", True)):
            try:
                count = arrays.count(proto, diff)
            except WeightsError as error:
                place = f"parameter {index} of layer {name!r}"
                raise error.at(place) from None
            if count != blob.count and (count or not diff):
                text = (
                    f"parameter {index} of layer {name!r} has {count} {what} for its shape "
                    f"{shape_string(blob.shape)}: the file is damaged; mend it"
                )
                raise WeightsError(text)
    return list(zip(mine, theirs, strict=True))


def _load_arrays(net: Net, weights: dict[str, dict[int, np.ndarray]], skip: bool) -> LoadReport:
    report, pairs = LoadReport(), list[tuple[Blob, np.ndarray]]()
    for name, arrays in weights.items():
        mine = _target(net, name, bool(arrays), report)
        if mine is None:
            continue
        with _fits(name, report, skip):
            pairs += _array_pairs(net, name, mine, arrays)
    with np.errstate(over="ignore", invalid="ignore"):
        for blob, array in pairs:
            blob.mutable_cpu_data()[...] = array
    return _finished(net, report)


def _array_pairs(
    net: Net, name: str, mine: list[Blob], arrays: dict[int, np.ndarray]
) -> list[tuple[Blob, np.ndarray]]:
    wanted = [i for i, blob in enumerate(mine) if i in arrays or not _is_shared(net, blob)]
    _same_number(name, len(wanted), len(arrays))
    if wanted != list(arrays):
        text = (
            f"the source has parameters {_listed(arrays)} of layer {name!r}, the net has "
            f"{_listed(wanted)}; rename the layer to leave it as it is"
        )
        raise WeightsError(text)
    for index, array in arrays.items():
        blob = mine[index]
        if blob.shape != array.shape:
            raise _misfit(name, index, blob.shape, array.shape)
        if array.dtype.kind not in "fiu":
            text = f"parameter {index} of layer {name!r} holds {array.dtype}, not numbers; mend it"
            raise WeightsError(text)
    return [(mine[index], array) for index, array in arrays.items()]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


@contextmanager
def _fits(name: str, report: LoadReport, skip: bool) -> Iterator[None]:
    """Note a layer that does not fit as mismatched, where such layers are to be left out."""
    try:
        yield
    except (ShapeError, WeightsError) as error:
        if not skip:
            error.message += ", or leave it out with on_mismatch='skip'"
            raise
        report.mismatched[name] = str(error)
        if name in report.loaded:
            report.loaded.remove(name)


def _target(net: Net, name: str, has_blobs: bool, report: LoadReport) -> list[Blob] | None:
    if not net.has_layer(name):
        if has_blobs:
            report.ignored.append(name)
        return None
    if has_blobs:
        (report.repeated if name in report.loaded else report.loaded).append(name)
    return net.layer_by_name(name).blobs


def _is_shared(net: Net, blob: Blob) -> bool:
    return not any(blob is owner for owner in net.learnable_params)


def _finished(net: Net, report: LoadReport) -> LoadReport:
    report.missing = [name for name in net.params if name not in report.loaded]
    return report


def _same_number(layer: str, have: int, given: int) -> None:
    if have != given:
        message = (
            f"layer {layer!r} has {have} parameters, the source has {given}; "
            "rename the layer to leave it as it is"
        )
        raise WeightsError(message)


def _misfit(layer: str, index: int, mine: tuple[int, ...], theirs: tuple[int, ...]) -> ShapeError:
    ones = [n for n in mine if n != 1] == [n for n in theirs if n != 1]
    message = (
        f"cannot copy parameter {index} of layer {layer!r}: the source has {shape_string(theirs)}, "
        f"the net {shape_string(mine)}{' (only axes of 1 differ)' if ones else ''}; rename the "
        "layer to learn it afresh"
    )
    return ShapeError(message)


def matched(layer: str, mine: Sequence[Blob], theirs: Sequence[Blob]) -> list[tuple[Blob, Blob]]:
    """Pair the parameters of two layers, which must agree in number and shapes."""
    if len(mine) != len(theirs):
        message = f"{layer} has {len(mine)} parameters here and {len(theirs)} in the other net"
        raise NetError(message)
    for index, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.shape != b.shape:
            raise _misfit(layer, index, a.shape, b.shape)
    return list(zip(mine, theirs, strict=True))


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
