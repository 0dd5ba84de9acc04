"""ONNX files: reading, and running by ONNX Runtime with every intermediate array as an output.

Reading a file runs no code: ONNX has no such operation, and libraries of custom operations are not
loaded. External weights are read from the model's folder only.
"""

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from demitasse.core.extras import needs_extra
from demitasse.core.paths import regular_file
from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.io.proto.read_binary import bytes_of_file, check_memory_cost
from demitasse.testing.reference.model import Parameter, Value, kind_of, role_of

TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{
        f"tensor({name})": name
        for name in ("bool", "float16", "int16", "int32", "int64", "int8", "uint16", "uint32",
                     "uint64", "uint8")
    },
}  # fmt: skip
"""Type of an input -> dtype."""


class OnnxModel:
    """An ONNX model as a reference model, run by ONNX Runtime without graph optimizations."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._onnx, self._runtime = (
            onnx_library(name, "running .onnx files") for name in ("onnx", "onnxruntime")
        )
        self._model = read_onnx(path, self._onnx)
        graph = self._model.graph
        self.outputs = tuple(one.name for one in graph.output)
        self._stored = {
            one.name: self._onnx.numpy_helper.to_array(one) for one in graph.initializer
        }
        for name in dict.fromkeys(name for node in graph.node for name in node.output if name):
            if name not in self.outputs:  # ONNX Runtime infers the type
                graph.output.append(self._onnx.ValueInfoProto(name=name))
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        try:
            self._session = self._runtime.InferenceSession(
                self._model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common base
            message = f"ONNX Runtime cannot load the file: {error}"
            raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of all inputs except weights."""
        return {
            one.name: tuple(size if isinstance(size, int) else None for size in one.shape)
            for one in self._session.get_inputs()
            if one.name not in self._stored
        }

    def converted(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays in the types of the inputs, integers without fractions."""
        types = {one.name: TYPES.get(one.type, "float32") for one in self._session.get_inputs()}
        return {name: np.asarray(array, types.get(name)) for name, array in arrays.items()}

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return the outputs of all nodes."""
        given = self.converted(arrays)
        names = [one.name for one in self._session.get_outputs()]
        try:
            computed = dict(zip(names, self._session.run(names, given), strict=True))
        except Exception as error:  # its exceptions have no common base
            message = f"ONNX Runtime cannot run {self.name}: {error}"
            raise DemitasseError(message, code=ErrorCode.FAILED) from error
        return [
            Value(_names(name, node), computed[name], node.op_type, kind_of(node.op_type))
            for node in self._model.graph.node
            for name in node.output
            if isinstance(computed.get(name), np.ndarray)  # not a sequence or map
        ]

    def parameters(self) -> list[Parameter]:
        """Return the floating-point initializers, in the order of use."""
        found: dict[str, Parameter] = {}
        for node in self._model.graph.node:
            data = next((i for i, name in enumerate(node.input) if name not in self._stored), 0)
            for position, name in enumerate(node.input):
                array = self._stored.get(name)
                if array is None or name in found or array.dtype.kind != "f":
                    continue
                role = role_of(node.op_type, position - data - 1)
                transposed = any(a.name == "transB" and a.i for a in node.attribute)
                if role == "weight" and array.ndim == 2:  # (M, K), Caffe's layout, or (K, M)
                    array = array if transposed and node.op_type != "MatMul" else array.T
                found[name] = Parameter(name, array, role)
        return list(found.values())


def _names(name: str, node: Any) -> tuple[str, ...]:
    """Return the names of an output: its own, the node's, and that of PyTorch's module."""
    module = node.name.strip("/").rpartition("/")[0]
    return tuple(dict.fromkeys(one for one in (name, node.name, module) if one))


def onnx_library(name: str, what: str) -> Any:
    """Return the module ``onnx`` or ``onnxruntime``, which ``what`` needs.

    ONNX Runtime would send telemetry, and leave a file ``.ses`` in the folder of temporary files.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needs_extra(DemitasseError, what, name, "onnx", library=name):
        return import_module(name)


def read_onnx(path: Path, onnx: Any) -> Any:
    """Return the ModelProto of a file, with external weights of its folder loaded (DataError)."""
    try:
        content = bytes_of_file(path, DataError)
        check_memory_cost(content, onnx.ModelProto, path, DataError)
        model = onnx.load_model_from_string(content)
        folder = path.resolve().parent
        for tensor in _tensors(model, onnx):
            for entry in tensor.external_data:
                if entry.key == "location":
                    _check_inside(path, folder, entry.value)
        onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    except DataError:
        raise
    except Exception as error:  # of protobuf, onnx or the system
        message = f"cannot be read as ONNX: {error}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
    return model


def _tensors(message: Any, onnx: Any) -> Iterator[Any]:
    """Yield every tensor in a message, recursively."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            several = hasattr(value, "append") or hasattr(value, "add")
            for one in value if several else [value]:
                yield from _tensors(one, onnx)


def _check_inside(path: Path, folder: Path, location: str) -> None:
    """Check that a file of external weights is inside the model's folder."""
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    target = folder / location
    if absolute or ".." in parts or not target.resolve().is_relative_to(folder):
        message = f"got external weights in {location!r}, expected a file in the model's folder"
        raise DataError(message, str(path), code=ErrorCode.UNTRUSTED, got=location)
    regular_file(target)
