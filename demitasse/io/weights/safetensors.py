"""Named arrays in ``.safetensors`` files, read and written without the safetensors library.

A file is the length of the header (8 bytes), a header in JSON, and the arrays.
"""

import json
import math
import os
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.core.paths import code_of, reason_of, regular_file
from demitasse.errors import ErrorCode, WeightsError
from demitasse.io.data.databases.database import check

TYPES = {"float16": "F16", "float32": "F32", "float64": "F64"}
BFLOAT16 = "bfloat16"
STORED = {**TYPES, BFLOAT16: "BF16"}
"""Storage types of floats, and their names in the header; numpy has no bfloat16."""

INTEGERS = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
"""Other types, e.g. of counters, which are read only."""

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError)
LONGEST_HEADER = 100 << 20  # bytes, the safetensors library's own limit


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name."""
    try:
        with regular_file(path).open("rb") as file:
            return _arrays_of(file, os.fstat(file.fileno()).st_size)
    except UNREADABLE as error:
        message = f"{path} cannot be read as weights: {reason_of(error, path)}"
        raise WeightsError(message, code=code_of(error), file=str(path)) from error


def write_safetensors(
    path: Path, arrays: dict[str, np.ndarray], kind: str = "np", dtype: str | None = None
) -> None:
    """Write arrays, atomically, for "np" or "pt"; floats as one of ``STORED``, or unchanged."""
    pieces = safetensors_pieces(arrays, kind, dtype)
    with atomic_write(path) as file:
        for piece in pieces:
            file.write(piece)


def safetensors_pieces(
    arrays: dict[str, np.ndarray], kind: str = "np", dtype: str | None = None
) -> Iterator[bytes]:
    """Return the bytes of a file in pieces; arguments as for ``write_safetensors``."""
    header: dict[str, object] = {"__metadata__": {"format": kind}}
    start = 0
    for name, array in arrays.items():
        own = array.dtype.name if dtype is None else dtype
        if array.dtype.name not in TYPES or own not in STORED:
            message = f"got {array.dtype} in {name}, expected one of {', '.join(TYPES)}"
            raise WeightsError(
                message, code=ErrorCode.DTYPE_MISMATCH, param=name, got=str(array.dtype)
            )
        size = array.size * (2 if own == BFLOAT16 else np.dtype(own).itemsize)
        header[name] = {
            "dtype": STORED[own],
            "shape": list(array.shape),
            "data_offsets": [start, start + size],
        }
        start += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # aligns the data to 8 bytes

    def pieces() -> Iterator[bytes]:
        yield struct.pack("<Q", len(encoded)) + encoded
        for array in arrays.values():
            yield _stored(array, array.dtype.name if dtype is None else dtype)

    return pieces()


def _stored(array: np.ndarray, dtype: str) -> bytes:
    """Return the bytes of an array, little-endian."""
    if dtype != BFLOAT16:
        with np.errstate(over="ignore"):
            return array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes()
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16  # ties to even
    rounded = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
    return rounded.astype("<u2").tobytes()


def _arrays_of(file: BufferedReader, size: int) -> dict[str, np.ndarray]:
    length = int.from_bytes(file.read(8), "little")
    fits = length <= min(LONGEST_HEADER, size - 8)
    check(fits, f"its header declares {length} bytes, and the file has {size}")
    header = json.loads(file.read(length))
    check(isinstance(header, dict), "its header is no JSON object")
    types = {text: np.dtype(name).newbyteorder("<") for name, text in (TYPES | INTEGERS).items()}
    types["BF16"] = np.dtype("<u2")
    first, arrays, used = 8 + length, {}, 0
    room = size - first
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        known = f"got tensor {name!r} of type {about['dtype']}, expected {', '.join(types)}"
        check(about["dtype"] in types, known)
        kind, shape = types[about["dtype"]], tuple(about["shape"])
        fits = 0 <= begin <= end <= room and end - begin == math.prod(shape) * kind.itemsize
        check(fits, f"tensor {name!r} does not lie at its declared offsets")
        used += end - begin
        check(used <= room, f"tensor {name!r} overlaps other tensors")
        array = np.empty(shape, kind)
        file.seek(first + begin)
        count = file.readinto(array.reshape(-1).view(np.uint8).data)
        check(count == array.nbytes, f"the file was cut short in tensor {name!r}")
        if about["dtype"] == "BF16":  # the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
    return arrays
