"""ONNX files: write without copies, check by ONNX's checker, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.core.atomic import atomic_write
from demitasse.errors import DataError, ErrorCode, NetError
from demitasse.io.proto.write import Pieces
from demitasse.io.proto.zero_copy import with_field
from demitasse.testing.reference.onnx import TYPES, onnx_library

if TYPE_CHECKING:
    from demitasse.interop.export.check import Arrays

MOST_BYTES = 2**31 - 2**24
"""Size of constants, in bytes, above which protobuf needs a second file for them."""

SMALL = 1024
"""Size in bytes below which a constant stays in the ONNX file."""

PAGE = 4096
"""Alignment of external constants in bytes, for memory mapping."""


def library(name: str) -> Any:
    """Return the module ``onnx`` or ``onnxruntime``."""
    return onnx_library(name, "exporting to ONNX")


@dataclass
class Model:
    """A ModelProto without initializers, and the constants in their place by name."""

    message: Any
    constants: dict[str, np.ndarray]


def check_model(model: Model) -> None:
    """Check a model by ONNX's checker, with strict shape inference.

    Large constants are replaced by inputs of their types and shapes.
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
        message = f"ONNX's checker refuses the exported model: {error}"
        raise NetError(message, code=ErrorCode.FAILED) from error


def write_model(model: Model, path: Path) -> list[Path]:
    """Write a model, each file atomically.

    Returns:
        The ONNX file, and ``NAME.data`` with the constants if these are too large for one file.
    """
    written = [path]
    places: dict[str, tuple[str, int, int]] = {}  # name -> (file, offset, length in bytes)
    if sum(array.nbytes for array in model.constants.values()) >= MOST_BYTES:
        external = path.with_name(f"{path.name}.data")
        with atomic_write(external) as file:
            for name, array in model.constants.items():
                if array.nbytes >= SMALL:
                    file.write(bytes(-file.tell() % PAGE))
                    places[name] = (external.name, file.tell(), array.nbytes)
                    file.write(_raw(array))
        written.append(external)
    message = type(model.message)()
    message.CopyFrom(model.message)
    message.ClearField("graph")
    tensors = [_tensor(*one, places.get(one[0])) for one in model.constants.items()]
    graph = model.message.graph
    pieces = with_field(graph, type(graph).INITIALIZER_FIELD_NUMBER, tensors)
    with atomic_write(path) as file:
        for piece in with_field(message, type(message).GRAPH_FIELD_NUMBER, [pieces]):
            file.write(piece)
    return written


def _tensor(name: str, array: np.ndarray, place: tuple[str, int, int] | None) -> Pieces:
    """Return the pieces of a constant's message, stored at a place of an external file if any."""
    onnx = library("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    if place is None:
        return with_field(tensor, onnx.TensorProto.RAW_DATA_FIELD_NUMBER, [[_raw(array)]])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in zip(("location", "offset", "length"), place, strict=True):
        tensor.external_data.add(key=key, value=str(value))
    return [tensor.SerializeToString()]


def _raw(array: np.ndarray) -> memoryview:
    """Return the little-endian bytes of an array."""
    block = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return block.reshape(-1).view(np.uint8).data


def run_file(path: Path, given: Arrays, names: Sequence[str], fused: bool) -> Arrays:
    """Return values computed by ONNX Runtime; see ``Runner``."""
    onnx, runtime = library("onnx"), library("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    model: Any = str(path)
    if not fused:
        levels = runtime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_DISABLE_ALL
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.resolve().parent)
        )
        loaded = onnx.load(str(path), load_external_data=False)
        existing = {one.name for one in (*loaded.graph.output, *loaded.graph.input)}
        loaded.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in existing
        )
        model = loaded.SerializeToString()
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        arrays = {one.name: np.asarray(given[one.name], TYPES[one.type])
                  for one in session.get_inputs()}  # fmt: skip
        existing = {one.name for one in session.get_outputs()}
        wanted = [name for name in dict.fromkeys(names) if name in existing]
        found = session.run(wanted, arrays) if wanted else []
    except Exception as error:  # its exceptions have no common base
        message = f"ONNX Runtime cannot run the file: {error}"
        raise DataError(message, str(path), code=ErrorCode.FAILED) from error
    return dict(zip(wanted, found, strict=True))
