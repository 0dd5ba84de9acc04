"""Loading of stored parameters into nets.

Source: Caffe, ``Net::CopyTrainedLayersFrom`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from demitasse.blob import Blob
from demitasse.core.deprecated import warn_once
from demitasse.core.threads import Uninterrupted
from demitasse.errors import ConfigError, ErrorCode, NetError, ShapeError, WeightsError
from demitasse.io.proto import BlobProto, NetParameter, read_net_arrays, upgrade_net
from demitasse.io.proto.zero_copy.read import Arrays
from demitasse.io.weights.formats import Parameters, read_arrays
from demitasse.io.weights.nvcaffe import adopted
from demitasse.io.weights.pairing import (
    LoadReport,
    OnMismatch,
    array_pairs,
    finished,
    fits,
    message_pairs,
    target,
)
from demitasse.io.weights.store import ParameterStore

__all__ = ["LoadableNet", "load_files", "load_into"]

NO_GRADIENT = np.empty(0, np.float32)


class LoadableNet(Protocol):
    """A net with ``Net.load``."""

    @property
    def params(self) -> Mapping[str, Sequence[Blob]]:
        """Parameters by layer name."""

    def load(
        self, source: str | os.PathLike[str], on_mismatch: OnMismatch = "raise", /
    ) -> LoadReport:
        """Load a file."""


def load_files(
    net: LoadableNet,
    files: Sequence[str | os.PathLike[str]],
    on_mismatch: OnMismatch = "raise",
    on_load: Callable[[LoadReport, str | os.PathLike[str]], None] | None = None,
) -> list[str]:
    """Load several files into a net, in order; return the layers without weights in any file.

    Args:
        net: The net.
        files: Files of weights.
        on_mismatch: "raise" or "skip".
        on_load: Called with the report of each file.

    Returns:
        Names of layers that keep their initial weights; empty without files.
    """
    missing = set(net.params) if files else set()
    for file in files:
        report = net.load(file, on_mismatch)
        if on_load is not None:
            on_load(report, file)
        missing &= set(report.missing)
    return [layer for layer in net.params if layer in missing]


def load_into(
    net: ParameterStore,
    source: str | os.PathLike[str] | NetParameter,
    on_mismatch: OnMismatch = "raise",
) -> LoadReport:
    """Load parameters into a net, by layer name.

    All checks come before any change.

    Args:
        net: The net.
        source: A caffemodel, an HDF5 file, a ``.npz`` or ``.safetensors`` file, or a message.
        on_mismatch: "raise" an error for layers that do not fit, or "skip" them.

    Raises:
        ConfigError: ``on_mismatch`` is neither.
        WeightsError: The file cannot be read, or the number of parameters of a layer differs.
        ShapeError: The shape of a parameter differs.
    """
    if str(on_mismatch) == "error":
        warn_once("on_mismatch='error'", "on_mismatch='raise'", stacklevel=4)
        on_mismatch = "raise"
    if on_mismatch not in {"raise", "skip"}:
        message = f"got on_mismatch {on_mismatch!r}, expected 'raise' or 'skip'"
        raise ConfigError(
            message, code=ErrorCode.INVALID, field="on_mismatch", got=str(on_mismatch)
        )
    skip = on_mismatch == "skip"
    if isinstance(source, NetParameter):
        given = NetParameter()
        given.CopyFrom(source)
        upgrade_net(given)
        return _load_message(net, given, Arrays(), skip)
    path = Path(source)
    weights = read_arrays(path)
    if weights is not None:
        return _at(path, lambda: _load_arrays(net, weights, skip))
    given, arrays = read_net_arrays(path)
    return _at(path, lambda: _load_message(net, given, arrays, skip))


def _at(path: Path, load: Callable[[], LoadReport]) -> LoadReport:
    try:
        return load()
    except (NetError, ShapeError, WeightsError) as error:
        raise error.at(os.fspath(path)) from None


def _load_message(
    net: ParameterStore, message: NetParameter, arrays: Arrays, skip: bool
) -> LoadReport:
    report, pairs = LoadReport(), dict[str, list[tuple[Blob, BlobProto]]]()
    for layer in message.layer:
        mine = target(net, layer.name, bool(layer.blobs), report)
        if mine is None:
            continue
        if layer.type == "BatchNorm":  # may be converted
            for stored in layer.blobs:
                arrays.put_back(stored)
        pairs.pop(layer.name, None)
        with fits(layer.name, report, skip):
            stored_blobs = adopted(layer, len(mine))
            pairs[layer.name] = message_pairs(layer.name, mine, stored_blobs, arrays)
    # doubles may overflow to infinity, as in C
    with np.errstate(over="ignore", invalid="ignore"), Uninterrupted():
        for blob, proto in chain.from_iterable(pairs.values()):
            values, diff = arrays.floats(proto), arrays.floats(proto, diff=True)
            blob.set_floats(values, diff, arrays.let_go)
    return finished(net, report)


def _load_arrays(net: ParameterStore, weights: Parameters, skip: bool) -> LoadReport:
    report, pairs = LoadReport(), list[tuple[Blob, np.ndarray]]()
    for name, arrays in weights.items():
        mine = target(net, name, bool(arrays), report)
        if mine is None:
            continue
        with fits(name, report, skip):
            pairs += array_pairs(net, name, mine, arrays)
    with np.errstate(over="ignore", invalid="ignore"), Uninterrupted():
        for blob, array in pairs:
            blob.set_floats(array.reshape(-1), NO_GRADIENT)
    return finished(net, report)
