"""Requests and answers as bytes: JSON, and behind it the values that go in binary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from demitasse.errors import DataError
from demitasse.inference.serving.messages import (
    LENGTH_HEADER,
    InferRequest,
    InferResponse,
    Tensor,
    datatype_of,
)

__all__ = ["write_request", "write_response"]

Written = tuple[dict[str, str], bytes]
"""Headers and body."""


def write_request(request: InferRequest, *, binary: bool = True) -> Written:
    """Return headers and body of a request.

    Args:
        request: What is asked.
        binary: Whether its inputs go in binary.

    Raises:
        DataError: JSON has no word for a value.
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
    return _written(top, "inputs", request.inputs, chosen)


def write_response(response: InferResponse, binary: Mapping[str, bool] | bool = False) -> Written:
    """Return headers and body of an answer.

    Args:
        response: The answer.
        binary: Whether outputs go in binary: all, or each by its name.

    Raises:
        DataError: JSON has no word for a value.
    """
    top: dict[str, object] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        top["id"] = response.id
    if isinstance(binary, bool):
        binary = {tensor.name: binary for tensor in response.outputs}
    return _written(top, "outputs", response.outputs, binary)


def _written(
    top: dict[str, object], key: str, tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> Written:
    entries, parts = [], []
    for tensor in tensors:
        entry: dict[str, object] = {
            "name": tensor.name,
            "datatype": datatype_of(tensor.values.dtype),
            "shape": list(tensor.values.shape),
        }
        parameters = dict(tensor.parameters)
        if binary.get(tensor.name, False):
            parts.append(_bytes(tensor.values))
            parameters["binary_data_size"] = len(parts[-1])
        else:
            entry["data"] = _list(tensor)
        if parameters:
            entry["parameters"] = parameters
        entries.append(entry)
    top[key] = entries
    head = json.dumps(top, allow_nan=False, separators=(",", ":")).encode()
    if not parts:
        return {"Content-Type": "application/json"}, head
    headers = {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}
    return headers, b"".join([head, *parts])


def _bytes(values: np.ndarray) -> bytes:
    if values.dtype.kind == "O":
        items = (bytes(item) for item in values.ravel())
        return b"".join(len(item).to_bytes(4, "little") + item for item in items)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _list(tensor: Tensor) -> list[object]:
    values: list[object] = tensor.values.ravel().tolist()
    kind = tensor.values.dtype.kind
    if kind == "f" and not all(isinstance(one, float) and math.isfinite(one) for one in values):
        message = (
            f"{tensor.name!r} holds NaN or infinity, which JSON has no word for; ask for it in "
            'binary, with "binary_data": true in its parameters'
        )
        raise DataError(message)
    if kind == "O":
        try:
            return [bytes(one).decode() for one in tensor.values.ravel()]
        except UnicodeDecodeError:
            message = f"{tensor.name!r} holds bytes that are no text; send it in binary"
            raise DataError(message) from None
    return values
