"""Arrays through a net, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["run_in_batches"]

Arrays = dict[str, np.ndarray]


def run_in_batches(
    run: Callable[[Arrays], Arrays], inputs: dict[str, Any], batch: int | None
) -> Arrays:
    """Run inputs through a net, at most ``batch`` items at a time, and join the outputs.

    Args:
        run: Fills the inputs of the net, runs it forward and returns copies of its outputs.
        inputs: An array for each input, the items on its first axis; one without axes goes into
            every batch.
        batch: The most items of one run; None runs all at once.

    Returns:
        The outputs, joined along their first axis.
    """
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    total = max((len(array) for array in arrays.values() if array.ndim), default=1)
    size = total if batch is None else max(1, batch)
    parts = [
        run({name: a[start : start + size] if a.ndim else a for name, a in arrays.items()})
        for start in range(0, max(total, 1), max(size, 1))
    ]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
