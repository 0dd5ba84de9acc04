"""Models of ONNX in files: constants go there uncopied, large ones beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.onnx.library import library
from demitasse.io.proto.zero_copy.write import Pieces, with_field

__all__ = ["Model", "check_model", "write_model"]

MOST_BYTES = 2**31 - 2**24
"""From here on a file would be too large for protobuf, so that constants go to one beside it."""

SMALL = 1024
"""Constants of fewer bytes always stay in the model's own file."""

PAGE = 4096
"""What constants beside the model begin at multiples of, so that memory can be mapped."""


@dataclass
class Model:
    """A model whose constants are not part of its message yet.

    Attributes:
        message: The ModelProto.
        constants: Name -> array.
    """

    message: Any
    constants: dict[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Size of all constants, in bytes."""
        return sum(array.nbytes for array in self.constants.values())


def check_model(model: Model) -> None:
    """Let ONNX's checker look at a model, and infer all shapes, strictly.

    Large constants take part by their types and shapes alone.

    Raises:
        NetError: It is no valid model, or a shape is not what is said of it.
    """
    onnx = library("onnx")
    light = onnx.ModelProto()
    light.CopyFrom(model.message)
    for name, array in model.constants.items():
        if array.nbytes < SMALL:
            light.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        else:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            info = onnx.helper.make_tensor_value_info(name, kind, array.shape)
            light.graph.input.append(info)
    try:
        onnx.checker.check_model(light, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        message = f"what would be written is no valid model, says ONNX's checker: {error}"
        raise NetError(message, code=ErrorCode.FAILED) from error


def write_model(model: Model, path: Path) -> list[Path]:
    """Write a model, each file atomically.

    Returns:
        The files: the model, and ``NAME.data`` with the constants where they are too large.

    Raises:
        OSError: A file cannot be written.
    """
    written, places = [path], dict[str, tuple[str, int, int]]()
    if model.nbytes >= MOST_BYTES:
        beside = path.with_name(f"{path.name}.data")
        places = _write_beside(model, beside)
        written.append(beside)
    message = type(model.message)()
    message.CopyFrom(model.message)
    message.ClearField("graph")
    tensors = [_tensor(*one, places.get(one[0])) for one in model.constants.items()]
    graph = with_field(model.message.graph, _number(model.message.graph, "initializer"), tensors)
    pieces = with_field(message, _number(message, "graph"), [graph])
    with atomic_write(path) as file:
        for piece in pieces:
            file.write(piece)
    return written


def _write_beside(model: Model, path: Path) -> dict[str, tuple[str, int, int]]:
    """Write the large constants; return for each the file, where it begins, and its bytes."""
    places = {}
    with atomic_write(path) as file:
        for name, array in model.constants.items():
            if array.nbytes >= SMALL:
                file.write(bytes(-file.tell() % PAGE))
                places[name] = (path.name, file.tell(), array.nbytes)
                file.write(_raw(array))
    return places


def _tensor(name: str, array: np.ndarray, place: tuple[str, int, int] | None) -> Pieces:
    """Return the pieces of a constant's message.

    Args:
        name: What it is called.
        array: The constant.
        place: The file that has its values, where they begin, and how many bytes they are; None for
            the model's own file.
    """
    onnx = library("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    if place is None:
        return with_field(tensor, _number(tensor, "raw_data"), [[_raw(array)]])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in zip(("location", "offset", "length"), place, strict=True):
        tensor.external_data.add(key=key, value=str(value))
    return [tensor.SerializeToString()]


def _raw(array: np.ndarray) -> memoryview:
    """Return the bytes of an array, the smallest of each number first."""
    block = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return block.reshape(-1).view(np.uint8).data


def _number(message: Any, field: str) -> int:
    number: int = message.DESCRIPTOR.fields_by_name[field].number
    return number
