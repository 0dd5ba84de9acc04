"""What ``Net.getLayer`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Layer"]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a net, to be looked at.

    Attributes:
        name: Its name.
        type: Its type; empty for layer 0, the inputs.
        blobs: Copies of its parameters.
        tops: Names of what it gives.
    """

    name: str
    type: str
    blobs: tuple[np.ndarray, ...]
    tops: Sequence[str]

    def outputNameToIndex(self, outputName: str) -> int:
        """Return which of its outputs has this name; -1 for none."""
        return list(self.tops).index(outputName) if outputName in self.tops else -1
