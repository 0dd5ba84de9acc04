"""Messages of the Open Inference Protocol: tensors, requests, responses, and their encoding.

Source: KServe, *Open Inference Protocol*, version 2, with the binary extension of Triton.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demitasse.errors import DataError, ErrorCode

LENGTH_HEADER = "Inference-Header-Content-Length"
"""Header with the number of JSON bytes in a body; binary values follow them."""

_CODES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BYTES": "O",
}  # fmt: skip

DTYPES: Mapping[str, np.dtype] = {name: np.dtype(code) for name, code in _CODES.items()}
"""numpy's type by the protocol's name; BYTES are objects of type ``bytes``."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, eq=False)
class Tensor:
    """An input or an output.

    Attributes:
        name: Name of the tensor.
        values: Values, of one of the dtypes in ``DTYPES``.
        parameters: Parameters of the protocol.
    """

    name: str
    values: np.ndarray
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def datatype(self) -> str:
        """Protocol's name of the type of the values."""
        return datatype_of(self.values.dtype)


@dataclass(frozen=True, eq=False)
class InferRequest:
    """A request for inference.

    Attributes:
        inputs: The tensors.
        outputs: Requested outputs by name, True for binary; None for all outputs.
        binary: Return outputs in binary unless ``outputs`` says otherwise.
        id: The client's identifier of the request.
    """

    inputs: Sequence[Tensor]
    outputs: Mapping[str, bool] | None = None
    binary: bool = False
    id: str = ""


@dataclass(frozen=True, eq=False)
class InferResponse:
    """A response to a request for inference.

    Attributes:
        model: Name of the model.
        outputs: The tensors.
        id: The client's identifier of the request.
        version: Version of the model.
    """

    model: str
    outputs: Sequence[Tensor]
    id: str = ""
    version: str = "1"


def datatype_of(dtype: np.dtype) -> str:
    """Return the protocol's name of a numpy type.

    Raises:
        KeyError: The protocol has no such type.
    """
    return NAMES[dtype.newbyteorder("<")]


Encoded = tuple[dict[str, str], bytes]
"""Headers and body."""


def write_request(request: InferRequest, *, binary: bool = True) -> Encoded:
    """Return headers and body of a request.

    Args:
        request: The request.
        binary: Encode the inputs in binary.

    Raises:
        DataError: A value has no representation in JSON.
    """
    top: dict[str, object] = {"id": request.id} if request.id else {}
    if request.binary:
        top["parameters"] = {"binary_data_output": True}
    if request.outputs is not None:
        top["outputs"] = [
            {"name": name, "parameters": {"binary_data": flag}}
            for name, flag in request.outputs.items()
        ]
    chosen = {tensor.name: binary for tensor in request.inputs}
    headers, head, parts = _encoded(top, "inputs", request.inputs, chosen)
    return headers, b"".join([head, *parts])


def write_response(response: InferResponse, binary: Mapping[str, bool] | bool = False) -> Encoded:
    """Return headers and body of a response.

    Args:
        response: The response.
        binary: Encode outputs in binary: all, or by name.

    Raises:
        DataError: A value has no representation in JSON.
    """
    headers, head, parts = write_response_parts(response, binary)
    return headers, b"".join([head, *parts])


def write_response_parts(
    response: InferResponse, binary: Mapping[str, bool] | bool = False
) -> tuple[dict[str, str], bytes, list[memoryview]]:
    """Return headers, JSON and binary values of a response; arrays are not copied.

    Args:
        response: The response.
        binary: Encode outputs in binary: all, or by name.

    Raises:
        DataError: A value has no representation in JSON.
    """
    top: dict[str, object] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        top["id"] = response.id
    if isinstance(binary, bool):
        binary = {tensor.name: binary for tensor in response.outputs}
    return _encoded(top, "outputs", response.outputs, binary)


def _encoded(
    top: dict[str, object], key: str, tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> tuple[dict[str, str], bytes, list[memoryview]]:
    entries, parts = [], []
    for tensor in tensors:
        entry: dict[str, object] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.values.shape),
        }
        parameters = dict(tensor.parameters)
        if binary.get(tensor.name, False):
            parts.append(_bytes(tensor.values))
            parameters["binary_data_size"] = parts[-1].nbytes
        else:
            entry["data"] = _list(tensor)
        if parameters:
            entry["parameters"] = parameters
        entries.append(entry)
    top[key] = entries
    head = json.dumps(top, allow_nan=False, separators=(",", ":")).encode()
    if not parts:
        return {"Content-Type": "application/json"}, head, parts
    headers = {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}
    return headers, head, parts


def _bytes(values: np.ndarray) -> memoryview:
    if values.dtype.kind == "O":
        items = (bytes(item) for item in values.ravel())
        return memoryview(b"".join(len(item).to_bytes(4, "little") + item for item in items))
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def _list(tensor: Tensor) -> list[object]:
    kind = tensor.values.dtype.kind
    if kind == "f" and not np.isfinite(tensor.values).all():
        message = (
            f"{tensor.name!r} contains NaN or infinity, which JSON cannot represent; request it in "
            'binary, with "binary_data": true in its parameters'
        )
        raise DataError(message, code=ErrorCode.NOT_FINITE, tensor=tensor.name)
    if kind == "O":
        try:
            return [bytes(one).decode() for one in tensor.values.ravel()]
        except UnicodeDecodeError:
            message = f"{tensor.name!r} contains bytes that are not UTF-8; send it in binary"
            raise DataError(message, code=ErrorCode.INVALID, tensor=tensor.name) from None
    values: list[object] = tensor.values.ravel().tolist()
    return values
