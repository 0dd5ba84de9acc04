"""ONNX models as read: inlined functions, inferred shapes, folded constants."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from demitasse.core.text import escaped
from demitasse.errors import ConfigError, DataError, ErrorCode, NetError
from demitasse.testing.reference.onnx import onnx_library, read_onnx

FLOATS = {"bfloat16", "float16", "float32", "float64"}
NARROW_INTEGERS = {"int16", "int8", "uint16", "uint8"}
INTEGERS = {*NARROW_INTEGERS, "bool", "int32", "int64", "uint32", "uint64"}
NUMBERS = FLOATS | INTEGERS
"""Supported element types; all computation is in float32."""

Shape = tuple[int, ...]


def refuse(message: str, code: ErrorCode = ErrorCode.UNSUPPORTED, **details: object) -> NoReturn:
    """Raise a NetError, by default that of a node that no layer computes."""
    raise NetError(message, code=code, **details)


@dataclass(frozen=True)
class Tensor:
    """A value of a model, without symbolic sizes; ``array`` is None for a computed value."""

    name: str
    shape: Shape
    dtype: str
    array: np.ndarray | None = None

    @property
    def is_integer(self) -> bool:
        """True for integers and booleans."""
        return self.dtype in INTEGERS


@dataclass(frozen=True)
class Node:
    """A node of a model, with its name or another, and its values; None for an omitted value."""

    op: str
    name: str
    opset: int
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and operator of the node, for messages."""
        return _label(self.name, self.op)

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        found = self.outputs[0] if self.outputs else None
        if found is None:
            refuse("the first output has no name", ErrorCode.MISSING, output=0)
        return found

    def optional_input(self, position: int) -> Tensor | None:
        """Return an input, or None if it is omitted."""
        return self.inputs[position] if position < len(self.inputs) else None

    def input(self, position: int) -> Tensor:
        """Return an input."""
        found = self.optional_input(position)
        if found is None:
            refuse(f"input {position} is missing", ErrorCode.MISSING, input=position)
        return found

    def array(self, position: int, what: str) -> np.ndarray:
        """Return the array of a constant input."""
        found = self.input(position)
        if found.array is None:
            refuse(f"its {what} {found.name!r} is computed, expected a constant", input=found.name)
        return found.array

    def attribute_or_input(self, attribute: str, position: int) -> np.ndarray | None:
        """Return an attribute of older operators that is an input of newer ones."""
        if attribute in self.attributes:
            return np.asarray(self.attributes[attribute])
        return None if self.optional_input(position) is None else self.array(position, attribute)

    def axis(self, default: int) -> int:
        """Return the attribute ``axis``, counted from the first."""
        return int(self.attributes.get("axis", default)) % max(1, len(self.x.shape))

    def refuse_outputs(self, *positions: int) -> None:
        """Refuse outputs that no layer computes."""
        for position in positions:
            if position < len(self.outputs) and self.outputs[position] is not None:
                refuse(f"no layer computes output {position}", output=position)


# -- reading -----------------------------------------------------------------------------------

KNOWN_DATA = 4096
"""Largest number of elements of a constant that shape inference reads."""

SAME_SHAPE = {"GroupNormalization", "Mish", "Swish"}
"""Operators without shape inference in onnx: the output has the input's shape."""

INFERRED_FROM = {"GreaterOrEqual": 16, "LessOrEqual": 16}
"""Operator -> first opset with shape inference in onnx."""

FOLDABLE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos",
    "Div", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow",
    "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape",
    "Round", "ScatterND", "Sign", "Sin", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
"""Operators to fold if all inputs are constant; each is cheap."""

MOST = 2**28
"""Largest number of elements of all folded arrays, in addition to those of the file."""


