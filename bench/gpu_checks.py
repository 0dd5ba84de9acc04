"""Does the GPU compute what the host computes?"""

from typing import Any

import gpu_nets
import numpy as np

from demitasse.backends import random
from demitasse.core.device import Device
from demitasse.memory import transfers
from demitasse.testing import compare

__all__ = ["moved", "nets", "randoms", "training"]


def nets(device: Device, dry: bool) -> dict[str, Any]:
    """Largest difference of any top or gradient from the layers' own code on the host."""
    found: dict[str, Any] = {}
    for dtype in ("float64", "float32"):
        for name, batch, scale in (("lenet", 4, 1), ("windows", 3, 1), ("caffenet", 2, 8)):
            size = {"lenet": 5, "windows": 1, "caffenet": 16}[name] if dry else scale
            net = gpu_nets.net_of(name, "readonly", batch, size, dtype=dtype)
            result = compare(net, ["readonly", device], backward=True)  # type: ignore[list-item]
            found[f"{name} {dtype}"] = {
                "worst": str(result.worst),
                "relative": result.worst.relative if result.worst else 0.0,
            }
    return found


def randoms(device: Device, dry: bool) -> dict[str, Any]:
    """Random words must be equal bit for bit."""
    count = 1000 if dry else 10_000_019
    got = device.backend.to_host(device.backend.random_bits(7, 8, 9, count, 3))
    return {"equal": bool((got == random.bits(7, 8, 9, count, 3)).all()), "count": count}


def training(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after some iterations, against the host's."""
    del dry
    weights = []
    for place in ("readonly", device):
        solver = gpu_nets.solver_of("lenet", place, 4, 5)
        solver.step(10)
        weights.append([blob.cpu_data().copy() for blob in solver.net.learnable_params])
    pairs = zip(*weights, strict=True)
    return {"relative": max(float(np.max(abs(a - b)) / np.max(abs(a))) for a, b in pairs)}


def moved(device: Device, dry: bool) -> dict[str, Any]:
    """Copies between host and device in one iteration: the loss alone, when inputs stay."""
    del dry
    solver = gpu_nets.solver_of("lenet", device, 4, 5)
    solver.step(2)
    transfers.reset()
    solver.step(1)
    return {"to_device": transfers.to_device, "to_host": transfers.to_host}
