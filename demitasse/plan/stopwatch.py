"""The time of each layer as a plan runs it: fused layers together."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Self

from demitasse.plan.plan import Plan

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up the time of what a plan runs while in its ``with`` block.

    The device is waited for after each layer. Copies that a layer's input needs count for it.

    Args:
        plan: The plan.
        synchronize: Waits until the device is done.

    Attributes:
        forward: Seconds of each layer; those of layers that run as one stand at the first of them.
        backward: The same of the gradients.
    """

    def __init__(self, plan: Plan, synchronize: Callable[[], None]) -> None:
        self._plan, self._synchronize = plan, synchronize
        self.forward = [0.0] * len(plan.entries)
        self.backward = [0.0] * len(plan.entries)
        self._since = 0.0

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._plan.watch = self
        return self

    def __exit__(self, *error: object) -> None:
        """Stop watching."""
        self._plan.watch = None

    def begin(self) -> None:
        """Note that a pass begins."""
        self._synchronize()
        self._since = perf_counter()

    def ran(self, layer: int, *, backward: bool) -> None:
        """Note that a layer, and those that run as one with it, have run."""
        self._synchronize()
        now = perf_counter()
        (self.backward if backward else self.forward)[layer] += now - self._since
        self._since = now