class Model:
    """A model with folded constants and known shapes.

    Attributes:
        inputs: Inputs that are not constants.
        nodes: Nodes that the outputs need, in order, without folded ones.
        faults: Node that cannot be read -> the reason.
        free: Inputs whose first size is free.
        larger: The shapes of all values for one item more in these inputs; empty if there are none,
            or if the nodes do not allow more.

    Args:
        constants: The initializers by name.
    """

    def __init__(
        self, message: Any, constants: Mapping[str, Tensor], shapes: Mapping[str, Shape],
        batch: int | None, onnx: Any,
    ) -> None:  # fmt: skip
        self._onnx, graph = onnx, message.graph
        self.free: list[str] = []
        self.larger: dict[str, Shape] = {}
        self.name = graph.name
        self.opset = next((one.version for one in message.opset_import if not one.domain), 1)
        self._ir = message.ir_version
        self._imports = list(message.opset_import)
        self.values = dict(constants)
        self.inputs = [
            self._input(one, shapes, batch) for one in graph.input if one.name not in self.values
        ]
        names = [one.name for one in self.inputs]
        if unknown := next((name for name in shapes if name not in names), None):
            fault = f"got a shape of {unknown!r}, expected one of the inputs {', '.join(names)}"
            raise ConfigError(
                fault, code=ErrorCode.UNKNOWN, field="shapes", got=unknown, expected=names
            )
        self.values |= {one.name: one for one in self.inputs}
        self.outputs = [one.name for one in graph.output]
        self.faults: dict[str, str] = {}
        self._unknown: set[str] = set()
        given = sum(one.array.size for one in self.values.values() if one.array is not None)
        self._foldable = MOST + given
        found = [self._node(number, one) for number, one in enumerate(graph.node)]
        self.nodes = self._needed([one for one in found if one is not None])

    def _input(self, info: Any, shapes: Mapping[str, Shape], batch: int | None) -> Tensor:
        """Return an input with a known shape."""
        tensor = info.type.tensor_type
        dtype = self._dtype(tensor.elem_type)
        sizes = [
            one.dim_value if one.HasField("dim_value") and one.dim_value > 0 else None
            for one in tensor.shape.dim
        ]
        if sizes[:1] == [None]:
            self.free.append(info.name)
        given = shapes.get(info.name)
        if given is not None:
            if tensor.HasField("shape") and len(given) != len(sizes):
                message = (
                    f"got shape {tuple(given)} of input {info.name!r}, expected {len(sizes)} axes"
                )
                raise ConfigError(
                    message, code=ErrorCode.SHAPE_MISMATCH, field="shapes", input=info.name
                )
            return Tensor(info.name, tuple(given), dtype)
        if sizes and (sizes[0] is None or batch is not None):
            sizes[0] = int(batch or 1)
        if not tensor.HasField("shape") or None in sizes:
            message = (
                f"input {info.name!r} has symbolic sizes; give its shape, e.g. "
                f"--shape {info.name}=1,3,224,224"
            )
            raise ConfigError(message, code=ErrorCode.MISSING, field="shapes", input=info.name)
        return Tensor(info.name, tuple(size for size in sizes if size is not None), dtype)

    def _dtype(self, kind: int) -> str:
        try:
            return str(np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(kind)))
        except (KeyError, TypeError):
            return "unknown"

    def _node(self, number: int, message: Any) -> Node | None:
        """Return a node; None if it is folded or cannot be read."""
        name = message.name or next(filter(None, message.output), f"node {number}")
        label = _label(name, message.op_type)
        missing = [one for one in message.input if one and one not in self.values]
        if any(one in self._unknown for one in missing):
            self._unknown.update(message.output)
            return None
        try:
            if missing:
                fault = f"no earlier node computes its input {missing[0]!r}"
                refuse(fault, ErrorCode.MISSING, input=missing[0])
            return self._read(name, message)
        except NetError as error:
            self.faults[label] = error.message
        except Exception as error:  # of onnx or numpy, for inconsistent nodes
            self.faults[label] = f"shape inference failed: {escaped(str(error), one_line=True)}"
        self._unknown.update(message.output)
        return None

    def _read(self, name: str, message: Any) -> Node | None:
        onnx = self._onnx
        if message.domain not in {"", "ai.onnx"}:
            fault = f"its domain is {message.domain!r}, expected ONNX's own"
            refuse(fault, domain=message.domain)
        if any(one.HasField("g") or one.graphs for one in message.attribute):
            refuse("it contains a graph")
        version = max(self.opset, INFERRED_FROM.get(message.op_type, 1))
        schema = onnx.defs.get_schema(message.op_type, version, "")
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
        if message.op_type in {"Resize", "Upsample"}:
            _round_sizes(message, inputs, types)
        outputs = [self._output(one, types) if one else None for one in message.output]
        arrays = self._fold(message, inputs, [one for one in outputs if one is not None])
        if arrays is not None:
            named = [one for one in message.output if one]
            self.values |= {
                one: _constant_tensor(one, array) for one, array in zip(named, arrays, strict=True)
            }
            return None
        self.values |= {one.name: one for one in outputs if one is not None}
        given = [inputs.get(one) for one in message.input]
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in message.attribute}
        if attributes.get("broadcast") and "axis" in attributes:
            first, second = (inputs[one] for one in message.input[:2])
            given[1] = _aligned(second, len(first.shape) - attributes["axis"])
        return Node(message.op_type, name, self.opset, given, outputs, attributes)

    def _fold(
        self, node: Any, inputs: Mapping[str, Tensor], outputs: Sequence[Tensor]
    ) -> list[np.ndarray] | None:
        """Return the outputs of a NodeProto; None if they are not constant, or too large."""
        if node.op_type in {"Shape", "Size"}:
            shape = inputs[node.input[0]].shape
            ends = {one.name: one.i for one in node.attribute}
            part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
            return [np.array(math.prod(shape) if node.op_type == "Size" else part, np.int64)]
        arrays = {name: one.array for name, one in inputs.items()}
        size = sum(math.prod(one.shape) for one in outputs)
        if (
            node.op_type not in FOLDABLE
            or any(one.dtype not in NUMBERS for one in outputs)  # strings could exhaust memory
            or any(array is None for array in arrays.values())
            or size > self._foldable
        ):
            return None
        self._foldable -= size
        helper = self._onnx.helper
        given, made = (
            [helper.make_empty_tensor_value_info(name) for name in names if name]
            for names in (inputs, node.output)
        )
        graph = helper.make_graph([node], "constants", given, made)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, arrays)]

    def _output(self, name: str, types: Mapping[str, Any]) -> Tensor:
        """Return an output with its shape."""
        found = types.get(name)
        tensor = found.tensor_type if found is not None else None
        if tensor is None or not tensor.HasField("shape"):
            refuse(f"the shape of {name!r} is unknown", value=name)
        if not all(one.HasField("dim_value") for one in tensor.shape.dim):
            refuse(f"the shape of {name!r} depends on computed values", value=name)
        shape = tuple(one.dim_value for one in tensor.shape.dim)
        return Tensor(name, shape, self._dtype(tensor.elem_type))

    def _needed(self, nodes: list[Node]) -> list[Node]:
        """Return the nodes that the outputs need, with None for each output that nothing reads."""
        wanted, found = set(self.outputs), []
        for node in reversed(nodes):
            used = [one and (one if one.name in wanted else None) for one in node.outputs]
            if any(used):
                found.append(replace(node, outputs=used))
                wanted.update(one.name for one in node.inputs if one is not None)
        return found[::-1]


