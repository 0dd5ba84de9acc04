"""Does the GPU compute what the host computes, and a launch what its kernels do one by one?"""

from typing import Any

import gpu_nets
import numpy as np
from gpu_times import timed

from demitasse.backends import random
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.memory import transfers
from demitasse.testing import compare

__all__ = ["moved", "nets", "options", "randoms", "recorded", "training", "training_in_16_bits"]

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}
"""Largest difference of a top or gradient, relative to its largest value."""

TRAINED = 1e-3
"""The same of weights after ten iterations."""

ROUNDED = {"float16": 0.02, "bfloat16": 0.15}
"""The same of all changes of weights in eight iterations, in the L2 norm, relative to float32's."""


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


SIZES = {
    "lenet": ((64, 1), (2, 5)), "caffenet": ((16, 1), (2, 16)), "residual": ((16, 1), (2, 4)),
    "googlenet": ((4, 1), (1, 16)),
}  # fmt: skip
"""Batch, and divisor of the widths: on a GPU, and in a dry run."""


def recorded(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after iterations that are launched as one must be those of queued ones, to the bit.

    LeNet, CaffeNet with LRN, groups and Dropout, a residual net with BatchNorm, GoogLeNet.
    """
    found: dict[str, Any] = {}
    for name, sizes in SIZES.items():
        given = sizes[dry]
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


OPTIONS = {
    "channels_last": ("lenet", "residual", "googlenet"),
    "cublas_bias": ("lenet", "caffenet"),
}
"""Settings that are off by default, and nets that they concern."""

ROUNDED_OTHERWISE = 0.02
"""Largest difference of all changes of weights with an option, in the L2 norm, in TF32; besides
thrice the difference that TF32 itself makes."""


def options(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after iterations with an option: near those without, and launched as queued."""
    found: dict[str, Any] = {}
    steps = 4 if dry else 8
    for option, names in OPTIONS.items():
        for name in names:
            given = SIZES[name][dry]
            with settings.override(tf32="off"):
                before, exact = (_weights(name, device, *given, count) for count in (0, steps))
            with settings.override(tf32="auto"):
                plain = _weights(name, device, *given, steps)
                with settings.override(**{option: True}):
                    launched = _weights(name, device, *given, steps)
                    with settings.override(cuda_graphs="off"):
                        queued = _weights(name, device, *given, steps)
            assert all(map(np.array_equal, queued, launched)), (option, name, found)
            moved, rounding = (_distance(exact, other) for other in (before, plain))
            off = _distance(plain, launched)
            found[f"{option}, {name}"] = {"TF32": rounding / moved, "option": off / moved}
            assert off <= ROUNDED_OTHERWISE * moved + 3 * rounding, found
    return found


def training_in_16_bits(device: Device, dry: bool) -> dict[str, Any]:
    """Weights after iterations in 16 bits: near those of float32, and launched as queued.

    An overflow changes no weight and halves the loss scale. Milliseconds of a recorded iteration.
    """
    found: dict[str, Any] = {}
    cases = {"lenet": (64, 1), "caffenet": (16, 1), "residual": (16, 1), "googlenet": (4, 1)}
    steps, repeats, timed_nets = 8, 7, {"lenet": (64, 1), "residual": (64, 1), "googlenet": (32, 1)}
    if dry:
        cases, steps, repeats = {"lenet": (2, 10), "residual": (2, 8)}, 4, 1
        timed_nets = {"lenet": (2, 10)}
    for name, given in cases.items():
        before, wide = (_weights(name, device, *given, count) for count in (0, steps))
        for dtype, most in ROUNDED.items():
            with settings.override(cuda_graphs="off"):
                queued = _weights(name, device, *given, steps, dtype)
            launched = _weights(name, device, *given, steps, dtype)
            assert all(map(np.array_equal, queued, launched)), (name, dtype, found)
            moved, off = (_distance(wide, other) for other in (before, launched))
            found[f"{name} {dtype}"] = off / moved
            assert off <= most * moved, found
    solver = gpu_nets.solver_of("lenet", device, 2, 5, dtype="float16")
    solver.step(3)
    weights = [blob.cpu_data().copy() for blob in solver.net.learnable_params]
    solver.loss_scale = 2.0**60
    solver.step(1)
    assert solver.loss_scale == 2.0**59, solver.loss_scale
    assert all(map(np.array_equal, weights, (b.cpu_data() for b in solver.net.learnable_params)))
    for name, given in timed_nets.items():
        for dtype in ("float32", *ROUNDED):
            solver = gpu_nets.solver_of(name, device, *given, dtype=dtype)
            solver.step(4)
            spent = timed(device, lambda step=solver.step: step(5), repeats) / 5e3
            found[f"{name} {given[0]} {dtype}, ms"] = spent
    return found


def _distance(some: list[Any], others: list[Any]) -> float:
    """Return the L2 norm of the difference of all arrays."""
    return float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(some, others, strict=True))))


def _weights(
    name: str, device: str | Device, batch: int, scale: int, steps: int, dtype: str = "float32"
) -> list[Any]:
    solver = gpu_nets.solver_of(name, device, batch, scale, dtype=dtype)
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
