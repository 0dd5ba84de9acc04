"""Weights as files of other systems: npz, HDF5, safetensors; a caffemodel without a net."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from demitasse.atomic import atomic_write
from demitasse.errors import WeightsError
from demitasse.proto import NetParameter, set_floats, write_binary
from demitasse.weights.hdf5 import open_hdf5
from demitasse.weights.read import load_weights

__all__ = ["KINDS", "Weights", "read_weights", "write_weights"]

Weights = dict[str, list[np.ndarray]]
"""For each layer its parameters, in Caffe's order."""

SAFETENSORS = {"float16": "F16", "float32": "F32", "float64": "F64"}
LONGEST_HEADER = 100 << 20  # bytes, as safetensors itself has it


def read_weights(path: Path) -> Weights:
    """Read a caffemodel, Caffe's HDF5, or a ``.npz`` or ``.safetensors`` file as written here.

    Raises:
        WeightsError: The file is not there or cannot be read.
    """
    named = {".npz": _read_npz, ".safetensors": _read_safetensors}.get(path.suffix)
    if named is None:
        return load_weights(path)
    weights: dict[str, dict[int, np.ndarray]] = {}
    try:
        for name, array in named(path).items():
            layer, _, index = name.rpartition("/")
            weights.setdefault(layer, {})[int(index)] = array
    except (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile) as error:
        message = f"{path} cannot be read as weights: {error}"
        raise WeightsError(message) from error
    return {layer: [arrays[i] for i in sorted(arrays)] for layer, arrays in weights.items()}


def write_weights(path: Path, kind: str, weights: Weights) -> None:
    """Write weights as one of ``KINDS``, atomically.

    Raises:
        WeightsError: h5py is not installed, or the weights are too large for a caffemodel.
        OSError: The file cannot be written; an old one is kept.
    """
    KINDS[kind](path, weights)


def _named(weights: Weights) -> dict[str, np.ndarray]:
    return {f"{layer}/{i}": a for layer, arrays in weights.items() for i, a in enumerate(arrays)}


def _write_npz(path: Path, weights: Weights) -> None:
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in _named(weights).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _write_hdf5(path: Path, weights: Weights) -> None:
    with atomic_write(path) as temporary, open_hdf5(temporary, "w") as file:
        data = file.create_group("data")
        for layer, arrays in weights.items():
            group = data.require_group(layer)
            for index, array in enumerate(arrays):
                group.create_dataset(str(index), data=array)


def _write_caffemodel(path: Path, weights: Weights) -> None:
    message = NetParameter()
    for name, arrays in weights.items():
        layer = message.layer.add(name=name)
        for array in arrays:
            blob = layer.blobs.add()
            blob.shape.dim.extend(array.shape)
            set_floats(blob, array)
    write_binary(path, message)


def _write_safetensors(path: Path, weights: Weights) -> None:
    arrays = _named(weights)
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    start = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # so that the data begin at a multiple of 8
    with atomic_write(path) as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for array in arrays.values():
            file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    (length,) = struct.unpack("<Q", content[:8].tobytes())
    if length > min(LONGEST_HEADER, content.size - 8):
        message = f"its header would be {length} bytes long"
        raise ValueError(message)
    header = json.loads(content[8 : 8 + length].tobytes())
    if not isinstance(header, dict):
        message = "its header is no object"
        raise TypeError(message)
    types = {text: np.dtype(name).newbyteorder("<") for name, text in SAFETENSORS.items()}
    data, arrays = content[8 + length :], {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        kind, shape = types[about["dtype"]], tuple(about["shape"])
        if not 0 <= begin <= end <= data.size or end - begin != math.prod(shape) * kind.itemsize:
            message = f"tensor {name!r} does not lie where the header says"
            raise ValueError(message)
        arrays[name] = data[begin:end].copy().view(kind).reshape(shape)
    return arrays


KINDS: dict[str, Callable[[Path, Weights], None]] = {
    "npz": _write_npz,
    "h5": _write_hdf5,
    "safetensors": _write_safetensors,
    "caffemodel": _write_caffemodel,
}
"""Kinds of files that are written, by their ending."""
