"""Weights in HDF5 files, in Caffe's layout.

``data/<layer>/<index>`` is a parameter and ``diff/<layer>/<index>`` its gradient. A shared
parameter is stored once, with its owner; its gradient is stored with every layer. A ``/`` in a
layer name makes nested groups.

Source: Caffe, ``Net::ToHDF5`` and ``CopyTrainedLayersFromHDF5`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.extras import needs_extra
from demitasse.core.paths import regular_file
from demitasse.errors import ErrorCode, WeightsError

if TYPE_CHECKING:
    from hashlib import _Hash

    from demitasse.net.structure import Structure

SIGNATURE = b"\x89HDF\r\n\x1a\n"
NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # syntax of a parameter's index
DEEPEST = 128  # largest nesting of groups: one more than the slashes in a layer's name


def is_hdf5(path: Path) -> bool:
    """Return True if a file has the HDF5 signature; False for a missing file."""
    try:
        with regular_file(path).open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


def open_hdf5(path: Path, mode: str, file: Any = None) -> Any:
    """Open an HDF5 file, or an open file object in place of ``path``, in mode "r" or "w"."""
    with needs_extra(WeightsError, f"the HDF5 file {path}", "h5py", "hdf5", file=str(path)):
        import h5py
    try:
        return h5py.File(path if file is None else file, mode)
    except OSError as error:
        message = f"{path} cannot be opened: {error}"
        raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path)) from None


@contextmanager
def new_hdf5(path: Path, hashed: _Hash | None = None) -> Iterator[Any]:
    """Open a new HDF5 file, which replaces ``path`` if the block succeeds; update a hash."""
    from demitasse.io.data.databases.hdf5 import ErrorRecordingFile

    with atomic_write(path, hashed) as temporary:
        steady = ErrorRecordingFile(temporary)
        try:
            with open_hdf5(path, "w", steady) as file:
                yield file
        finally:
            steady.check()


def read_hdf5_weights(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """Return the parameters of each layer, by index; a shared parameter may be missing."""
    from demitasse.io.data.databases.hdf5 import arrays_of, damage, member

    found: dict[str, dict[str, np.ndarray]] = {}
    with damage(path, WeightsError), open_hdf5(path, "r") as file:
        data = member(file, "data")
        if not hasattr(data, "visititems"):
            message = f"{path} has no group 'data': no file of Caffe weights"
            if "history" in file:
                given = f"{path} is a solver state, not weights"
                message = f"{given}: give the .caffemodel.h5 beside it"
            raise WeightsError(message, code=ErrorCode.UNREADABLE, file=str(path))
        members = list(_members(path, data))
        arrays = iter(arrays_of([item for _, item in members if item is not None]))
        for name, item in members:
            layer, _, index = name.rpartition("/")
            if item is None:
                found.setdefault(name, {})
            else:
                found.setdefault(layer, {})[index] = next(arrays)
    weights: dict[str, dict[int, np.ndarray]] = {}
    for layer, params in found.items():
        if not all(NUMBER.fullmatch(index) for index in params):
            names = ", ".join(params)
            message = f"{path}: parameters of layer {layer!r} are named {names}, expected 0, 1, ..."
            raise WeightsError(
                message, code=ErrorCode.INVALID, file=str(path), layer=layer, got=names
            )
        weights[layer] = {int(index): params[index] for index in sorted(params, key=int)}
    return weights


def _members(path: Path, data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the data sets below a group with paths, and None for empty groups, in linear time."""
    from h5py.h5o import get_info

    met = {get_info(data.id).addr}
    waiting = [("", data, 0)]
    while waiting:
        prefix, group, depth = waiting.pop()
        if depth > DEEPEST:
            message = f"{path}: data/{prefix[:80]}... is nested in more than {DEEPEST} groups"
            raise WeightsError(message, code=ErrorCode.LIMIT, file=str(path), expected=DEEPEST)
        if not len(group) and prefix:
            yield prefix.rstrip("/"), None
        below = []
        for part in group:
            name = prefix + part
            if hasattr(group.get(part, getlink=True), "path"):  # may lead to another file
                message = f"{path}: data/{name} is a link; store the array itself"
                raise WeightsError(message, code=ErrorCode.UNTRUSTED, file=str(path))
            item = group[part]
            place = get_info(item.id).addr
            if place in met:
                continue
            met.add(place)
            if hasattr(item, "visititems"):
                below.append((f"{name}/", item, depth + 1))
            elif hasattr(item, "dtype"):
                yield name, item
        waiting += reversed(below)  # in the order of layer names


def need_own_names(names: Iterable[str], reserved: Collection[str] = ("", ".")) -> None:
    """Refuse equal names of layers, and names with a ``reserved`` part between slashes."""
    for name, count in Counter(names).items():
        if count > 1 or not set(reserved).isdisjoint(name.split("/")):
            message = (
                f"got {count} of the layers with parameters named {name!r}, expected a name for "
                "each, without empty parts between slashes; rename the layers"
            )
            raise WeightsError(message, code=ErrorCode.INVALID, layer=name, got=count)


def need_own_groups(layers: Iterable[tuple[str, Collection[int]]]) -> None:
    """Refuse names like ``need_own_names``, and the path of a parameter; given with its indices."""
    given = list(layers)
    need_own_names(name for name, indices in given if indices)
    paths = {f"{name}/{index}" for name, indices in given for index in indices}
    for name, _ in given:
        if not paths.isdisjoint(accumulate(name.split("/"), "{}/{}".format)):
            message = f"got layer {name!r}, in the place of another layer's parameter; rename it"
            raise WeightsError(message, code=ErrorCode.INVALID, layer=name)


def write_hdf5_arrays(path: Path, weights: dict[str, dict[int, np.ndarray]]) -> None:
    """Write the parameters of layers, atomically."""
    need_own_groups(weights.items())
    with new_hdf5(path) as file:
        data = file.create_group("data")
        for layer, arrays in weights.items():
            group = data.require_group(layer)
            for index, array in arrays.items():
                group.create_dataset(str(index), data=array)


def write_hdf5_weights(
    net: Structure, path: Path, write_diff: bool, hashed: _Hash | None = None
) -> None:
    """Write the parameters owned by a net, and optionally all gradients, atomically."""
    need_own_groups((layer.name, range(len(layer.blobs))) for layer in net.layers)
    with new_hdf5(path, hashed) as file:
        for kind in ("data", "diff") if write_diff else ("data",):
            group = file.create_group(kind)
            for layer in net.layers:
                if layer.name:
                    group.require_group(layer.name)
            for blob, record in zip(net.params_list, net.param_records, strict=True):
                if record.owner is None or kind == "diff":  # as in Caffe
                    values = blob.cpu_data() if kind == "data" else blob.cpu_diff()
                    name = net.layers[record.layer].name
                    group[name].create_dataset(str(record.index), data=values)