def _label(name: str, op: str) -> str:
    """Return name and operator of a node, for messages."""
    return f"node {name!r} ({escaped(op, one_line=True)})"


def read_model(path: Path, shapes: Mapping[str, Shape], batch: int | None) -> Model:
    """Read an ONNX file."""
    onnx = onnx_library("onnx", "importing from ONNX")
    message = read_onnx(path, onnx)
    if not message.graph.node:
        fault = "the file has no nodes; it is empty or not an ONNX model"
        raise DataError(fault, str(path), code=ErrorCode.UNREADABLE)
    try:
        _check_names(message.graph, path)
        message = inline_functions(message)
        constants = {
            one.name: _constant_tensor(one.name, onnx.numpy_helper.to_array(one))
            for one in message.graph.initializer
        }
        model = Model(message, constants, shapes, batch, onnx)
        if model.free:
            more = {one.name: one.shape for one in model.inputs}
            more |= {name: (more[name][0] + 1, *more[name][1:]) for name in model.free}
            larger = Model(message, constants, more, None, onnx)
            if not larger.faults:
                model.larger = {name: value.shape for name, value in larger.values.items()}
        return model
    except NetError as error:
        raise error.at(str(path)) from None
    except (ConfigError, DataError):
        raise
    except Exception as error:  # of onnx or numpy, for damaged constants
        fault = f"cannot be read as ONNX: {error}"
        raise DataError(fault, str(path), code=ErrorCode.UNREADABLE) from error


