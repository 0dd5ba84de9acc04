"""Times of passes over a net, whole and layer by layer.

Source: Caffe, ``tools/caffe.cpp`` (``time``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from demitasse.log import get_logger, number
from demitasse.net import Net

__all__ = ["Timing", "measure"]

log = get_logger(__name__)

WARM = 2
"""Passes before those that are measured: kernels are compiled and plans are made in them."""


@dataclass
class Timing:
    """What was measured, all times in milliseconds.

    Attributes:
        iterations: How many passes.
        forward: Mean time of a forward pass.
        backward: Mean time of a backward pass, or None.
        total: Time of all passes.
        names: Name and type of each layer.
        layer_forward: Mean time of each layer's forward pass by itself.
        layer_backward: Mean time of each layer's backward pass; None where it has none.
    """

    iterations: int
    forward: float = 0.0
    backward: float | None = None
    total: float = 0.0
    names: list[tuple[str, str]] = field(default_factory=list)
    layer_forward: list[float] = field(default_factory=list)
    layer_backward: list[float | None] = field(default_factory=list)

    def tell(self) -> None:
        """Log it as Caffe does."""
        log.info("Average time per layer: ")
        times = zip(self.names, self.layer_forward, self.layer_backward, strict=True)
        for (name, _), forward, backward in times:
            log.info("%10s\tforward: %s ms.", name, number(forward))
            if backward is not None:
                log.info("%10s\tbackward: %s ms.", name, number(backward))
        log.info("Average Forward pass: %s ms.", number(self.forward))
        if self.backward is not None:
            log.info("Average Backward pass: %s ms.", number(self.backward))
            log.info("Average Forward-Backward: %s ms.", number(self.forward + self.backward))
        log.info("Total Time: %s ms.", number(self.total))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        times = zip(self.names, self.layer_forward, self.layer_backward, strict=True)
        layers = [
            {"name": name, "type": kind, "forward_ms": forward, "backward_ms": backward}
            for (name, kind), forward, backward in times
        ]
        return {
            "iterations": self.iterations,
            "forward_ms": self.forward,
            "backward_ms": self.backward,
            "total_ms": self.total,
            "layers": layers,
        }


def measure(net: Net, iterations: int, *, backward: bool = True) -> Timing:
    """Measure passes over a net; gradients begin at zero in each, as in training."""
    timing = Timing(iterations, names=[(layer.name, layer.type) for layer in net.layers])
    for _ in range(WARM):
        _forward(net)
        if backward:
            _backward(net)
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
    forward, back = _Stopwatch(net), _Stopwatch(net)
    net.before_forward.append(forward.start)
    net.after_forward.append(forward.stop)
    net.before_backward.append(back.start)
    net.after_backward.append(back.stop)
    try:
        for _ in range(timing.iterations):
            _forward(net)
            if backward:
                _backward(net)
    finally:
        net.before_forward.remove(forward.start)
        net.after_forward.remove(forward.stop)
        net.before_backward.remove(back.start)
        net.after_backward.remove(back.stop)
    timing.layer_forward = [total / timing.iterations for total in forward.totals]
    timing.layer_backward = [
        total / timing.iterations if backward and need else None
        for total, need in zip(back.totals, net.layer_need_backward, strict=True)
    ]


class _Stopwatch:
    """Adds up, for each layer, the time between two callbacks, until the device is done."""

    def __init__(self, net: Net) -> None:
        self.net, self.totals, self._begin = net, [0.0] * len(net.layers), 0.0

    def start(self, index: int) -> None:
        del index
        self._begin = perf_counter()

    def stop(self, index: int) -> None:
        self.net.synchronize()
        self.totals[index] += 1e3 * (perf_counter() - self._begin)
