"""Arrays through a net, a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from demitasse.net import Net

__all__ = ["run_in_batches"]


def run_in_batches(net: Net, inputs: dict[str, Any], batch: int | None) -> dict[str, np.ndarray]:
    """Run a net on arrays, at most ``batch`` items at a time, and join its outputs."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    total = max((len(a) for a in arrays.values() if a.ndim), default=1)
    size = total if batch is None else max(1, batch)
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, max(total, 1), max(size, 1)):
        for name, array in arrays.items():
            net.set_input(name, array[start : start + size] if array.ndim else array)
        net.forward()
        parts.append({name: net.blobs[name].cpu_data().copy() for name in net.outputs})
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
