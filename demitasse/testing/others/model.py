"""What a comparison needs to know of another framework's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["Other", "Parameter", "Value"]


@dataclass(frozen=True)
class Value:
    """An array that the other model has computed.

    Attributes:
        names: What it is called, the name that counts most first: of the array, of what made it.
        array: The array, on the host.
        operation: What made it, in the other framework's words; empty where not known.
        kind: The type of layer that computes the same; empty where not known.
    """

    names: tuple[str, ...]
    array: np.ndarray
    operation: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the other model.

    Attributes:
        name: What it is called there.
        array: The array, in Caffe's layout: an inner product's weight is (M, K).
        role: What it is for: "weight", "bias", "scale", "shift", "mean", "variance", "slope";
            empty where not known.
    """

    name: str
    array: np.ndarray
    role: str = ""


class Other(Protocol):
    """A model to hold a net against."""

    name: str
    """What it is called in tables: the file's name."""

    outputs: tuple[str, ...]
    """Names of its outputs, as in ``Value.names``; empty where not known."""

    ordered: bool
    """Whether ``run`` returns arrays in the order of computation."""

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return the shape of each input it needs, in order; None for a size that is free."""
        ...

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Compute everything it can tell of, in the order of computation."""
        ...

    def parameters(self) -> list[Parameter]:
        """Return its parameters, in the order they are used."""
        ...
