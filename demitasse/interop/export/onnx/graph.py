"""A graph of ONNX while it is written: nodes, constants, and names that nobody else has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.export.onnx.library import library
from demitasse.interop.export.sizes import Free, Size
from demitasse.interop.export.walk import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demitasse.blob import Blob

__all__ = ["Graph", "OneStep"]

OneStep = Callable[[Sequence[str], str, str], list[str]]
"""Adds one step of a Scan: from states and the step's two inputs to new states."""

AXES_AS_INPUT = 18
"""The opset from which the axes of reductions are an input and no attribute."""


class Graph:
    """Nodes of ONNX, in order.

    Args:
        opset: Version of the operators.
        names: Names of values that nodes must not use for others.

    Attributes:
        nodes: The nodes so far.
        constants: The arrays they use, by name.
        opset: Version of the operators.
    """

    def __init__(self, opset: int, names: Iterable[str] = ()) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._onnx = library("onnx")
        self._values, self._nodes = set(names), set[str]()
        self._layer = ""
        self._stored: dict[tuple[int, str], str] = {}  # parameters that layers share
        self._made: dict[tuple[Any, ...], str] = {}
        self._sources: dict[str, tuple[str, int, Free]] = {}  # symbol -> whose axis tells it

    # -- names ---------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Call what is made inside after a layer."""
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
        self,
        operator: str,
        *inputs: str | Value,
        to: str | Value | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node of one output.

        Args:
            operator: Its type.
            inputs: What it reads; "" for an input that is left out.
            to: The value it makes; None for one of its own. The node that makes a top has the
                layer's name.
            attributes: Its attributes; those that are None are left out. ``to_`` is the attribute
                ``to``.

        Returns:
            The name of its output.
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
        """Add a node of several outputs; see ``add``."""
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
        """Add a reduction over some axes."""
        flags = {"keepdims": int(keep)}
        if self.opset >= AXES_AS_INPUT or operator == "ReduceSum":
            return self.add(operator, x, self.ints(axes), to=to, **flags)
        return self.add(operator, x, to=to, axes=list(axes), **flags)

    def floats(self, x: str, *, to: Value | None = None) -> str:
        """Add a conversion to the net's floats."""
        return self.add("Cast", x, to=to, to_=self._onnx.TensorProto.FLOAT)

    def integers(self, x: str | Value) -> str:
        """Add a conversion to int64."""
        return self.add("Cast", x, to_=self._onnx.TensorProto.INT64)

    def doubles(self, x: str | Value) -> str:
        """Add a conversion to float64."""
        return self.add("Cast", x, to_=self._onnx.TensorProto.DOUBLE)

    def slice(
        self, x: str | Value, axis: int, start: int, end: int, *, step: int = 1,
        to: str | Value | None = None,
    ) -> str:  # fmt: skip
        """Add a slice along one axis."""
        parts = (self.ints([one]) for one in (start, end, axis, step))
        return self.add("Slice", x, *parts, to=to)

    def suppress(self, boxes: str, scores: str, *, keep: int, overlap: float, above: float) -> str:
        """Add a suppression of boxes that overlap a better one.

        Args:
            boxes: Shape: (items, K, 4).
            scores: Shape: (items, 1, K).
            keep: How many of an item stay at most.
            overlap: Which share of intersection over union is too much.
            above: Which score is not enough.

        Returns:
            Rows of item, 0 and box, the best of an item first. Shape: (S, 3).
        """
        limits = (self.constant(np.array([one], np.float32)) for one in (overlap, above))
        return self.add("NonMaxSuppression", boxes, scores, self.ints([keep]), *limits)

    def scan(self, one: OneStep, begin: Sequence[str], over: Sequence[str]) -> list[str]:
        """Add a Scan over the first axis.

        Args:
            one: Adds the nodes of one step.
            begin: The states it begins with.
            over: The two inputs whose rows the steps get.

        Returns:
            The first states of all steps, then each state at the end.
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
        """Store an array, floats as float32; return its name."""
        values = np.asarray(array)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        return self._store(values, self.name(what))

    def number(self, value: float) -> str:
        """Store a number (); the same one is stored once."""
        return self._once(np.asarray(value, np.float32), f"number_{value:g}")

    def whole(self, value: int) -> str:
        """Store an int64 (); the same one is stored once."""
        return self._once(np.asarray(value, np.int64), f"int_{value}")

    def ints(self, values: Sequence[int]) -> str:
        """Store a list of int64; the same one is stored once."""
        listed = [int(one) for one in values]
        return self._once(np.asarray(listed, np.int64), "ints_" + "_".join(map(str, listed)))

    def param(
        self, blob: Blob, what: str, shape: Sequence[int] | None = None, *, transpose: bool = False
    ) -> str:
        """Store a layer's parameter, in this shape; what layers share is stored once."""
        array = blob.cpu_data()
        array = array if shape is None else array.reshape(tuple(shape))
        array = array.T if transpose else array
        key = (id(blob.data_memory), f"{array.shape} {transpose}")
        if key not in self._stored:
            self._stored[key] = self.constant(array, what)
        return self._stored[key]

    def tensor(self, values: Sequence[float]) -> Any:
        """Return floats as an attribute."""
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

    def know(self, value: Value) -> None:
        """Note what a value's sizes tell of free ones."""
        for axis, size in enumerate(value.sizes):
            if isinstance(size, Free) and size.factor == 1 and size.extra == 0:
                self._sources.setdefault(size.symbol, (value.name, axis, size))

    def sizes(self, sizes: Sequence[Size]) -> str:
        """Return a list of int64 that holds these sizes, free ones as they are when it runs."""
        if all(isinstance(size, int) for size in sizes):
            return self.ints([size for size in sizes if isinstance(size, int)])
        parts = [self._size(size) for size in sizes]
        return self.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, size: Size) -> str:
        if isinstance(size, int):
            return self.ints([size])
        if size.symbol not in self._sources:
            message = f"the size {size} is not known before the layer has run"
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
        """Add a change of shape; one size may be -1, and one free size is left to ONNX."""
        free = [size for size in sizes if isinstance(size, Free)]
        if len(free) == 1 and 0 not in sizes:
            shape = self.ints([size if isinstance(size, int) else -1 for size in sizes])
        else:
            shape = self.sizes(sizes)
        zeros = 1 if 0 in sizes else None
        return self.add("Reshape", x, shape, to=to, allowzero=zeros)
