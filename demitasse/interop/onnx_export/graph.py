"""Builder of ONNX graphs: nodes, constants and unique names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.layer_graph import LayerNode, Value
from demitasse.interop.export.sizes import Size, SymbolicSize
from demitasse.interop.onnx_export.files import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demitasse.blob import Blob


OneStep = Callable[[Sequence[str], str, str], list[str]]
"""Function that adds one step of a Scan: (states, first input, second input) -> new states."""

AXES_AS_INPUT = 18
"""First opset whose reductions take axes as an input, not as an attribute."""


class GraphBuilder:
    """Nodes and constants of an ONNX graph.

    Args:
        opset: Opset version.
        names: Names of values, reserved for ``to=Value``.

    Attributes:
        nodes: The nodes, in order.
        constants: Name -> array.
        opset: Opset version.
    """

    def __init__(self, opset: int, names: Iterable[str] = ()) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._onnx = library("onnx")
        self._values, self._nodes = set(names), set[str]()
        self._layer = ""
        self._stored: dict[tuple[int, str], str] = {}  # shared parameters
        self._made: dict[tuple[Any, ...], str] = {}
        self._sources: dict[str, tuple[str, int, SymbolicSize]] = {}  # symbol -> value and axis

    # -- names ---------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Prefix the names of nodes and values in a block with a layer's name."""
        self._layer = name
        try:
            yield
        finally:
            self._layer = ""

    def _unique(self, name: str, taken: set[str]) -> str:
        found, number = name, 1
        while found in taken:
            number += 1
            found = f"{name}_{number}"
        taken.add(found)
        return found

    def name(self, what: str) -> str:
        """Return a new name for a value of the layer."""
        return self._unique(f"{self._layer}/{what}" if self._layer else what, self._values)

    # -- nodes ---------------------------------------------------------------------------------

    def add(
        self, operator: str, *inputs: str | Value, to: str | Value | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output.

        Args:
            operator: ONNX operator.
            inputs: Values to read; "" for an omitted input.
            to: Output value; None for a new one. A node that writes a top has the layer's name.
            attributes: Attributes; None omits one. ``to_`` is the attribute ``to``.

        Returns:
            The name of the output.
        """
        [output] = self.add_several(operator, *inputs, to=[to], **attributes)
        return output

    def add_several(
        self,
        operator: str,
        *inputs: str | Value,
        to: Sequence[str | Value | None],
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several outputs; see ``add``."""
        outputs = [
            one.name if isinstance(one, Value) else self.name(operator) if one is None else one
            for one in to
        ]
        makes_top = self._layer and any(isinstance(one, Value) for one in to)
        name = self._layer if makes_top else outputs[0] or operator
        given = [one.name if isinstance(one, Value) else one for one in inputs]
        set_ = {key.rstrip("_"): one for key, one in attributes.items() if one is not None}
        node = self._onnx.helper.make_node(
            operator, given, outputs, name=self._unique(name, self._nodes), **set_
        )
        self.nodes.append(node)
        return outputs

    def reduce(
        self, operator: str, x: str | Value, axes: Sequence[int], *, keep: bool = True,
        to: str | Value | None = None,
    ) -> str:  # fmt: skip
        """Add a reduction over axes."""
        flags = {"keepdims": int(keep)}
        if self.opset >= AXES_AS_INPUT or operator == "ReduceSum":
            return self.add(operator, x, self.ints(axes), to=to, **flags)
        return self.add(operator, x, to=to, axes=list(axes), **flags)

    def to_float(self, x: str, *, to: Value | None = None) -> str:
        """Add a conversion to the model's float type."""
        return self.add("Cast", x, to=to, to_=self._onnx.TensorProto.FLOAT)

    def to_int(self, x: str | Value) -> str:
        """Add a conversion to int64."""
        return self.add("Cast", x, to_=self._onnx.TensorProto.INT64)

    def to_double(self, x: str | Value) -> str:
        """Add a conversion to float64."""
        return self.add("Cast", x, to_=self._onnx.TensorProto.DOUBLE)

    def slice(
        self, x: str | Value, axis: int, start: int, end: int, *, step: int = 1,
        to: str | Value | None = None,
    ) -> str:  # fmt: skip
        """Add a slice along one axis."""
        parts = (self.ints([one]) for one in (start, end, axis, step))
        return self.add("Slice", x, *parts, to=to)

    def non_max_suppression(
        self, boxes: str, scores: str, *, keep: int, overlap: float, above: float
    ) -> str:
        """Add a non-maximum suppression.

        Args:
            boxes: Boxes. Shape: (items, K, 4).
            scores: Scores. Shape: (items, 1, K).
            keep: Largest number of boxes for each item.
            overlap: IoU threshold.
            above: Score threshold.

        Returns:
            Rows of item, 0 and box index, by descending score. Shape: (S, 3).
        """
        limits = (self.constant(np.array([one], np.float32)) for one in (overlap, above))
        return self.add("NonMaxSuppression", boxes, scores, self.ints([keep]), *limits)

    def scan(self, one: OneStep, begin: Sequence[str], over: Sequence[str]) -> list[str]:
        """Add a Scan over the first axis.

        Args:
            one: Function that adds the nodes of one step.
            begin: Initial states.
            over: Two inputs to iterate over.

        Returns:
            The first state of all steps, then each final state.
        """
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        outside, self.nodes = self.nodes, []
        states = [self.name(f"state_{i}") for i in range(len(begin))]
        rows = [self.name(f"row_{i}") for i in range(len(over))]
        try:
            found = one(states, rows[0], rows[1])
            row = self.add("Identity", found[0])
            infos = [
                [helper.make_tensor_value_info(name, kind, None) for name in names]
                for names in ([*states, *rows], [*found, row])
            ]
            body = helper.make_graph(self.nodes, self.name("step"), *infos)
        finally:
            self.nodes = outside
        ends = [self.name(f"end_{i}") for i in range(len(begin))]
        every = self.name("every_state")
        self.add_several(
            "Scan", *begin, *over, to=[*ends, every], body=body, num_scan_inputs=len(over)
        )
        return [every, *ends]

    # -- constants -----------------------------------------------------------------------------

    def constant(self, array: np.ndarray | float, what: str = "constant") -> str:
        """Store an array, float64 as float32; return its name."""
        values = np.asarray(array)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        return self._store(values, self.name(what))

    def scalar(self, value: float) -> str:
        """Store a float32 scalar, equal ones once."""
        return self._once(np.asarray(value, np.float32), f"number_{value:g}")

    def int_scalar(self, value: int) -> str:
        """Store an int64 scalar, equal ones once."""
        return self._once(np.asarray(value, np.int64), f"int_{value}")

    def ints(self, values: Sequence[int]) -> str:
        """Store a list of int64, equal ones once."""
        listed = [int(one) for one in values]
        return self._once(np.asarray(listed, np.int64), "ints_" + "_".join(map(str, listed)))

    def param(
        self, blob: Blob, what: str, shape: Sequence[int] | None = None, *, transpose: bool = False
    ) -> str:
        """Store a layer's parameter in a shape, shared parameters once."""
        array = blob.cpu_data()
        array = array if shape is None else array.reshape(tuple(shape))
        array = array.T if transpose else array
        key = (id(blob.data_memory), f"{array.shape} {transpose}")
        if key not in self._stored:
            self._stored[key] = self.constant(array, what)
        return self._stored[key]

    def tensor(self, values: Sequence[float]) -> Any:
        """Return floats as a tensor attribute."""
        return self._onnx.numpy_helper.from_array(np.asarray(values, np.float32), "value")

    def _once(self, array: np.ndarray, name: str) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = self._store(array, self._unique(name, self._values))
        return self._made[key]

    def _store(self, array: np.ndarray, name: str) -> str:
        self.constants[name] = array
        return name

    # -- shapes --------------------------------------------------------------------------------

    def record_sizes(self, value: Value) -> None:
        """Record which symbolic sizes a value's shape determines."""
        for axis, size in enumerate(value.sizes):
            if isinstance(size, SymbolicSize) and size.factor == 1 and size.extra == 0:
                self._sources.setdefault(size.symbol, (value.name, axis, size))

    def sizes(self, sizes: Sequence[Size]) -> str:
        """Return an int64 list of these sizes, symbolic ones computed at run time."""
        if all(isinstance(size, int) for size in sizes):
            return self.ints([size for size in sizes if isinstance(size, int)])
        parts = [self._size(size) for size in sizes]
        return self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, size: Size) -> str:
        if isinstance(size, int):
            return self.ints([size])
        if size.symbol not in self._sources:
            message = f"the size {size} depends on values that the layer computes"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, got=str(size))
        source, axis, _ = self._sources[size.symbol]
        key = ("size", source, axis)
        if key not in self._made:
            shape = self.add("Shape", source)
            self._made[key] = self.add("Gather", shape, self.ints([axis]))
        found = self._made[key]
        if size.factor != 1:
            found = self.add("Mul", found, self.ints([size.factor]))
        if size.extra:
            found = self.add("Add", found, self.ints([size.extra]))
        return found

    def reshape(
        self, x: str | Value, sizes: Sequence[Size], *, to: str | Value | None = None
    ) -> str:
        """Add a Reshape; one size can be -1, and ONNX infers a single symbolic size."""
        free = [size for size in sizes if isinstance(size, SymbolicSize)]
        if len(free) == 1 and 0 not in sizes:
            shape = self.ints([size if isinstance(size, int) else -1 for size in sizes])
        else:
            shape = self.sizes(sizes)
        zeros = 1 if 0 in sizes else None
        return self.add("Reshape", x, shape, to=to, allowzero=zeros)


Converter = Callable[[LayerNode, GraphBuilder], None]
