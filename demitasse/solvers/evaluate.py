"""The mean of a net's outputs over some batches.

Source: Caffe, ``Solver::Test`` in ``src/caffe/solver.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from demitasse.backends.base import Array
from demitasse.errors import ShapeError
from demitasse.net import Net

__all__ = ["mean_outputs"]


def mean_outputs(
    net: Net, batches: int, go_on: Callable[[], bool] = lambda: True
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net and return the mean of every output, and of the loss.

    Sums stay on the device until the end.

    Args:
        net: The net, with data layers.
        batches: How many.
        go_on: Asked before each; False ends the run, and what is returned is then of no use.

    Raises:
        ShapeError: An output changes its shape from one batch to another.
    """
    sums: dict[str, Array] = {}
    loss = 0.0
    for _ in range(batches):
        if not go_on():
            break
        loss += net.forward()
        with net.device.backend.enter():
            for name in net.outputs:
                sums[name] = _added(sums.get(name), net.blob_by_name(name).read(), name)
    to_host = net.device.backend.to_host
    means = {name: np.asarray(to_host(total) / batches) for name, total in sums.items()}
    return means, loss / batches


def _added(total: Array | None, value: Array, name: str) -> Array:
    if total is None:
        return value + 0  # a copy: the blob's memory is overwritten by the next batch
    if total.shape != value.shape:
        message = f"output {name!r} changed from {total.shape} to {value.shape} between batches"
        raise ShapeError(message)
    return total + value
