"""Models in ONNX files, run by ONNX Runtime with every intermediate array made an output.

A file cannot make us run code: ONNX has no operation that does, and libraries of custom operations
are never loaded. Weights in files of their own are read from the model's folder alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import ModuleType
from typing import Any

import numpy as np

from demitasse.errors import DataError, DemitasseError
from demitasse.paths import regular
from demitasse.testing.others.kinds import kind_of, role_of
from demitasse.testing.others.model import Parameter, Value

__all__ = ["OnnxModel"]

TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
"""What an input may be of."""


class OnnxModel:
    """A model that ONNX Runtime runs, as its file has it: nothing fused, nothing folded.

    Raises:
        DataError: The file cannot be read, or names files outside its folder.
        DemitasseError: onnx or ONNX Runtime is not installed.
    """

    ordered = True

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._onnx, self._runtime = _library("onnx"), _library("onnxruntime")
        self._model = self._read(path)
        graph = self._model.graph
        self.outputs = tuple(one.name for one in graph.output)
        self._stored = {
            one.name: self._onnx.numpy_helper.to_array(one) for one in graph.initializer
        }
        for name in dict.fromkeys(name for node in graph.node for name in node.output if name):
            if name not in self.outputs:  # without a type: ONNX Runtime infers it
                graph.output.append(self._onnx.ValueInfoProto(name=name))
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        try:
            self._session = self._runtime.InferenceSession(
                self._model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library's exceptions have no common base
            raise _refused(path, f"ONNX Runtime cannot load it: {error}") from error

    def _read(self, path: Path) -> Any:
        """Return the model with all its weights."""
        try:
            model = self._onnx.load(str(regular(path)), load_external_data=False)
            folder = path.resolve().parent
            for tensor in self._tensors(model):
                for entry in tensor.external_data:
                    if entry.key == "location":
                        _need_inside(path, folder, entry.value)
            self._onnx.external_data_helper.load_external_data_for_model(model, str(folder))
        except DataError:
            raise
        except Exception as error:  # protobuf's, onnx's and the system's
            raise _refused(path, f"it cannot be read as ONNX: {error}") from error
        return model

    def _tensors(self, message: Any) -> Iterator[Any]:
        """Yield every tensor in a message, however deep."""
        if isinstance(message, self._onnx.TensorProto):
            yield message
            return
        for field, value in message.ListFields():
            if field.message_type is not None:
                several = hasattr(value, "append") or hasattr(value, "add")
                for one in value if several else [value]:
                    yield from self._tensors(one)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shapes of the inputs that are no weights."""
        return {
            one.name: tuple(size if isinstance(size, int) else None for size in one.shape)
            for one in self._session.get_inputs()
            if one.name not in self._stored
        }

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return every array that the nodes of the graph have computed.

        Raises:
            DemitasseError: ONNX Runtime cannot run it.
        """
        types = {one.name: TYPES.get(one.type, np.float32) for one in self._session.get_inputs()}
        given = {name: np.asarray(array, types[name]) for name, array in arrays.items()}
        names = [one.name for one in self._session.get_outputs()]
        try:
            computed = dict(zip(names, self._session.run(names, given), strict=True))
        except Exception as error:  # the library's exceptions have no common base
            message = f"ONNX Runtime cannot run {self.name}: {error}"
            raise DemitasseError(message) from error
        return [
            Value(_names(name, node), computed[name], node.op_type, kind_of(node.op_type))
            for node in self._model.graph.node
            for name in node.output
            if isinstance(computed.get(name), np.ndarray)  # and no sequence or map
        ]

    def parameters(self) -> list[Parameter]:
        """Return the stored arrays of floating point numbers, in the order the nodes use them."""
        found: dict[str, Parameter] = {}
        for node in self._model.graph.node:
            data = next((i for i, name in enumerate(node.input) if name not in self._stored), 0)
            for position, name in enumerate(node.input):
                array = self._stored.get(name)
                if array is None or name in found or array.dtype.kind != "f":
                    continue
                role = role_of(node.op_type, position - data - 1)
                if role == "weight" and array.ndim == 2 and not _rows_are_outputs(node):
                    array = array.T
                found[name] = Parameter(name, array, role)
        return list(found.values())


def _rows_are_outputs(node: Any) -> bool:
    """Whether a product's weight is (M, K), as Caffe has it, and not (K, M)."""
    return node.op_type != "MatMul" and any(a.name == "transB" and a.i for a in node.attribute)


def _names(name: str, node: Any) -> tuple[str, ...]:
    """Return the names of a node's output: its own, the node's, and that of PyTorch's module."""
    module = node.name.strip("/").rpartition("/")[0]
    return tuple(dict.fromkeys(one for one in (name, node.name, module) if one))


def _need_inside(path: Path, folder: Path, location: str) -> None:
    """Refuse a file of weights that is not in the model's folder.

    Raises:
        DataError: It is outside, or leads outside by a link.
    """
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor
    target = folder / location
    if absolute or ".." in parts or not target.resolve().is_relative_to(folder):
        raise _refused(path, f"it wants weights of {location!r}, which is outside its folder")
    regular(target)


def _refused(path: Path, why: str) -> DataError:
    return DataError(why, str(path))


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        message = f"running .onnx files needs {name} ({error}); run: pip install demitasse[onnx]"
        raise DemitasseError(message) from None
