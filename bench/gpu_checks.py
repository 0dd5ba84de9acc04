"""Does the GPU compute what the host computes, and a launch what its kernels do one by one?"""

from typing import Any

import gpu_nets
import numpy as np

from demitasse.backends import random
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.memory import transfers
from demitasse.testing import compare

__all__ = ["moved", "nets", "randoms", "recorded", "training"]

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
"""Largest difference of a top or gradient, relative to its largest value."""

TRAINED = 1e-3
"""The same of weights after ten iterations."""


def nets(device: Device, dry: bool) -> dict[str, Any]:
    """Largest difference of any top or gradient from the layers' own code on the host."""
    found: dict[str, Any] = {}
    for dtype in ("float64", "float32"):
        for name, batch, scale in (("lenet", 4, 1), ("windows", 3, 1), ("caffenet", 2, 8)):
            size = {"lenet": 5, "windows": 1, "caffenet": 16}[name] if dry else scale
            net = gpu_nets.net_of(name, "readonly", batch, size, dtype=dtype)
            result = compare(net, ["readonly", device], backward=True)  # type: ignore[list-item]
            found[f"{name} {dtype}"] = worst = result.worst.relative if result.worst else 0.0
            assert worst <= TOLERANCE[dtype], (str(result.worst), found)
    return found


def randoms(device: Device, dry: bool) -> dict[str, Any]:
    """Random words must be equal bit for bit."""
    count = 1000 if dry else 10_000_019
    got = device.backend.to_host(device.backend.random_bits(7, 8, 9, count, 3))
    assert (got == random.bits(7, 8, 9, count, 3)).all()
    return {"count": count}


def training(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after some iterations, against the host's."""
    weights = [_weights("lenet", place, 4, 5, 10) for place in ("readonly", device)]
    pairs = zip(*weights, strict=True)
    worst = max(float(np.max(abs(a - b)) / np.max(abs(a))) for a, b in pairs)
    assert worst <= TRAINED, worst
    return {"relative": worst}


def recorded(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after iterations that are launched as one must be those of queued ones, to the bit.

    LeNet, CaffeNet with LRN, groups and Dropout, a residual net with BatchNorm, GoogLeNet.
    """
    found: dict[str, Any] = {}
    cases = {"lenet": (64, 5), "caffenet": (16, 16), "residual": (16, 4), "googlenet": (4, 16)}
    for name, (batch, rehearsed) in cases.items():
        given = (2, rehearsed) if dry else (batch, 1)
        for tf32 in ("off", "auto"):
            weights = []
            for graphs in ("off", "auto"):
                with settings.override(cuda_graphs=graphs, tf32=tf32):
                    weights.append(_weights(name, device, *given, 8))
            equal = all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))
            found[f"{name}, tf32 {tf32}"] = equal
            assert equal, found
            assert all(np.isfinite(array).all() for array in weights[0]), name
    return found


def _weights(name: str, device: str | Device, batch: int, scale: int, steps: int) -> list[Any]:
    solver = gpu_nets.solver_of(name, device, batch, scale)
    solver.step(steps)
    return [blob.cpu_data().copy() for blob in solver.net.learnable_params]


def moved(device: Device, dry: bool) -> dict[str, Any]:
    """Copies between host and device in one iteration: the loss alone, when inputs stay."""
    del dry
    solver = gpu_nets.solver_of("lenet", device, 4, 5)
    solver.step(6)
    transfers.reset()
    solver.step(1)
    assert transfers.to_device == 0
    return {"to_device": transfers.to_device, "to_host": transfers.to_host}
