"""Numbers that are kept in 16 bits and computed with in float32.

``half`` has 11 significant bits and ends at 65504, ``bfloat16`` has 8 and the range of float32.
numpy and most libraries of arrays do not know bfloat16, so it is kept as its bits.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from demitasse.core.log import get_logger

log = get_logger(__name__)

Stored = Literal["float", "half", "bfloat16"]
"""Storage of a net's values on a device; "float" is the compute dtype."""

STORAGES: tuple[Stored, ...] = ("float", "half", "bfloat16")

ARRAYS: Mapping[str, str] = {"half": "float16", "bfloat16": "uint16"}  # array dtype by storage name

INFINITE: Mapping[str, np.uint16] = {"half": np.uint16(0x7C00), "bfloat16": np.uint16(0x7F80)}
"""Bits of infinity."""

ROUND, QUIET, FRACTION = np.uint32(0x7FFF), np.uint16(0x0040), np.uint32(16)


def array_dtype(kind: str) -> str:
    """Return the dtype of arrays of ``kind``, a dtype itself or one of ``ARRAYS``."""
    return ARRAYS.get(kind, kind)


def computed(kind: str) -> str:
    """Return the dtype that values of ``kind``, a dtype or one of ``ARRAYS``, are computed in."""
    return "float32" if kind in ARRAYS else kind


def nan_of(kind: str) -> float | int:
    """Return what an array of a kind holds for NaN."""
    return 0x7FC0 if kind == "bfloat16" else float("nan")


def narrowed(host: np.ndarray, kind: str) -> np.ndarray:
    """Return float32 numbers in 16 bits, rounded to the nearest, ties to even.

    What is too large becomes infinite, and NaN stays NaN. Shapes: any -> the same.
    """
    if kind == "half":
        with np.errstate(over="ignore"):
            return host.astype(np.float16)
    bits = np.ascontiguousarray(host, np.float32).view(np.uint32)
    upper = (bits >> FRACTION).astype(np.uint16)
    rounded = ((bits + ROUND + (upper & 1)) >> FRACTION).astype(np.uint16)
    return np.where(np.isnan(host), upper | QUIET, rounded)


class ParameterRounding:
    """Rounds the ``count`` values of a parameter to 16 bits; warns once of those too large."""

    def __init__(self, kind: Stored, name: str, count: int) -> None:
        self._kind, self._name, self._count, self._warned = kind, name, count, False

    def __call__(self, host: np.ndarray) -> np.ndarray:
        """Return the values in 16 bits. Shapes: any, with padding -> the same."""
        narrow = narrowed(host, self._kind)
        if not self._warned:
            infinite = (narrow.view(np.uint16) & 0x7FFF) == INFINITE[self._kind]  # without the sign
            if beyond := np.count_nonzero(infinite & np.isfinite(host)):
                self._warned = True
                log.warning(
                    "%d of %d values of parameter %r are too large for storage %r, and infinite "
                    "in what is computed with them",
                    beyond, self._count, self._name, self._kind,
                )  # fmt: skip
        return narrow


def widen_into(narrow: np.ndarray, kind: str, host: np.ndarray) -> None:
    """Write numbers of 16 bits to a float32 array, exactly. Shapes: the same."""
    if kind == "half":
        host[...] = narrow
    else:
        host.view(np.uint32)[...] = narrow.astype(np.uint32) << FRACTION
