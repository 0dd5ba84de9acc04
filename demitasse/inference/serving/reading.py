"""Requests and answers from bytes: JSON, or JSON and then values in binary.

Everything is checked before memory is taken for it: what a body costs follows from its length.
"""

from __future__ import annotations

import base64
import binascii
import math
from itertools import chain

import numpy as np

from demitasse.core.text import suggestion
from demitasse.errors import DataError
from demitasse.inference.serving.fields import Fields, json_object
from demitasse.inference.serving.messages import DTYPES, InferRequest, InferResponse, Tensor

__all__ = ["read_request", "read_response"]

MOST_TENSORS = 1000
"""Inputs or outputs of a message."""

MOST_AXES = 32

MOST_VALUES = 1 << 59
"""Values that the axes of an array may mean: NumPy counts bytes in 63 bits, its zeros not."""

PYTHON_TYPES: dict[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "O": {str},
}
"""Kind of a numpy type -> what JSON may hold for it."""


def read_request(body: bytes | memoryview, json_length: int | None = None) -> InferRequest:
    """Read what a client asks.

    Args:
        body: The body of a POST to ``/v2/models/NAME/infer``.
        json_length: How many of its bytes are JSON, as the header
            ``Inference-Header-Content-Length`` says; None for all.

    Raises:
        DataError: It is no request; the message names the field.
    """
    top, binary = _split(body, json_length)
    tensors = _tensors(top, "inputs", binary)
    wanted: dict[str, bool] | None = None
    parameters = top.table("parameters")
    everything = parameters.flag("binary_data_output") or False
    if top.has("outputs"):
        wanted = {}
        for one in top.objects("outputs"):
            said = one.table("parameters").flag("binary_data")
            wanted[one.text("name")] = everything if said is None else said
            if len(wanted) > MOST_TENSORS:
                message = f"outputs has more than {MOST_TENSORS} entries"
                raise DataError(message)
    return InferRequest(tensors, wanted or None, everything, top.text("id", ""))


def read_response(body: bytes | memoryview, json_length: int | None = None) -> InferResponse:
    """Read what a server has answered.

    Args:
        body: The body of its answer.
        json_length: How many of its bytes are JSON; None for all.

    Raises:
        DataError: It is no answer; the message names the field.
    """
    top, binary = _split(body, json_length)
    if top.has("error"):
        message = f"the server answered: {top.text('error', '')}"
        raise DataError(message)
    return InferResponse(
        top.text("model_name"),
        _tensors(top, "outputs", binary),
        top.text("id", ""),
        top.text("model_version", "1"),
    )


