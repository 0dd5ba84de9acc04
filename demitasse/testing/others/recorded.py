"""Arrays that were recorded: a ``.npz`` file with an array for each blob, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from demitasse.errors import DataError, ErrorCode
from demitasse.io.weights.npz import arrays_in
from demitasse.testing.others.model import Parameter, Value

__all__ = ["Recorded", "read_arrays"]


class Recorded:
    """Recorded arrays, as if a model had computed them.

    Attributes:
        arrays: Every array of the file, inputs included.

    Raises:
        DataError: The file is none of arrays.
    """

    outputs: tuple[str, ...] = ()
    ordered = False

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.arrays = read_arrays(path)

    def inputs(self) -> Mapping[str, tuple[int | None, ...]]:
        """Return nothing: what was recorded needs no input."""
        return {}

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[Value]:
        """Return what was recorded."""
        del arrays
        return [Value((name,), array, "recorded") for name, array in self.arrays.items()]

    def parameters(self) -> list[Parameter]:
        """Return none."""
        return []


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` file by their names.

    Raises:
        DataError: It is none.
    """
    try:
        return arrays_in(path)
    except (OSError, ValueError) as error:
        message = f"this is no .npz file of arrays: {error}"
        raise DataError(message, str(path), code=ErrorCode.UNREADABLE) from error
