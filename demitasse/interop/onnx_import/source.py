"""A model of ONNX as it is read: its nodes, and what is known of every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse.errors import ErrorCode, NetError

__all__ = ["FLOATS", "NARROW", "WHOLE", "Node", "Tensor"]

FLOATS = {"bfloat16", "float16", "float32", "float64"}
NARROW = {"int16", "int8", "uint16", "uint8"}
WHOLE = {*NARROW, "bool", "int32", "int64", "uint32", "uint64"}
"""What values may be of; all is computed in float32."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A value of a model.

    Attributes:
        name: What it is called.
        shape: Its sizes, all known.
        dtype: What it is of, e.g. "float32".
        array: What it is, where it depends on no input.
    """

    name: str
    shape: Shape
    dtype: str
    array: np.ndarray | None = None

    @property
    def whole(self) -> bool:
        """Whether it is of whole numbers or truth values."""
        return self.dtype in WHOLE


@dataclass(frozen=True)
class Node:
    """An operator of a model, with its values.

    Attributes:
        op: Type of the operator.
        name: What it is called; never empty.
        opset: Version of the operators.
        inputs: Its inputs, None where one is left out.
        outputs: Its outputs, None where one is left out.
        attributes: Name -> value.
    """

    op: str
    name: str
    opset: int
    inputs: Sequence[Tensor | None]
    outputs: Sequence[Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """The node in messages."""
        return f"node {self.name!r} ({self.op})"

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.need(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        found = self.outputs[0] if self.outputs else None
        if found is None:
            message = "its first output has no name"
            raise NetError(message, code=ErrorCode.MISSING, output=0)
        return found

    def get(self, position: int) -> Tensor | None:
        """Return an input, or None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def need(self, position: int) -> Tensor:
        """Return an input.

        Raises:
            NetError: It is left out.
        """
        found = self.get(position)
        if found is None:
            message = f"input {position} is left out"
            raise NetError(message, code=ErrorCode.MISSING, input=position)
        return found

    def array(self, position: int, what: str) -> np.ndarray:
        """Return an input that must be constant.

        Raises:
            NetError: It is computed, or left out.
        """
        found = self.need(position)
        if found.array is None:
            message = f"its {what} {found.name!r} is computed, and layers need a constant"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, input=found.name)
        return found.array

    def given(self, attribute: str, position: int) -> np.ndarray | None:
        """Return what older operators have as an attribute, and newer ones as an input."""
        if attribute in self.attributes:
            return np.asarray(self.attributes[attribute])
        return None if self.get(position) is None else self.array(position, attribute)

    def axis(self, default: int) -> int:
        """Return the attribute ``axis``, counted from the first."""
        return int(self.attributes.get("axis", default)) % max(1, len(self.x.shape))

    def need_no(self, *positions: int) -> None:
        """Refuse outputs that no layer computes.

        Raises:
            NetError: One is asked for.
        """
        for position in positions:
            if position < len(self.outputs) and self.outputs[position] is not None:
                message = f"output {position} has no counterpart in Caffe's layers"
                raise NetError(message, code=ErrorCode.UNSUPPORTED, output=position)
