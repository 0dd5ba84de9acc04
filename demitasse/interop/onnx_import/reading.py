"""The way from a file to nodes whose shapes are known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.interop.onnx_import.folding import Folding
from demitasse.interop.onnx_import.functions import without_functions
from demitasse.interop.onnx_import.source import Node, Shape, Tensor
from demitasse.testing.others.onnx_file import onnx_library, read_onnx

__all__ = ["Model", "read_model"]

KNOWN_DATA = 4096
"""Elements up to which a constant takes part in the inference of shapes."""

SAME_SHAPE = {"GroupNormalization", "Mish", "Swish"}
"""Operators whose inference says nothing: their output is like their input."""


class Model:
    """A model whose constants are computed and whose shapes are known.

    Attributes:
        name: What it is called.
        inputs: Those that are no constants.
        outputs: Names of its outputs, in order.
        nodes: What is left to be computed for them, in order.
        values: Name -> value.
        faults: Nodes that cannot be read, each with the reason.
    """

    def __init__(
        self, message: Any, shapes: Mapping[str, Shape], batch: int | None, onnx: Any
    ) -> None:
        self._onnx, graph = onnx, message.graph
        self.name = graph.name
        self.opset = next((one.version for one in message.opset_import if not one.domain), 1)
        self._ir = message.ir_version
        self._imports = list(message.opset_import)
        self.values = {
            one.name: _constant(one.name, onnx.numpy_helper.to_array(one))
            for one in graph.initializer
        }
        self.inputs = [
            self._input(one, shapes, batch) for one in graph.input if one.name not in self.values
        ]
        _need_all_named(shapes, [one.name for one in self.inputs])
        self.values |= {one.name: one for one in self.inputs}
        self.outputs = [one.name for one in graph.output]
        self.faults: dict[str, str] = {}
        self._unknown: set[str] = set()
        given = sum(one.array.size for one in self.values.values() if one.array is not None)
        self._folding = Folding(onnx, self.opset, given)
        found = [self._node(number, one) for number, one in enumerate(graph.node)]
        self.nodes = self._needed([one for one in found if one is not None])

    def _input(self, info: Any, shapes: Mapping[str, Shape], batch: int | None) -> Tensor:
        """Return an input with all its sizes.

        Raises:
            ConfigError: A size is free, and nobody says what it is to be.
        """
        tensor = info.type.tensor_type
        dtype = self._dtype(tensor.elem_type)
        given = shapes.get(info.name)
        if given is not None:
            return Tensor(info.name, tuple(given), dtype)
        sizes = [
            one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None
            for one in tensor.shape.dim
        ]
        if sizes and (sizes[0] is None or batch is not None):
            sizes[0] = batch or 1
        if not tensor.HasField("shape") or None in sizes:
            message = (
                f"input {info.name!r} has sizes that are free; "
                f"say which it is to have, such as --shape {info.name}=1,3,224,224"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="shapes", input=info.name)
        return Tensor(info.name, tuple(size for size in sizes if size is not None), dtype)

    def _dtype(self, kind: int) -> str:
        try:
            return str(np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(kind)))
        except (KeyError, TypeError):
            return "unknown"

    def _node(self, number: int, message: Any) -> Node | None:
        """Read a node; return it unless it is constant or cannot be read."""
        name = message.name or next(filter(None, message.output), f"node {number}")
        called = f"node {name!r} ({message.op_type})"
        missing = [one for one in message.input if one and one not in self.values]
        if any(one in self._unknown for one in missing):
            self._unknown.update(message.output)
            return None
        try:
            if missing:
                fault = f"it reads {missing[0]!r}, which no node before it computes"
                raise NetError(fault, code=ErrorCode.MISSING, input=missing[0])
            return self._read(name, message)
        except NetError as error:
            self.faults[called] = error.message
        except Exception as error:  # onnx's own and numpy's, of nodes that contradict themselves
            self.faults[called] = f"its shapes cannot be worked out: {error}"
        self._unknown.update(message.output)
        return None

    def _read(self, name: str, message: Any) -> Node | None:
        onnx = self._onnx
        if message.domain not in {"", "ai.onnx"}:
            fault = f"it is of {message.domain!r}, and not of ONNX itself"
            raise NetError(fault, code=ErrorCode.UNSUPPORTED, domain=message.domain)
        if any(one.HasField("g") or one.graphs for one in message.attribute):
            fault = "it holds a graph of its own, which layers cannot"
            raise NetError(fault, code=ErrorCode.UNSUPPORTED)
        schema = onnx.defs.get_schema(message.op_type, self.opset, "")
        inputs = {one: self.values[one] for one in message.input if one}
        infos = {
            one: onnx.helper.make_tensor_type_proto(
                onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape
            )
            for one, value in inputs.items()
        }
        data = {
            one: onnx.numpy_helper.from_array(value.array)
            for one, value in inputs.items()
            if value.array is not None and value.array.size <= KNOWN_DATA
        }
        types = onnx.shape_inference.infer_node_outputs(
            schema, message, infos, data, opset_imports=self._imports, ir_version=self._ir
        )
        if message.op_type in SAME_SHAPE:
            types = dict.fromkeys(message.output, infos[message.input[0]])
        outputs = [self._output(one, types) if one else None for one in message.output]
        arrays = self._folding.of(message, inputs, [one for one in outputs if one is not None])
        if arrays is not None:
            named = [one for one in message.output if one]
            self.values |= {
                one: _constant(one, array) for one, array in zip(named, arrays, strict=True)
            }
            return None
        self.values |= {one.name: one for one in outputs if one is not None}
        return Node(
            message.op_type,
            name,
            self.opset,
            [self.values[one] if one else None for one in message.input],
            outputs,
            {one.name: onnx.helper.get_attribute_value(one) for one in message.attribute},
        )

    def _output(self, name: str, types: Mapping[str, Any]) -> Tensor:
        """Return an output with its sizes.

        Raises:
            NetError: They depend on what is computed.
        """
        found = types.get(name)
        tensor = found.tensor_type if found is not None else None
        if tensor is None or not tensor.HasField("shape"):
            message = f"the shape of {name!r} cannot be worked out"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, value=name)
        if not all(one.HasField("dim_value") for one in tensor.shape.dim):
            message = f"the shape of {name!r} depends on what is computed"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, value=name)
        shape = tuple(one.dim_value for one in tensor.shape.dim)
        return Tensor(name, shape, self._dtype(tensor.elem_type))

    def _needed(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes that lead to outputs."""
        wanted, found = set(self.outputs), []
        for node in reversed(nodes):
            if any(one is not None and one.name in wanted for one in node.outputs):
                found.append(node)
                wanted.update(one.name for one in node.inputs if one is not None)
        return found[::-1]


