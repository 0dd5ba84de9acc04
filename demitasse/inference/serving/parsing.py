"""Parse requests and responses: JSON, or JSON followed by binary values.

All sizes are checked before memory is allocated: the cost of a body depends on its length alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NoReturn

import numpy as np

from demitasse.core.axes import MAX_AXES
from demitasse.core.text import suggestion
from demitasse.errors import DataError, ErrorCode
from demitasse.inference.serving.messages import DTYPES, InferRequest, InferResponse, Tensor

MAX_TENSORS = 1000
"""Largest number of inputs or outputs in a message."""

MAX_VALUES = 1 << 59
"""Largest product of the nonzero axes of an array: NumPy counts bytes in 63 bits."""

PYTHON_TYPES: dict[str, set[type]] = {
    "b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str},
}  # fmt: skip
"""Types of JSON values by the kind of a numpy type."""

MAX_REPR = 60
"""Characters of a value that a message shows."""

MAX_NAME = 1000
"""Longest name, in characters."""


def read_request(body: bytes | memoryview, json_length: int | None = None) -> InferRequest:
    """Parse a request for inference.

    Args:
        body: The body of a POST to ``/v2/models/NAME/infer``.
        json_length: Number of JSON bytes, from the header ``Inference-Header-Content-Length``;
            None for all.

    Raises:
        DataError: The request is invalid; the message names the field.
    """
    top, binary = _split(body, json_length)
    tensors = _tensors(top, "inputs", binary)
    binary_default = _parameters(top).flag("binary_data_output") or False
    outputs: dict[str, bool] = {}
    if "outputs" in top:
        count = len(top.items_of("outputs"))
        if count > MAX_TENSORS:
            message = f"outputs must have at most {MAX_TENSORS} entries, it has {count}"
            raise DataError(message, code=ErrorCode.LIMIT, field="outputs", got=count)
        for one in top.objects("outputs"):
            options = _parameters(one)
            flag, name = options.flag("binary_data"), one.text("name")
            if name in outputs:
                message = f"outputs has {name!r} more than once"
                raise DataError(message, code=ErrorCode.DUPLICATE, field="outputs", tensor=name)
            outputs[name] = binary_default if flag is None else flag
    return InferRequest(tensors, outputs or None, binary_default, top.text("id", ""))


def read_response(body: bytes | memoryview, json_length: int | None = None) -> InferResponse:
    """Parse a response to a request for inference.

    Args:
        body: The body of the response.
        json_length: Number of JSON bytes; None for all.

    Raises:
        DataError: The response is invalid, or an error; the message names the field.
    """
    top, binary = _split(body, json_length)
    if "error" in top:
        message = f"the server answered: {top.text('error', '')}"
        raise DataError(message, code=ErrorCode.FAILED)
    tensors = _tensors(top, "outputs", binary)
    version = top.text("model_version", "1")
    return InferResponse(top.text("model_name"), tensors, top.text("id", ""), version)


def _split(body: bytes | memoryview, json_length: int | None) -> tuple[Fields, memoryview]:
    """Return the JSON of a body, and the bytes after it."""
    view = memoryview(body)
    length = len(view) if json_length is None else json_length
    if not 0 <= length <= len(view):
        message = f"the header gives {length} bytes of JSON; the body has {len(view)}"
        raise DataError(message, code=ErrorCode.TRUNCATED, got=len(view), expected=length)
    return json_object(view[:length]), view[length:]


def _tensors(top: Fields, key: str, binary: memoryview) -> list[Tensor]:
    count = len(top.items_of(key))
    if not 1 <= count <= MAX_TENSORS:
        message = f"{key} must have 1 to {MAX_TENSORS} entries, it has {count}"
        raise DataError(message, code=ErrorCode.COUNT_MISMATCH, field=key, got=count)
    tensors: dict[str, Tensor] = {}
    for entry in top.objects(key):
        tensor, binary = _tensor(entry, binary)
        if tensor.name in tensors:
            message = f"{key} has {tensor.name!r} more than once"
            raise DataError(message, code=ErrorCode.DUPLICATE, field=key, tensor=tensor.name)
        tensors[tensor.name] = tensor
    if len(binary):
        message = (
            f"{len(binary)} bytes after the JSON belong to no tensor; set "
            "parameters.binary_data_size of each tensor"
        )
        raise DataError(message, code=ErrorCode.INVALID)
    return list(tensors.values())


def _tensor(entry: Fields, binary: memoryview) -> tuple[Tensor, memoryview]:
    """Return a tensor, and the binary values that are left."""
    name, datatype = entry.text("name"), entry.text("datatype")
    if datatype not in DTYPES:
        known = list(DTYPES)
        entry.refuse("datatype", f"must be one of {', '.join(known)}", suggestion(datatype, known))
    shape = _shape(entry)
    parameters = _parameters(entry)
    size = parameters.length("binary_data_size")
    if size is None:
        coded = "content_type" in parameters and parameters.text("content_type") == "base64"
        values, size = _from_json(entry, datatype, shape, coded=coded), 0
    elif "data" in entry:
        message = f"{entry.place} has data and parameters.binary_data_size; send one of them"
        raise DataError(message, code=ErrorCode.CONFLICT, field=entry.place)
    elif size > len(binary):
        message = (
            f"{entry.place}.parameters.binary_data_size is {size}, but only {len(binary)} bytes "
            "are left after the JSON"
        )
        raise DataError(message, code=ErrorCode.TRUNCATED, field=entry.place)
    else:
        values = _from_bytes(entry, binary[:size], datatype, shape)
    return Tensor(name, values, dict(parameters)), binary[size:]


def _parameters(entry: Fields) -> Fields:
    """Return the parameters, none of which has parts: these could be too deep for ``pickle``.

    Triton's regions of shared memory are refused: they would read and write memory of others.
    """
    parameters = entry.table("parameters")
    if any(isinstance(value, list | dict) for value in parameters.values()):
        entry.fault("parameters", "must contain only texts, numbers, true and false")
    if "shared_memory_region" in parameters:
        parameters.refuse("shared_memory_region", "is not supported; send the values")
    return parameters


def _shape(entry: Fields) -> tuple[int, ...]:
    shape = entry.items_of("shape")
    lengths = tuple(one for one in shape if type(one) is int and 0 <= one < 1 << 63)
    if len(lengths) < len(shape) or len(shape) > MAX_AXES:
        entry.fault("shape", f"must be a list of at most {MAX_AXES} whole numbers from 0 on")
    if 0 in lengths and math.prod(filter(None, lengths)) > MAX_VALUES:
        text = f"is {list(lengths)}: its nonzero axes exceed those of any array"
        entry.fault("shape", text, ErrorCode.LIMIT)
    return lengths


def _need_count(entry: Fields, count: int, shape: tuple[int, ...]) -> None:
    if count != math.prod(shape):
        message = (
            f"{entry.place} has {count} values, but its shape {list(shape)} means "
            f"{_short(math.prod(shape))}"
        )
        raise DataError(message, code=ErrorCode.COUNT_MISMATCH, field=entry.place, got=count)


def _short(number: int) -> str:
    return str(number) if number < 1 << 64 else "more than 2^64"


def _from_json(entry: Fields, datatype: str, shape: tuple[int, ...], *, coded: bool) -> np.ndarray:
    """Return the values of a list, flat or nested by the shape."""
    dtype = DTYPES[datatype]
    data = _flat(entry, shape)
    _need_count(entry, len(data), shape)
    allowed = PYTHON_TYPES[dtype.kind]
    if not set(map(type, data)) <= allowed:
        what = {"b": "true and false", "O": "texts"}.get(dtype.kind, "numbers")
        if dtype.kind in "iu":
            what = "whole numbers"
        text = f"must contain only {what}, for datatype {datatype}"
        entry.fault("data", text, ErrorCode.DTYPE_MISMATCH)
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
        text = f"contains numbers beyond the range of {datatype}"
        entry.fault("data", text, ErrorCode.OUT_OF_RANGE)
    return values.reshape(shape)


def _flat(entry: Fields, shape: tuple[int, ...]) -> list[object]:
    data = list(entry.items_of("data"))
    lengths = [len(data)]
    while data and isinstance(data[0], list):
        rows = [row for row in data if isinstance(row, list) and len(row) == len(data[0])]
        if len(rows) < len(data) or len(lengths) > MAX_AXES:
            text = "has rows of different lengths, or rows and values"
            entry.fault("data", text, ErrorCode.SHAPE_MISMATCH)
        lengths.append(len(rows[0]))
        data = list(chain.from_iterable(rows))
    if len(lengths) > 1 and tuple(lengths) != shape:
        text = f"is nested as {lengths}, but its shape is {list(shape)}"
        entry.fault("data", text, ErrorCode.SHAPE_MISMATCH)
    return data


def _texts(entry: Fields, data: list[object], shape: tuple[int, ...], *, coded: bool) -> np.ndarray:
    values = np.empty(len(data), DTYPES["BYTES"])
    for index, text in enumerate(data):
        try:
            content = str(text).encode()
            values[index] = base64.b64decode(content, validate=True) if coded else content
        except (UnicodeEncodeError, binascii.Error) as error:
            entry.fault(f"data[{index}]", f"cannot be read: {error}", ErrorCode.UNREADABLE)
    return values.reshape(shape)


def _from_bytes(
    entry: Fields, content: memoryview, datatype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """Return binary values: C order, little-endian."""
    if datatype == "BYTES":
        return _items(entry, content, shape)
    dtype = DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != len(content):
        text = f"is {len(content)}, but {datatype} {list(shape)} takes {_short(wanted)} bytes"
        entry.fault("parameters.binary_data_size", text, ErrorCode.SHAPE_MISMATCH)
    if datatype == "BOOL":
        bits: np.ndarray = np.frombuffer(content, np.uint8) != 0
        return bits.reshape(shape)
    return np.frombuffer(content, dtype).reshape(shape)


def _items(entry: Fields, content: memoryview, shape: tuple[int, ...]) -> np.ndarray:
    """Return byte strings, each preceded by its length in four bytes."""
    found: list[bytes] = []
    at = 0
    while at < len(content):
        start = at + 4
        at = start + int.from_bytes(content[at:start], "little")
        if start > len(content) or at > len(content):
            message = (
                f"{entry.place}: element {len(found)} exceeds the {len(content)} bytes of the "
                "tensor; each element is a little-endian length of four bytes, then its bytes"
            )
            raise DataError(message, code=ErrorCode.TRUNCATED, field=entry.place)
        found.append(bytes(content[start:at]))
    _need_count(entry, len(found), shape)
    values = np.empty(len(found), DTYPES["BYTES"])
    values[:] = found
    return values.reshape(shape)


def json_object(content: bytes | memoryview) -> Fields:
    """Parse a JSON object.

    Raises:
        DataError: The bytes are not a JSON object; NaN and Infinity, which Python accepts, are
            not JSON.
    """
    try:
        value = json.loads(bytes(content), parse_constant=_no_constant)
    except RecursionError:
        message = "the JSON is nested too deeply"
        raise DataError(message, code=ErrorCode.LIMIT) from None
    except ValueError as error:  # also for invalid UTF-8 and for numbers that are too long
        message = f"the body is not JSON: {error}"
        raise DataError(message, code=ErrorCode.UNREADABLE) from None
    return Fields(value, "the body")


class Fields(dict[str, object]):
    """A JSON object with typed access to its fields; errors name the field.

    Args:
        value: The parsed JSON.
        place: Name of the object in messages.

    Raises:
        DataError: The value is not an object.
    """

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            message = f"{place} must be an object {{...}}, it is {_short_repr(value)}"
            raise DataError(message, code=ErrorCode.INVALID, field=place)
        super().__init__(value)
        self.place = place

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; without a default the field is required and not empty."""
        value = self._required(key) if default is None else self.get(key, default)
        if not isinstance(value, str) or len(value) > MAX_NAME or (default is None and not value):
            self.refuse(key, f"must be a text of 1 to {MAX_NAME} characters")
        return value

    def flag(self, key: str) -> bool | None:
        """Return a boolean; None if the field is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def length(self, key: str) -> int | None:
        """Return a number of bytes; None if the field is missing."""
        value = self.get(key)
        if value is not None and (type(value) is not int or value < 0):
            self.refuse(key, "must be a whole number from 0 on")
        return value if isinstance(value, int) else None

    def items_of(self, key: str) -> Sequence[object]:
        """Return a required list."""
        value = self._required(key)
        if not isinstance(value, list):
            self.refuse(key, "must be a list")
        return value

    def objects(self, key: str) -> list[Fields]:
        """Return a required list of objects."""
        name = self._name(key)
        return [Fields(one, f"{name}[{i}]") for i, one in enumerate(self.items_of(key))]

    def table(self, key: str) -> Fields:
        """Return an object; empty if the field is missing."""
        return Fields(self.get(key, {}), self._name(key))

    def refuse(self, key: str, needed: str, near: str = "") -> NoReturn:
        """Raise the error about a field; ``near`` is a suggestion."""
        self.fault(key, f"{needed}, it is {_short_repr(self.get(key))}{near}")

    def fault(self, key: str, text: str, code: ErrorCode = ErrorCode.INVALID) -> NoReturn:
        """Raise an error whose message begins with the name of a field."""
        name = self._name(key)
        message = f"{name} {text}"
        raise DataError(message, code=code, field=name) from None

    def _required(self, key: str) -> object:
        if key not in self:
            self.fault(key, "is missing", ErrorCode.MISSING)
        return self[key]

    def _name(self, key: str) -> str:
        return key if self.place == "the body" else f"{self.place}.{key}"


def _no_constant(name: str) -> NoReturn:
    message = f"{name} is not a number in JSON; send such values in binary"
    raise ValueError(message)


def _short_repr(value: object) -> str:
    match value:
        case list():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object with {len(value)} fields"
        case str():
            text = json.dumps(value[:MAX_REPR])
            return text if len(value) <= MAX_REPR else f"{text}... ({len(value)} characters)"
        case int() if not isinstance(value, bool) and value.bit_length() > 128:
            return "a number of more than 128 bits"
    return json.dumps(value)