def _round_sizes(message: Any, inputs: Mapping[str, Tensor], types: Mapping[str, Any]) -> None:
    """Round sizes by scales in float32, as ONNX Runtime does; onnx rounds them in float64."""
    at = {one.name: list(one.floats or one.ints) for one in message.attribute}
    x, *others = [inputs[one] for one in message.input if one]
    found = others[-1].array if others and others[-1].dtype == "float32" else None
    scales: Any = at.get("scales", () if found is None else found)
    for axis, scale in zip(at.get("axes", range(len(x.shape))), scales, strict=False):
        size = types[message.output[0]].tensor_type.shape.dim[axis]
        size.dim_value = int(np.float32(x.shape[axis]) * np.float32(scale))


def _aligned(operand: Tensor, axes: int) -> Tensor:
    """Return an operand of opset 6 or before, aligned with the first of the last ``axes`` axes."""
    if operand.array is None:
        refuse("its computed operand is aligned by 'axis'; convert the model to opset 7 or later")
    array = operand.array.reshape(*operand.shape, *(1,) * (axes - len(operand.shape)))
    return replace(operand, shape=array.shape, array=array)


def _constant_tensor(name: str, array: np.ndarray) -> Tensor:
    return Tensor(name, array.shape, str(array.dtype), array)


def _check_names(graph: Any, path: Path) -> None:
    """Check that all names are valid UTF-8, and that no value is computed twice."""
    names = [graph.name]
    names += [one.name for one in (*graph.input, *graph.output, *graph.initializer)]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [one.name for one in node.attribute]
    damaged = next((name for name in names if not isinstance(name, str)), None)
    if damaged is not None:
        message = f"a name is not valid UTF-8: {damaged!r}"
        raise DataError(message, str(path), code=ErrorCode.CORRUPT, got=damaged)
    known = {one.name for one in (*graph.input, *graph.initializer)}
    for name in (name for node in graph.node for name in node.output if name):
        if name in known:
            message = f"got two values named {name!r}, expected one"
            raise DataError(message, str(path), code=ErrorCode.DUPLICATE, got=name)
        known.add(name)


# -- inlining of functions ---------------------------------------------------------------------

MOST_NODES = 100_000
"""Largest number of nodes after inlining."""

DEEPEST = 100
"""Largest depth of calls."""


def inline_functions(model: Any) -> Any:
    """Return a model with its functions inlined."""
    if not model.functions:
        return model
    total = _inlined_size(model)
    if total > MOST_NODES:
        count = total if total < 10**12 else "more than 10^12"
        fault = f"got {count} nodes after inlining, expected at most {MOST_NODES}"
        refuse(fault, ErrorCode.LIMIT, got=min(total, 10**12), expected=MOST_NODES)
    from onnx.inliner import inline_local_functions

    return inline_local_functions(model)


def _inlined_size(model: Any) -> int:
    """Return the number of nodes after inlining, computed without inlining."""
    functions = {(one.domain, one.name): one for one in model.functions}
    known: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[Any], deepest: int) -> int:
        return sum(function_size((one.domain, one.op_type), deepest) for one in _all(nodes))

    def function_size(name: tuple[str, str], deepest: int) -> int:
        if name not in functions:
            return 1
        if name not in known:
            if not deepest:
                fault = f"function {name[1]!r} of {name[0]!r} is recursive, or calls are more than"
                refuse(
                    f"{fault} {DEEPEST} deep", ErrorCode.LIMIT, function=name[1], expected=DEEPEST
                )
            known[name] = size(functions[name].node, deepest - 1)
        return known[name]

    return size(model.graph.node, DEEPEST)


def _all(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield nodes, and the nodes of graphs inside of them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all(graph.node)