def read_model(path: Path, shapes: Mapping[str, Shape], batch: int | None) -> Model:
    """Read a file.

    Args:
        path: The file.
        shapes: Shapes of inputs, in place of those that the file has for them.
        batch: The first size of inputs; None for the file's own, and 1 where that is free.

    Raises:
        ConfigError: Sizes of an input are free, and nobody says what they are to be.
        DataError: The file cannot be read, or its constants are damaged.
        DemitasseError: onnx is not installed.
    """
    onnx = onnx_library("onnx", "importing from ONNX")
    message = read_onnx(path, onnx)
    if not message.graph.node:
        fault = "it has no nodes: it is no model of ONNX, or an empty one"
        raise DataError(fault, str(path), code=ErrorCode.UNREADABLE)
    try:
        _need_text(message.graph, path)
        return Model(without_functions(message), shapes, batch, onnx)
    except NetError as error:
        raise error.at(str(path)) from None
    except (ConfigError, DataError):
        raise
    except Exception as error:  # onnx's own and numpy's, of damaged constants
        fault = f"it cannot be read as ONNX: {error}"
        raise DataError(fault, str(path), code=ErrorCode.UNREADABLE) from error


def _constant(name: str, array: np.ndarray) -> Tensor:
    return Tensor(name, array.shape, str(array.dtype), array)


def _need_text(graph: Any, path: Path) -> None:
    """Refuse names that are no text, which nets cannot have.

    Raises:
        DataError: One is not.
    """
    names = [graph.name]
    names += [one.name for one in (*graph.input, *graph.output, *graph.initializer)]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [one.name for one in node.attribute]
    damaged = next((name for name in names if not isinstance(name, str)), None)
    if damaged is not None:
        message = f"a name in it is no text in UTF-8: {damaged!r}"
        raise DataError(message, str(path), code=ErrorCode.CORRUPT, got=damaged)


def _need_all_named(shapes: Mapping[str, Shape], names: list[str]) -> None:
    unknown = [name for name in shapes if name not in names]
    if unknown:
        message = f"there is no input {unknown[0]!r} to give a shape; inputs: {', '.join(names)}"
        raise ConfigError(
            message, code=ErrorCode.UNKNOWN, field="shapes", got=unknown[0], expected=names
        )
