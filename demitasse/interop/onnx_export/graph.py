"""Builder of ONNX graphs: nodes, constants and unique names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import Size, SizeSources, SymbolicSize
from demitasse.interop.names import unique_name
from demitasse.interop.onnx_export.files import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demitasse.blob import Blob

END = 2**31 - 1
"""End of a slice up to the end of an axis."""

AXES_AS_INPUT = 18
"""First opset whose reductions take axes as an input, not as an attribute."""


@dataclass(frozen=True)
class Array:
    """A value of a graph under construction; arithmetic adds nodes that broadcast."""

    graph: GraphBuilder
    name: str

    def __add__(self, other: Operand) -> Array:
        return self.graph.add("Add", self, other)

    def __sub__(self, other: Operand) -> Array:
        return self.graph.add("Sub", self, other)

    def __rsub__(self, other: float) -> Array:
        return self.graph.add("Sub", other, self)

    def __mul__(self, other: Operand) -> Array:
        return self.graph.add("Mul", self, other)

    def __truediv__(self, other: Operand) -> Array:
        return self.graph.add("Div", self, other)


Operand = Array | Value | float | Sequence[int] | None
"""Input of a node: a value, a constant scalar, a constant list of int64, or None to omit it."""

OneStep = Callable[[Sequence[Array], Array, Array], list[Array]]
"""Function that adds one step of a Scan: (states, first input, second input) -> new states."""


class GraphBuilder:
    """Nodes and constants of an ONNX graph.

    Converters add nodes with new values; ``assign`` names a result after a top.
    """

    def __init__(self, opset: int, names: Iterable[str] = ()) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.size_sources = SizeSources()
        self._onnx = library("onnx")
        self._values, self._nodes = set(names), set[str]()
        self._layer = ""
        self._writers: dict[str, Any] = {}  # value of the present layer -> its node
        self._start = 0  # index of the layer's first node
        self._stored: dict[tuple[Any, ...], Array] = {}  # shared parameters, equal constants, sizes

    # -- names ---------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Prefix the names of nodes and values in a block with a layer's name."""
        self._layer, self._start = name, len(self.nodes)
        self._writers.clear()
        try:
            yield
        finally:
            self._layer = ""

    def _new(self, what: str) -> Array:
        """Return a new value of the layer."""
        name = f"{self._layer}/{what}" if self._layer else what
        return Array(self, unique_name(name, self._values))

    # -- nodes ---------------------------------------------------------------------------------

    def add(self, operator: str, *inputs: Operand, **attributes: Any) -> Array:
        """Add a node with one output; attributes that are None are omitted."""
        return self.add_several(operator, *inputs, names=[operator], **attributes)[0]

    def add_several(
        self, operator: str, *inputs: Operand, names: Sequence[str], **attributes: Any
    ) -> list[Array]:
        """Add a node with several outputs, with names for new values; see ``add``."""
        outputs = [self._new(name) for name in names]
        node = self._onnx.helper.make_node(
            operator,
            [self._input(one) for one in inputs],
            [one.name for one in outputs],
            name=unique_name(outputs[0].name, self._nodes),
            **{key: one for key, one in attributes.items() if one is not None},
        )
        self.nodes.append(node)
        self._writers |= {one.name: node for one in outputs}
        return outputs

    def assign(self, result: Array | Value, top: Value) -> None:
        """Name a value of the present layer after a top, and its node after the layer.

        Another value, such as a constant or a bottom, is copied.
        """
        if result.name not in self._writers:
            result = self.add("Identity", result)
        node = self._writers.pop(result.name)
        self._values.discard(result.name)
        for one in self.nodes[self._start :]:
            one.input[:] = [top.name if name == result.name else name for name in one.input]
        node.output[:] = [top.name if name == result.name else name for name in node.output]
        self._nodes.discard(node.name)
        node.name = unique_name(self._layer or top.name, self._nodes)

    def array(self, value: Value) -> Array:
        """Return a value for arithmetic."""
        return Array(self, value.name)

    def _input(self, given: Operand) -> str:
        match given:
            case None:
                return ""
            case Array() | Value():
                return given.name
            case int() | float():
                return self.scalar(given).name
        return self.ints(given).name

    def reduce(
        self, operator: str, x: Array | Value, axes: Sequence[int], *, keep: bool = True
    ) -> Array:
        """Add a reduction over axes."""
        if self.opset >= AXES_AS_INPUT or operator == "ReduceSum":
            return self.add(operator, x, axes, keepdims=int(keep))
        return self.add(operator, x, axes=list(axes), keepdims=int(keep))

    def to_float(self, x: Array) -> Array:
        """Add a conversion to the model's float type."""
        return self.add("Cast", x, to=self._onnx.TensorProto.FLOAT)

    def to_int(self, x: Array | Value) -> Array:
        """Add a conversion to int64."""
        return self.add("Cast", x, to=self._onnx.TensorProto.INT64)

    def to_double(self, x: Array | Value) -> Array:
        """Add a conversion to float64."""
        return self.add("Cast", x, to=self._onnx.TensorProto.DOUBLE)

    def slice(self, x: Array | Value, axis: int, start: int, end: int, step: int = 1) -> Array:
        """Add a slice along one axis."""
        return self.add("Slice", x, [start], [end], [axis], [step])

    def non_max_suppression(
        self, boxes: Array, scores: Array, *, keep: int, overlap: float, above: float
    ) -> Array:
        """Add a non-maximum suppression of at most ``keep`` boxes for each item.

        Shapes: boxes (items, K, 4), scores (items, 1, K) -> rows of item, 0 and box index, by
        descending score, (S, 3).
        """
        limits = (self.constant(np.array([one], np.float32)) for one in (overlap, above))
        return self.add("NonMaxSuppression", boxes, scores, [keep], *limits)

    def scan(self, one: OneStep, begin: Sequence[Array], over: Sequence[Array]) -> list[Array]:
        """Add a Scan over the first axis of two inputs, from initial states.

        Returns the first state of all steps, then each final state.
        """
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        outside, self.nodes = self.nodes, []
        states = [self._new(f"state_{i}") for i in range(len(begin))]
        rows = [self._new(f"row_{i}") for i in range(len(over))]
        try:
            found = one(states, rows[0], rows[1])
            row = self.add("Identity", found[0])
            infos = [
                [helper.make_tensor_value_info(value.name, kind, None) for value in values]
                for values in ([*states, *rows], [*found, row])
            ]
            body = helper.make_graph(self.nodes, self._new("step").name, *infos)
        finally:
            self.nodes = outside
        ends = [f"end_{i}" for i in range(len(begin))]
        *last, every = self.add_several(
            "Scan", *begin, *over, names=[*ends, "every_state"], body=body,
            num_scan_inputs=len(over),
        )  # fmt: skip
        return [every, *last]

    # -- constants -----------------------------------------------------------------------------

    def constant(self, array: np.ndarray | float, what: str = "constant") -> Array:
        """Store an array, float64 as float32."""
        values = np.asarray(array)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        stored = self._new(what)
        self.constants[stored.name] = values
        return stored

    def scalar(self, value: float) -> Array:
        """Store a float32 scalar, equal ones once."""
        return self._once(np.asarray(value, np.float32), f"number_{value:g}")

    def int_scalar(self, value: int) -> Array:
        """Store an int64 scalar, equal ones once."""
        return self._once(np.asarray(value, np.int64), f"int_{value}")

    def ints(self, values: Sequence[int]) -> Array:
        """Store a list of int64, equal ones once."""
        listed = [int(one) for one in values]
        return self._once(np.asarray(listed, np.int64), "ints_" + "_".join(map(str, listed)))

    def param(
        self, blob: Blob, what: str, shape: Sequence[int] | None = None, *, transpose: bool = False
    ) -> Array:
        """Store a layer's parameter in a shape, shared parameters once."""
        array = blob.cpu_data()
        array = array if shape is None else array.reshape(tuple(shape))
        array = array.T if transpose else array
        key = (id(blob.data_memory), array.shape, transpose)
        if key not in self._stored:
            self._stored[key] = self.constant(array, what)
        return self._stored[key]

    def tensor(self, value: float) -> Any:
        """Return a float as a tensor attribute."""
        return self._onnx.numpy_helper.from_array(np.asarray([value], np.float32), "value")

    def _once(self, array: np.ndarray, name: str) -> Array:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._stored:
            self._stored[key] = Array(self, unique_name(name, self._values))
            self.constants[self._stored[key].name] = array
        return self._stored[key]

    # -- shapes --------------------------------------------------------------------------------

    def sizes(self, sizes: Sequence[Size]) -> Array:
        """Return an int64 list of these sizes, symbolic ones computed at run time."""
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return self.ints(known)
        parts = [self._size(size) for size in sizes]
        return self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, size: Size) -> Array:
        if isinstance(size, int):
            return self.ints([size])
        source, axis = self.size_sources.find(size)
        key = ("size", source, axis)
        if key not in self._stored:
            shape = self.add("Shape", Array(self, source))
            self._stored[key] = self.add("Gather", shape, [axis])
        found = self._stored[key]
        if size.factor != 1:
            found *= [size.factor]
        return found + [size.extra] if size.extra else found  # noqa: RUF005 - an array, not a list

    def reshape(self, x: Array | Value, sizes: Sequence[Size]) -> Array:
        """Add a Reshape; one size can be -1, and ONNX infers a single symbolic size."""
        free = [size for size in sizes if isinstance(size, SymbolicSize)]
        if len(free) == 1 and 0 not in sizes:
            shape = self.ints([size if isinstance(size, int) else -1 for size in sizes])
        else:
            shape = self.sizes(sizes)
        return self.add("Reshape", x, shape, allowzero=1 if 0 in sizes else None)


Result = Array | Value | Sequence[Array | Value]
"""Value of a layer's first top, or of each top."""

Converter = Callable[[LayerNode, GraphBuilder], Result]
