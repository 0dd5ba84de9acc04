"""Models in ONNX files, run by ONNX Runtime with every intermediate array made an output.

A file cannot make us run code: ONNX has no operation that does, and libraries of custom operations
are never loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.errors import DataError, DemitasseError, ErrorCode
from demitasse.testing.others.kinds import kind_of, role_of
from demitasse.testing.others.model import Parameter, Value
from demitasse.testing.others.onnx_file import onnx_library, read_onnx

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
            message = f"ONNX Runtime cannot load it: {error}"
            raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error

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
            raise DemitasseError(message, code=ErrorCode.FAILED) from error
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
