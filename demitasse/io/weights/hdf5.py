"""Weights in HDF5 files, laid out as Caffe lays them out.

``data/<layer>/<index>`` holds a parameter and ``diff/<layer>/<index>`` its gradient; a shared
parameter is stored once, with its owner, its gradient with every layer. A ``/`` in a layer name
makes nested groups.

Source: Caffe, ``Net::ToHDF5`` and ``CopyTrainedLayersFromHDF5`` in ``src/caffe/net.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import regular_file
from demitasse.errors import WeightsError
from demitasse.io.data.databases.hdf5 import SteadyFile, array_of, damage, member
from demitasse.io.weights.store import ParameterStore

__all__ = [
    "NUMBER",
    "is_hdf5",
    "new_hdf5",
    "open_hdf5",
    "read_hdf5_weights",
    "write_hdf5_arrays",
    "write_hdf5_weights",
]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
NUMBER = re.compile("0|[1-9][0-9]{0,8}")
"""How a parameter's number is written."""
DEEPEST = 128
"""In how many groups a parameter may lie: one more than the slashes in its layer's name."""


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 files do; False where there is none."""
    try:
        with regular_file(path).open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False


def open_hdf5(path: Path | Any, mode: str) -> Any:
    """Open an HDF5 file.

    Raises:
        WeightsError: h5py is not installed, or the file cannot be opened.
    """
    try:
        import h5py
    except ImportError:
        message = f"{path} is an HDF5 file, which needs h5py: pip install 'demitasse[hdf5]'"
        raise WeightsError(message) from None
    try:
        return h5py.File(path, mode)
    except OSError as error:
        message = f"{path} cannot be opened: {error}"
        raise WeightsError(message) from None


@contextmanager
def new_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for writing that takes the place of ``path`` when the block ends well.

    Raises:
        OSError: It cannot be written; what was at ``path`` is whole.
        WeightsError: h5py is not installed.
    """
    with atomic_write(path) as temporary:
        steady = SteadyFile(temporary)
        try:
            with open_hdf5(steady, "w") as file:
                yield file
        finally:
            steady.check()


def read_hdf5_weights(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """Return the parameters of each layer of an HDF5 weights file by their numbers, rising.

    A number may be missing: a layer does not have what it shares with another one.

    Raises:
        WeightsError: The file is damaged, it has no ``data`` group or links in it, or a layer's
            parameters are not named by numbers.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    with damage(path, WeightsError), open_hdf5(path, "r") as file:
        for name, item in _members(path, _data_group(path, file)):
            layer, _, index = name.rpartition("/")
            if item is None:
                found.setdefault(name, {})
            else:
                found.setdefault(layer, {})[index] = array_of(item)
    weights: dict[str, dict[int, np.ndarray]] = {}
    for layer, arrays in found.items():
        if not all(NUMBER.fullmatch(index) for index in arrays):
            message = f"{path}: parameters of layer {layer!r} are named {', '.join(arrays)}"
            raise WeightsError(message)
        weights[layer] = {int(index): arrays[index] for index in sorted(arrays, key=int)}
    return weights


def _data_group(path: Path, file: Any) -> Any:
    """Return the group that holds the parameters, if they are in this file."""
    group = member(file, "data")
    if not hasattr(group, "visititems"):
        message = f"{path} has no group 'data': not a file of Caffe weights"
        if "history" in file:
            message = (
                f"{path} is the state of a solver, not weights: give the .caffemodel.h5 beside it"
            )
        raise WeightsError(message)
    return group


def _members(path: Path, data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the data sets below a group with their paths, and None for groups that are empty.

    Every object is opened from its own group and met once, whatever names it has, so that the time
    taken grows with the file.
    """
    from h5py.h5o import get_info

    met = {get_info(data.id).addr}
    waiting = [("", data, 0)]
    while waiting:
        prefix, group, depth = waiting.pop()
        if depth > DEEPEST:
            message = f"{path}: data/{prefix[:80]}... lies in more than {DEEPEST} groups"
            raise WeightsError(message)
        if not len(group) and prefix:
            yield prefix.rstrip("/"), None
        below = []
        for part in group:
            name = prefix + part
            if hasattr(group.get(part, getlink=True), "path"):  # could lead out of the file
                message = f"{path}: data/{name} is a link to another place; store the array itself"
                raise WeightsError(message)
            item = group[part]
            place = get_info(item.id).addr
            if place in met:
                continue
            met.add(place)
            if hasattr(item, "visititems"):
                below.append((f"{name}/", item, depth + 1))
            elif hasattr(item, "dtype"):
                yield name, item
        waiting += reversed(below)  # layers come in the order of their names


def write_hdf5_arrays(path: Path, weights: dict[str, dict[int, np.ndarray]]) -> None:
    """Write the parameters of some layers, atomically."""
    with new_hdf5(path) as file:
        data = file.create_group("data")
        for layer, arrays in weights.items():
            group = data.require_group(layer)
            for index, array in arrays.items():
                group.create_dataset(str(index), data=array)


def write_hdf5_weights(net: ParameterStore, path: Path, write_diff: bool) -> None:
    """Write the parameters a net owns, and the gradients of all, atomically."""
    with new_hdf5(path) as file:
        for kind in ("data", "diff") if write_diff else ("data",):
            group = file.create_group(kind)
            for layer in net.layers:
                group.require_group(layer.name)
            for blob, record in zip(net.params_list, net.param_records, strict=True):
                if record.owner is None or kind == "diff":  # as in Caffe
                    values = blob.cpu_data() if kind == "data" else blob.cpu_diff()
                    name = net.layers[record.layer].name
                    group[name].create_dataset(str(record.index), data=values)
