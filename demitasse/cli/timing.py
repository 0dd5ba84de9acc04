"""Times of passes over a net, whole and layer by layer.

Source: Caffe, ``tools/caffe.cpp`` (``time``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from demitasse.benchmark.peak import peak
from demitasse.cli.launching import launching
from demitasse.core.log import get_logger, number
from demitasse.net import Net
from demitasse.plan.report import LayerReport, report
from demitasse.plan.stopwatch import Stopwatch

__all__ = ["Timing", "measure"]

log = get_logger(__name__)

WARM = 2
"""Passes before those that are measured: kernels are compiled and plans are made in them."""

WARM_QUEUED = 4
"""The same on a device that queues its work, where the last of them may be recorded."""


@dataclass
class Timing:
    """What was measured, all times in milliseconds.

    Attributes:
        iterations: How many passes.
        forward: Mean time of a forward pass.
        backward: Mean time of a backward pass, or None.
        total: Time of all passes.
        layer_forward: Mean time of each layer's forward pass; that of layers that run as one stands
            at the first of them.
        layer_backward: Mean time of each layer's backward pass; None where it has none.
        layers: What runs each layer.
        peak: Operations per second of a large product of matrices on the device, in 1e9.
        launching: Whether passes are launched as one, or why not; empty for devices that do not.
    """

    iterations: int
    forward: float = 0.0
    backward: float | None = None
    total: float = 0.0
    layer_forward: list[float] = field(default_factory=list)
    layer_backward: list[float | None] = field(default_factory=list)
    layers: list[LayerReport] = field(default_factory=list)
    peak: float = 0.0
    launching: str = ""

    def tell(self) -> None:
        """Log it as Caffe does."""
        log.info("Average time per layer: ")
        times = zip(self.layers, self.layer_forward, self.layer_backward, strict=True)
        for layer, forward, backward in times:
            log.info("%10s\tforward: %s ms.", layer.name, number(forward))
            if backward is not None:
                log.info("%10s\tbackward: %s ms.", layer.name, number(backward))
        log.info("Average Forward pass: %s ms.", number(self.forward))
        if self.backward is not None:
            log.info("Average Backward pass: %s ms.", number(self.backward))
            log.info("Average Forward-Backward: %s ms.", number(self.forward + self.backward))
        log.info("Total Time: %s ms.", number(self.total))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        times = zip(self.layers, self.layer_forward, self.layer_backward, strict=True)
        layers = [
            {**asdict(layer), "forward_ms": forward, "backward_ms": backward}
            for layer, forward, backward in times
        ]
        return {
            "iterations": self.iterations,
            "forward_ms": self.forward,
            "backward_ms": self.backward,
            "total_ms": self.total,
            "peak_gflops": self.peak,
            "launching": self.launching,
            "layers": layers,
        }


def measure(net: Net, iterations: int, *, backward: bool = True) -> Timing:
    """Measure passes over a net; gradients begin at zero in each, as in training."""
    timing = Timing(iterations)
    for _ in range(WARM_QUEUED if net.device.backend.queues else WARM):
        _forward(net)
        if backward:
            _backward(net)
    timing.layers, timing.launching = report(net.plan), launching(net)
    timing.peak = peak(net.device, net.dtype)
    _whole(net, timing, backward=backward)
    _layers(net, timing, backward=backward)
    return timing


def _whole(net: Net, timing: Timing, *, backward: bool) -> None:
    begin = perf_counter()
    forward_time = backward_time = 0.0
    for index in range(timing.iterations):
        forward_time += (forward := _forward(net))
        back = _backward(net) if backward else 0.0
        backward_time += back
        passes = "forward-backward" if backward else "forward"
        log.info("Iteration: %d %s time: %s ms.", index + 1, passes, number(forward + back))
    timing.total = 1e3 * (perf_counter() - begin)
    timing.forward = forward_time / timing.iterations
    timing.backward = backward_time / timing.iterations if backward else None


def _forward(net: Net) -> float:
    """Run a forward pass and wait for it; return its time."""
    net.synchronize()
    begin = perf_counter()
    net.forward()
    net.synchronize()
    return 1e3 * (perf_counter() - begin)


def _backward(net: Net) -> float:
    net.clear_param_diffs()
    net.synchronize()
    begin = perf_counter()
    net.backward()
    net.synchronize()
    return 1e3 * (perf_counter() - begin)


def _layers(net: Net, timing: Timing, *, backward: bool) -> None:
    with Stopwatch(net.plan, net.synchronize) as watch:
        for _ in range(timing.iterations):
            _forward(net)
            if backward:
                _backward(net)
    timing.layer_forward = [1e3 * total / timing.iterations for total in watch.forward]
    timing.layer_backward = [
        1e3 * total / timing.iterations if backward and need else None
        for total, need in zip(watch.backward, net.structure.layer_need_backward, strict=True)
    ]