class _Binary:
    """The bytes behind the JSON, taken piece by piece."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def take(self, count: int, place: str) -> memoryview:
        left = len(self._content) - self._at
        if count > left:
            message = (
                f"{place}.parameters.binary_data_size is {count}, but only {left} bytes are left "
                "behind the JSON"
            )
            raise DataError(message)
        self._at += count
        return self._content[self._at - count : self._at]

    def close(self) -> None:
        if self._at != len(self._content):
            message = (
                f"{len(self._content) - self._at} bytes behind the JSON belong to no tensor; "
                "parameters.binary_data_size of each says how many are its own"
            )
            raise DataError(message)


def _split(body: bytes | memoryview, json_length: int | None) -> tuple[Fields, _Binary]:
    view = memoryview(body)
    length = len(view) if json_length is None else json_length
    if not 0 <= length <= len(view):
        message = f"the header says that {length} bytes are JSON; the body has {len(view)}"
        raise DataError(message)
    return json_object(view[:length]), _Binary(view[length:])


def _tensors(top: Fields, key: str, binary: _Binary) -> list[Tensor]:
    entries = top.objects(key)
    if not 1 <= len(entries) <= MOST_TENSORS:
        message = f"{key} must have 1 to {MOST_TENSORS} entries, it has {len(entries)}"
        raise DataError(message)
    tensors = [_tensor(one, binary) for one in entries]
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        message = f"{key} has {twice!r} more than once"
        raise DataError(message)
    binary.close()
    return tensors


def _tensor(entry: Fields, binary: _Binary) -> Tensor:
    name, datatype = entry.text("name"), entry.text("datatype")
    if datatype not in DTYPES:
        known = list(DTYPES)
        entry.refuse("datatype", f"must be one of {', '.join(known)}", suggestion(datatype, known))
    shape = _shape(entry)
    parameters = entry.table("parameters")
    size = parameters.length("binary_data_size")
    if size is None:
        coded = parameters.has("content_type") and parameters.text("content_type") == "base64"
        values = _from_json(entry, datatype, shape, coded=coded)
    elif entry.has("data"):
        message = f"{entry.place} has data and parameters.binary_data_size; send one of them"
        raise DataError(message)
    else:
        content = binary.take(size, entry.place)
        values = _from_bytes(entry, content, datatype, shape)
    return Tensor(name, values, parameters.as_dict())


def _shape(entry: Fields) -> tuple[int, ...]:
    shape = entry.items("shape")
    lengths = tuple(one for one in shape if type(one) is int and 0 <= one < 1 << 63)
    if len(lengths) < len(shape) or len(shape) > MOST_AXES:
        message = (
            f"{entry.place}.shape must be a list of at most {MOST_AXES} whole numbers from 0 on"
        )
        raise DataError(message)
    if 0 in lengths and math.prod(filter(None, lengths)) > MOST_VALUES:
        message = (
            f"{entry.place}.shape is {list(lengths)}: it holds no values, but its other axes are "
            "longer than those of any array"
        )
        raise DataError(message)
    return lengths


def _need_count(entry: Fields, count: int, shape: tuple[int, ...]) -> None:
    if count != math.prod(shape):
        message = (
            f"{entry.place} has {count} values, but its shape {list(shape)} means "
            f"{_short(math.prod(shape))}"
        )
        raise DataError(message)


def _short(number: int) -> str:
    return str(number) if number < 1 << 64 else "more than 2^64"


def _from_json(entry: Fields, datatype: str, shape: tuple[int, ...], *, coded: bool) -> np.ndarray:
    """Return the values of a list, or of lists in lists as the shape says."""
    dtype = DTYPES[datatype]
    data = _flat(entry, shape)
    _need_count(entry, len(data), shape)
    allowed = PYTHON_TYPES[dtype.kind]
    if not set(map(type, data)) <= allowed:
        what = {"b": "true and false", "O": "texts"}.get(dtype.kind, "numbers")
        if dtype.kind in "iu":
            what = "whole numbers"
        message = f"{entry.place}.data must hold {what} alone, for datatype {datatype}"
        raise DataError(message)
    if datatype == "BYTES":
        return _texts(entry, data, shape, coded=coded)
    try:
        with np.errstate(over="ignore"):
            values = np.array(data, dtype)
    except OverflowError:
        finite = False
    else:
        finite = dtype.kind != "f" or bool(np.isfinite(values).all())
    if not finite:  # Python reads 1e999 as infinity already
        message = f"{entry.place}.data holds numbers that {datatype} has no room for"
        raise DataError(message)
    return values.reshape(shape)


def _flat(entry: Fields, shape: tuple[int, ...]) -> list[object]:
    data = list(entry.items("data"))
    lengths = [len(data)]
    while data and isinstance(data[0], list):
        rows = [row for row in data if isinstance(row, list) and len(row) == len(data[0])]
        if len(rows) < len(data) or len(lengths) > MOST_AXES:
            message = f"{entry.place}.data has rows of different lengths, or no rows beside rows"
            raise DataError(message)
        lengths.append(len(rows[0]))
        data = list(chain.from_iterable(rows))
    if len(lengths) > 1 and tuple(lengths) != shape:
        message = f"{entry.place}.data is nested as {lengths}, but its shape is {list(shape)}"
        raise DataError(message)
    return data


def _texts(entry: Fields, data: list[object], shape: tuple[int, ...], *, coded: bool) -> np.ndarray:
    values = np.empty(len(data), DTYPES["BYTES"])
    for index, text in enumerate(data):
        try:
            content = str(text).encode()
            values[index] = base64.b64decode(content, validate=True) if coded else content
        except (UnicodeEncodeError, binascii.Error) as error:
            message = f"{entry.place}.data[{index}] cannot be read: {error}"
            raise DataError(message) from None
    return values.reshape(shape)


def _from_bytes(
    entry: Fields, content: memoryview, datatype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """Return values that follow the JSON: rows last axis first, the lowest byte first."""
    if datatype == "BYTES":
        return _items(entry, content, shape)
    dtype = DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != len(content):
        message = (
            f"{entry.place}.parameters.binary_data_size is {len(content)}, but {datatype} "
            f"{list(shape)} takes {_short(wanted)} bytes"
        )
        raise DataError(message)
    if datatype == "BOOL":
        bits: np.ndarray = np.frombuffer(content, np.uint8) != 0
        return bits.reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def _items(entry: Fields, content: memoryview, shape: tuple[int, ...]) -> np.ndarray:
    """Return texts, each behind its length in four bytes."""
    found: list[bytes] = []
    at = 0
    while at < len(content):
        start = at + 4
        at = start + int.from_bytes(content[at:start], "little")
        if start > len(content) or at > len(content):
            message = (
                f"{entry.place}: element {len(found)} reaches beyond the {len(content)} bytes of "
                "the tensor; each is four bytes with its length, lowest first, and then its bytes"
            )
            raise DataError(message)
        found.append(bytes(content[start:at]))
    _need_count(entry, len(found), shape)
    values = np.empty(len(found), DTYPES["BYTES"])
    values[:] = found
    return values.reshape(shape)
