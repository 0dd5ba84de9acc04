"""Builder of imported nets: layers, weights and shapes of blobs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode
from demitasse.interop.names import unique_name
from demitasse.interop.onnx_import.model import Node, Shape, Tensor, refuse
from demitasse.io.proto import LayerParameter, NetParameter

EXACT = 2**24
"""Largest integer up to which float32 is exact."""


class NetBuilder:
    """Layers and weights of an imported net; blobs have the names of values.

    Attributes:
        weights: Layer -> parameters, float32.
        blobs: Value of the model -> blob.
        shapes: Blob -> shape.
    """

    def __init__(self, name: str, taken: Sequence[str]) -> None:
        self.message = NetParameter(name=name)
        self.weights: dict[str, list[np.ndarray]] = {}
        self.blobs: dict[str, str] = {}
        self.shapes: dict[str, Shape] = {}
        self.notes: list[str] = []
        self._taken, self._layers = set(taken), set[str]()
        self._node, self._last, self._start = "", "", 0
        self._writers: dict[str, LayerParameter] = {}  # unnamed blob of the node -> its layer

    def input(self, value: Tensor) -> None:
        """Add an Input layer."""
        self.message.layer.add(
            name=unique_name(value.name, self._layers), type="Input", top=[value.name],
            input_param={"shape": [{"dim": value.shape}]},
        )  # fmt: skip
        self.blobs[value.name] = value.name
        self.shapes[value.name] = value.shape
        if value.is_integer:
            self.notes.append(f"input {value.name!r} takes float32 in place of {value.dtype}")

    def begin(self, name: str, last: str) -> None:
        """Name the next layers after a node; the layer of value ``last`` has its name."""
        self._node, self._last, self._start = name, last, len(self.message.layer)
        self._writers.clear()

    # -- layers ----------------------------------------------------------------------------------

    def add(
        self, kind: str, bottoms: Sequence[str], shape: Shape, *,
        weights: Sequence[np.ndarray] = (), **fields: Any,
    ) -> str:  # fmt: skip
        """Add a layer with one top of a shape; return the top's name.

        ``fields`` are those of the layer, such as ``relu_param``.
        """
        return self.add_several(kind, bottoms, [shape], weights=weights, **fields)[0]

    def add_several(
        self, kind: str, bottoms: Sequence[str], shapes: Sequence[Shape], *,
        weights: Sequence[np.ndarray] = (), **fields: Any,
    ) -> list[str]:  # fmt: skip
        """Add a layer with several tops; see ``add``."""
        name = unique_name(f"{self._node}/{kind}", self._layers)
        names = [name] if len(shapes) == 1 else [f"{name}/{i}" for i in range(len(shapes))]
        tops = [unique_name(own, self._taken) for own in names]
        self.message.layer.add(name=name, type=kind, bottom=bottoms, top=tops, **fields)
        if weights:
            self.weights[name] = [np.asarray(one, np.float32, order="C") for one in weights]
        self.shapes |= {top: tuple(shape) for top, shape in zip(tops, shapes, strict=True)}
        self._writers |= dict.fromkeys(tops, self.message.layer[-1])
        return tops

    def assign(self, blob: str, value: Tensor) -> None:
        """Name a blob of the present node after a value; another blob is the value's alias."""
        layer = self._writers.pop(blob, None)
        if layer is None:
            self.blobs[value.name] = blob
            return
        self.blobs[value.name] = value.name
        self._rename(blob, value.name)
        if value.name == self._last:
            old, layer.name = layer.name, self._node
            self._layers.discard(old)
            layer.name = unique_name(self._node, self._layers)
            if old in self.weights:
                self.weights[layer.name] = self.weights.pop(old)
            for top in layer.top:  # unused ones
                if top.startswith(f"{old}/"):
                    self._rename(top, unique_name(layer.name + top.removeprefix(old), self._taken))

    def _rename(self, blob: str, name: str) -> None:
        self._taken.discard(blob)
        self.shapes[name] = self.shapes.pop(blob)
        for one in self.message.layer[self._start :]:
            one.bottom[:] = [name if bottom == blob else bottom for bottom in one.bottom]
            one.top[:] = [name if top == blob else top for top in one.top]

    def same(self, kind: str, x: str) -> str:
        """Add a layer without fields whose top has the shape of the bottom."""
        return self.add(kind, [x], self.shapes[x])

    def silence(self, blobs: Sequence[str]) -> None:
        """Add a Silence layer for unused blobs, which would be outputs of the net."""
        if blobs:
            name = unique_name(f"{self._node}/Silence", self._layers)
            self.message.layer.add(name=name, type="Silence", bottom=blobs)

    # -- values ----------------------------------------------------------------------------------

    def blob(self, value: Tensor) -> str:
        """Return the blob of a value; a constant gets a Parameter layer."""
        if value.name not in self.blobs:
            if value.array is None:
                refuse(f"no node computes {value.name!r}", ErrorCode.MISSING, value=value.name)
            self.assign(self.constant(value.array), value)
        return self.blobs[value.name]

    def constant(self, array: np.ndarray) -> str:
        """Return the blob of a constant."""
        return self.add(
            "Parameter", [], array.shape, weights=[as_float32(array)],
            parameter_param={"shape": {"dim": array.shape}},
        )  # fmt: skip

    # -- operations of several converters -------------------------------------------------------

    def reshape(self, x: str, shape: Shape, *, new_first: bool = False) -> str:
        """Add a Reshape to another shape, with dim 0 for an unchanged first axis.

        After a new first axis (``new_first``), the second holds the values of any batch.
        """
        have = self.shapes[x]
        if have == shape and not new_first:
            return x
        keep = bool(shape) and bool(have) and shape[0] == have[0]
        dims = [0, *shape[1:]] if keep else [*shape]
        if new_first and len(shape) > 1:
            dims = [shape[0], -1, *shape[2:]]
        return self.add("Reshape", [x], shape, reshape_param={"shape": {"dim": dims}})

    def power(self, x: str, *, power: float = 1, scale: float = 1, shift: float = 0) -> str:
        """Add (shift + scale x) ** power."""
        given = {"power": (power, 1), "scale": (scale, 1), "shift": (shift, 0)}
        fields = {name: value for name, (value, usual) in given.items() if value != usual}
        return self.add("Power", [x], self.shapes[x], power_param=fields)

    def expand(self, x: str, shape: Shape) -> str:
        """Add Tile layers along the axes of 1 that grow."""
        have = self.shapes[x]
        full = (*(1,) * (len(shape) - len(have)), *have)
        factors = [b if a != b else 1 for a, b in zip(full, shape, strict=True)]
        return self.tile(self.reshape(x, full), factors)

    def tile(self, x: str, repeats: Sequence[int]) -> str:
        """Add a Tile along each repeated axis."""
        shape = list(self.shapes[x])
        for axis, count in enumerate(repeats):
            shape[axis] *= count
            if count != 1:
                how = {"axis": axis, "tiles": count}
                x = self.add("Tile", [x], tuple(shape), tile_param=how)
        return x

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        """Add a Slice along one axis, and a Silence for the rest."""
        have = self.shapes[x]
        size = have[axis]
        if (start, stop) == (0, size):
            return x
        points = [point for point in (start, stop) if 0 < point < size]
        shapes = [(*have[:axis], b - a, *have[axis + 1 :]) for a, b in pairwise([0, *points, size])]
        how = {"axis": axis, "slice_point": points}
        tops = self.add_several("Slice", [x], shapes, slice_param=how)
        middle = tops.pop(1 if start else 0)
        self.silence(tops)
        return middle

    def select(self, x: str, axis: int, indices: np.ndarray) -> str:
        """Add a Slice along an axis for consecutive indices, or a BatchReindex for others."""
        first = int(indices[0])
        if np.array_equal(indices, first + np.arange(len(indices))):
            return self.slice(x, axis, first, first + len(indices))
        return self.gather(x, axis, indices)

    def gather(self, x: str, axis: int, indices: np.ndarray) -> str:
        """Add a BatchReindex along an axis, between two Permutes unless the axis is first."""
        order = [axis, *(one for one in range(len(self.shapes[x])) if one != axis)]
        first = x if axis == 0 else self.permute(x, order)
        shape = (len(indices), *self.shapes[first][1:])
        found = self.add("BatchReindex", [first, self.constant(indices)], shape)
        back = [order.index(one) for one in range(len(order))]
        return found if axis == 0 else self.permute(found, back)

    def concat(self, blobs: Sequence[str], axis: int, shape: Shape) -> str:
        """Add a Concat of several blobs."""
        if len(blobs) == 1:
            return blobs[0]
        return self.add("Concat", blobs, shape, concat_param={"axis": axis})

    def permute(self, x: str, order: Sequence[int]) -> str:
        """Add a Permute."""
        have = self.shapes[x]
        shape = tuple(have[axis] for axis in order)
        return self.add("Permute", [x], shape, permute_param={"order": order})

    def eltwise(self, operation: str, blobs: Sequence[str], factors: Sequence[float] = ()) -> str:
        """Add an Eltwise of blobs with equal shapes."""
        fields: dict[str, Any] = {"operation": operation}
        if factors and set(factors) != {1.0}:
            fields["coeff"] = factors
        return self.add("Eltwise", blobs, self.shapes[blobs[0]], eltwise_param=fields)


def as_float32(array: np.ndarray) -> np.ndarray:
    """Return a constant in float32."""
    if not array.size:
        refuse("a constant has no elements, which blobs do not support")
    if array.dtype.kind in "iu" and int(np.max(np.abs(array.astype(np.float64)))) > EXACT:
        refuse("a constant has integers that are not exact in float32")
    if array.dtype.kind not in "iufb":
        kind = str(array.dtype)
        refuse(f"a constant has type {kind}, which blobs do not support", got=kind)
    return array.astype(np.float32)


Result = str | Sequence[str]
"""Blob of a node's first output, or of each output."""

Converter = Callable[[Node, NetBuilder], Result]
"""Function that adds the layers of a node, or raises a NetError with the reason."""
