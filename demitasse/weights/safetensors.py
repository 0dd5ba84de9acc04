"""Named arrays in ``.safetensors`` files, read and written without that library.

The length of a header (8 bytes), a header in JSON, the arrays one after the other.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

from demitasse.atomic import atomic_write
from demitasse.errors import WeightsError
from demitasse.paths import regular

__all__ = ["read_safetensors", "write_safetensors"]

TYPES = {"float16": "F16", "float32": "F32", "float64": "F64"}
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError, struct.error
)  # fmt: skip
LONGEST_HEADER = 100 << 20  # bytes, as safetensors itself has it


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by their names.

    Raises:
        WeightsError: The file is not there or cannot be read.
    """
    try:
        return _arrays_of(np.fromfile(regular(path), np.uint8))
    except UNREADABLE as error:
        message = f"{path} cannot be read as weights: {error}"
        raise WeightsError(message) from error


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays, atomically.

    Raises:
        WeightsError: One holds no floats.
        OSError: The file cannot be written; an old one is kept.
    """
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    start = 0
    for name, array in arrays.items():
        if array.dtype.name not in TYPES:
            message = (
                f"{name} holds {array.dtype}; as safetensors only {', '.join(TYPES)} are written"
            )
            raise WeightsError(message)
        header[name] = {
            "dtype": TYPES[array.dtype.name],
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


def _arrays_of(content: np.ndarray) -> dict[str, np.ndarray]:
    (length,) = struct.unpack("<Q", content[:8].tobytes())
    if length > min(LONGEST_HEADER, content.size - 8):
        message = f"its header would be {length} bytes long"
        raise ValueError(message)
    header = json.loads(content[8 : 8 + length].tobytes())
    if not isinstance(header, dict):
        message = "its header is no object"
        raise TypeError(message)
    types = {text: np.dtype(name).newbyteorder("<") for name, text in TYPES.items()}
    data, arrays, used = content[8 + length :], {}, 0
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        kind, shape = types[about["dtype"]], tuple(about["shape"])
        if not 0 <= begin <= end <= data.size or end - begin != math.prod(shape) * kind.itemsize:
            message = f"tensor {name!r} does not lie where the header says"
            raise ValueError(message)
        used += end - begin
        if used > data.size:
            message = f"tensor {name!r} lies in bytes of other tensors"
            raise ValueError(message)
        arrays[name] = data[begin:end].copy().view(kind).reshape(shape)
    return arrays
