"""Builder of imported nets: layers, weights and shapes of blobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError
from demitasse.interop.onnx_import.model import Node, Shape, Tensor, refuse
from demitasse.io.proto import LayerParameter, NetParameter

EXACT = 2**24
"""Largest integer up to which float32 is exact."""


class NetBuilder:
    """Layers and weights of an imported net; blobs have the names of values.

    Attributes:
        message: The net, without weights.
        weights: Layer -> parameters, float32.
        blobs: Value of the model -> blob.
        shapes: Blob -> shape.
        notes: Assumptions, in words.
    """

    def __init__(self, name: str, taken: Sequence[str]) -> None:
        self.message = NetParameter(name=name)
        self.weights: dict[str, list[np.ndarray]] = {}
        self.blobs: dict[str, str] = {}
        self.shapes: dict[str, Shape] = {}
        self.notes: list[str] = []
        self._taken, self._layers = set(taken), set[str]()
        self._node, self._last = "", ""

    def input(self, value: Tensor) -> None:
        """Add an Input layer."""
        self.message.layer.add(
            name=_unique(value.name, self._layers), type="Input", top=[value.name],
            input_param={"shape": [{"dim": value.shape}]},
        )  # fmt: skip
        self.blobs[value.name] = value.name
        self.shapes[value.name] = value.shape
        if value.is_integer:
            self.notes.append(f"input {value.name!r} takes float32 in place of {value.dtype}")

    def begin(self, name: str, last: str) -> None:
        """Name the next layers after a node; the layer of value ``last`` has its name."""
        self._node, self._last = name, last

    # -- layers ----------------------------------------------------------------------------------

    def add(
        self, kind: str, bottoms: Sequence[str], shape: Shape, *, to: Tensor | None = None,
        weights: Sequence[np.ndarray] = (), **fields: Any,
    ) -> str:  # fmt: skip
        """Add a layer with one top; return the top's name.

        Args:
            kind: Layer type.
            bottoms: Names of the bottoms.
            shape: Shape of the top.
            to: Value of the model that the top is; None for an intermediate result.
            weights: Parameters.
            **fields: Fields of the layer, such as ``relu_param``.
        """
        return self.add_several(kind, bottoms, [shape], to=[to], weights=weights, **fields)[0]

    def add_several(
        self, kind: str, bottoms: Sequence[str], shapes: Sequence[Shape], *,
        to: Sequence[Tensor | None], weights: Sequence[np.ndarray] = (), **fields: Any,
    ) -> list[str]:  # fmt: skip
        """Add a layer with several tops; see ``add``."""
        final = any(one is not None and one.name == self._last for one in to)
        name = _unique(self._node if final else f"{self._node}/{kind}", self._layers)
        names = [name] if len(to) == 1 else [f"{name}/{number}" for number in range(len(to))]
        tops = [
            _unique(own, self._taken) if one is None else one.name
            for own, one in zip(names, to, strict=True)
        ]
        self.message.layer.append(
            LayerParameter(name=name, type=kind, bottom=bottoms, top=tops, **fields)
        )
        if weights:
            self.weights[name] = [np.asarray(one, np.float32, order="C") for one in weights]
        for one, top, shape in zip(to, tops, shapes, strict=True):
            self.shapes[top] = tuple(shape)
            if one is not None:
                self.blobs[one.name] = top
        return tops

    def same(self, kind: str, x: str, *, to: Tensor | None = None) -> str:
        """Add a layer without fields whose top has the shape of the bottom."""
        return self.add(kind, [x], self.shapes[x], to=to)

    def silence(self, blobs: Sequence[str]) -> None:
        """Add a Silence layer for unused blobs, which would be outputs of the net."""
        if blobs:
            name = _unique(f"{self._node}/Silence", self._layers)
            self.message.layer.add(name=name, type="Silence", bottom=blobs)

    # -- values ----------------------------------------------------------------------------------

    def blob(self, value: Tensor) -> str:
        """Return the blob of a value; a constant gets a Parameter layer."""
        if value.name not in self.blobs:
            if value.array is None:
                message = f"no node computes {value.name!r}"
                raise NetError(message, code=ErrorCode.MISSING, value=value.name)
            self.blobs[value.name] = self.constant(value.array, value)
        return self.blobs[value.name]

    def constant(self, array: np.ndarray, value: Tensor | None = None) -> str:
        """Return the blob of a constant."""
        return self.add(
            "Parameter", [], array.shape, to=value, weights=[as_float32(array)],
            parameter_param={"shape": {"dim": array.shape}},
        )  # fmt: skip

    def alias(self, value: Tensor, source: str) -> None:
        """Record that a value equals a blob."""
        self.blobs[value.name] = source

    # -- operations of several converters -------------------------------------------------------

    def reshape(self, x: str, shape: Shape, *, to: Tensor | None = None) -> str:
        """Add a Reshape, with dim 0 for an unchanged first axis."""
        have = self.shapes[x]
        if to is None and have == shape:
            return x
        keep = bool(shape) and bool(have) and shape[0] == have[0]
        dims = [0, *shape[1:]] if keep else [*shape]
        return self.add("Reshape", [x], shape, to=to, reshape_param={"shape": {"dim": dims}})

    def power(
        self, x: str, *, power: float = 1, scale: float = 1, shift: float = 0,
        to: Tensor | None = None,
    ) -> str:  # fmt: skip
        """Add (shift + scale x) ** power."""
        given = {"power": (power, 1), "scale": (scale, 1), "shift": (shift, 0)}
        fields = {name: value for name, (value, usual) in given.items() if value != usual}
        return self.add("Power", [x], self.shapes[x], to=to, power_param=fields)

    def expand(self, x: str, shape: Shape, *, to: Tensor | None = None) -> str:
        """Add Tile layers along the axes of 1 that grow."""
        have = self.shapes[x]
        full = (*(1,) * (len(shape) - len(have)), *have)
        if full == shape:
            return self.reshape(x, shape, to=to) if have != shape else self._as(x, to)
        factors = [b if a != b else 1 for a, b in zip(full, shape, strict=True)]
        return self.tile(self.reshape(x, full), factors, to=to)

    def tile(self, x: str, repeats: Sequence[int], *, to: Tensor | None = None) -> str:
        """Add a Tile along each repeated axis."""
        shape = list(self.shapes[x])
        axes = [axis for axis, count in enumerate(repeats) if count != 1]
        for axis in axes:
            shape[axis] *= repeats[axis]
            how = {"axis": axis, "tiles": repeats[axis]}
            last = to if axis == axes[-1] else None
            x = self.add("Tile", [x], tuple(shape), to=last, tile_param=how)
        return x

    def _as(self, x: str, to: Tensor | None) -> str:
        if to is not None:
            self.alias(to, x)
        return x

    def slice(self, x: str, axis: int, start: int, stop: int, *, to: Tensor | None = None) -> str:
        """Add a Slice along one axis, and a Silence for the rest."""
        have = self.shapes[x]
        size = have[axis]
        if (start, stop) == (0, size):
            return self._as(x, to)
        points = [point for point in (start, stop) if 0 < point < size]
        ends = [0, *points, size]
        middle = 1 if start else 0
        shapes = [(*have[:axis], b - a, *have[axis + 1 :]) for a, b in pairwise(ends)]
        tops = self.add_several(
            "Slice", [x], shapes,
            to=[to if number == middle else None for number in range(len(shapes))],
            slice_param={"axis": axis, "slice_point": points},
        )  # fmt: skip
        self.silence([top for number, top in enumerate(tops) if number != middle])
        return tops[middle]

    def gather(self, x: str, axis: int, indices: np.ndarray) -> str:
        """Add a BatchReindex along an axis, between two Permutes unless the axis is first."""
        order = [axis, *(one for one in range(len(self.shapes[x])) if one != axis)]
        first = x if axis == 0 else self.permute(x, order)
        shape = (len(indices), *self.shapes[first][1:])
        found = self.add("BatchReindex", [first, self.constant(indices)], shape)
        back = [order.index(one) for one in range(len(order))]
        return found if axis == 0 else self.permute(found, back)

    def permute(self, x: str, order: Sequence[int], *, to: Tensor | None = None) -> str:
        """Add a Permute."""
        have = self.shapes[x]
        shape = tuple(have[axis] for axis in order)
        return self.add("Permute", [x], shape, to=to, permute_param={"order": order})

    def eltwise(
        self, operation: str, blobs: Sequence[str], *, factors: Sequence[float] = (),
        to: Tensor | None = None,
    ) -> str:  # fmt: skip
        """Add an Eltwise of blobs with equal shapes."""
        fields: dict[str, Any] = {"operation": operation}
        if factors and set(factors) != {1.0}:
            fields["coeff"] = factors
        return self.add("Eltwise", blobs, self.shapes[blobs[0]], to=to, eltwise_param=fields)


def as_float32(array: np.ndarray) -> np.ndarray:
    """Return a constant in float32."""
    if not array.size:
        refuse("a constant has no elements, which blobs do not support")
    if array.dtype.kind in "iu" and int(np.max(np.abs(array.astype(np.float64)))) > EXACT:
        refuse("a constant has integers that are not exact in float32")
    if array.dtype.kind not in "iufb":
        refuse(
            f"a constant has type {array.dtype}, which blobs do not support", got=str(array.dtype)
        )
    return array.astype(np.float32)


def _unique(wish: str, taken: set[str]) -> str:
    """Return a unique name, and reserve it."""
    name, number = wish, 2
    while name in taken:
        name, number = f"{wish}_{number}", number + 1
    taken.add(name)
    return name


Converter = Callable[[Node, NetBuilder], object]
"""Function that adds the layers of a node, or raises a NetError with the reason."""
