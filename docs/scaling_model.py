"""How much of their time machines compute that train one net: a model, not a measurement.

Gradients are exchanged in a ring: each of n machines sends and receives 2 (n - 1) / n of their
bytes, in 2 (n - 1) messages one after the other. With overlap the exchange of a part begins when
backward has completed it and the part before is through; without, when all are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Network", "Work", "efficiency"]

BUCKET = 8 << 20
"""Bytes of gradients that are exchanged at a time, at least."""


@dataclass(frozen=True)
class Network:
    """What connects the machines.

    Attributes:
        bandwidth: Bytes that a machine sends in a second, and receives at the same time.
        latency: Seconds that a message takes, however short.
    """

    bandwidth: float
    latency: float

    def seconds(self, nbytes: float, machines: int) -> float:
        """Return how long an array is exchanged in a ring."""
        if machines < 2:
            return 0.0
        moved = 2 * (machines - 1) / machines * nbytes
        return moved / self.bandwidth + 2 * (machines - 1) * self.latency


@dataclass(frozen=True)
class Work:
    """What a machine computes in an iteration.

    Attributes:
        before: Seconds until backward begins.
        layers: For each layer, the last first, the seconds of its gradients and their bytes.
    """

    before: float
    layers: Sequence[tuple[float, float]]

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.before + sum(seconds for seconds, _ in self.layers)

    def faster(self, times: float) -> Work:
        """Return the same on a machine that computes so many times as fast."""
        layers = [(seconds / times, nbytes) for seconds, nbytes in self.layers]
        return Work(self.before / times, layers)

    def narrowed(self) -> Work:
        """Return the same with gradients that travel in half their bytes."""
        return Work(self.before, [(seconds, nbytes / 2) for seconds, nbytes in self.layers])


def efficiency(
    work: Work, network: Network, machines: int, *, overlap: bool, jitter: float = 0.02
) -> float:
    """Return the share of its time that a machine computes.

    Args:
        work: Its iteration.
        network: What connects it to the others.
        machines: How many there are.
        overlap: Whether gradients are exchanged beside backward.
        jitter: By how much the slowest machine is slower than the others.
    """
    now, free, waiting = work.before, 0.0, 0.0
    parts: list[tuple[float, float]] = []  # when a part is complete, and its bytes
    for seconds, nbytes in work.layers:
        now, waiting = now + seconds, waiting + nbytes
        if waiting >= BUCKET:
            parts.append((now, waiting))
            waiting = 0.0
    if waiting:
        parts.append((now, waiting))
    for complete, nbytes in parts:
        begin = max(free, complete if overlap else now)
        free = begin + network.seconds(nbytes, machines)
    late = jitter * work.seconds if machines > 1 else 0.0
    return work.seconds / (max(free, now) + late)
