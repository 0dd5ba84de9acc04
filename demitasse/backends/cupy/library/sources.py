"""The kernels' source text, and the compiler options it is written for."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["FAMILIES", "MOST_THREADS", "options", "source"]

FAMILIES = (
    "activation", "batch_norm", "conv", "elementwise", "function", "input", "loss", "lrn", "pool",
    "random", "softmax", "storage", "sums", "update",
)  # fmt: skip

MOST_THREADS = 512
"""Most threads in a block that adds up or compares; ``common.cuh`` has the same number."""

REAL = {"float32": "float", "float64": "double"}

STORED = {"half": 1, "bfloat16": 2}
"""Type name in the CUDA sources by storage dtype; 0 for ``Real``."""


@cache
def source(family: str) -> str:
    """Return the text of one family of kernels, after the text that all families share."""
    folder = files("demitasse.backends.cupy") / "kernels"
    common = (folder / "common.cuh").read_text(encoding="utf-8")
    return common + (folder / f"{family}.cu").read_text(encoding="utf-8")


def options(dtype: str, *, wide: bool) -> tuple[str, ...]:
    """Return the options that choose the types ``Real``, ``Stored`` and ``Index`` of the sources.

    Args:
        dtype: "float32" or "float64"; or "half" or "bfloat16", for float32 kept in 16 bits.
        wide: Whether an array has so many elements that 32 bits cannot count them.
    """
    real, stored = REAL.get(dtype, "float"), STORED.get(dtype, 0)
    return ("-std=c++17", f"-DReal={real}", f"-DSTORED={stored}", f"-DWIDE={int(wide)}")
