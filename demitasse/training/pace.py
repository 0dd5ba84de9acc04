"""How fast a run goes, and how much of its time it waits for data."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from demitasse.layers.data_layers.base import PrefetchingDataLayer
from demitasse.net import Net

__all__ = ["Measured", "Pace", "images_of_a_pass"]


@dataclass(frozen=True)
class Measured:
    """What a stretch of a run took.

    Attributes:
        iterations: How many there were.
        seconds: What they took.
        waited: Seconds of these in which there was no batch; None where nothing is read ahead.
    """

    iterations: int
    seconds: float
    waited: float | None

    @property
    def iterations_per_second(self) -> float:
        """Speed, 0 where no iteration was made."""
        return self.iterations / (self.seconds or 1)

    def rates(self, images: int) -> dict[str, float]:
        """Return the numbers that loggers are told; nothing where no iteration was made.

        Args:
            images: Images of an iteration, on all ranks; 0 where that is not known.
        """
        if not self.iterations:
            return {}
        values = {"iterations_per_second": self.iterations_per_second}
        if images:
            values["images_per_second"] = images * self.iterations_per_second
        if self.waited is not None:
            values["data_wait"] = min(1.0, self.waited / (self.seconds or 1))
        return values


class Pace:
    """The clock of a run."""

    def __init__(self) -> None:
        self._since, self._first, self._waited = perf_counter(), 0, 0.0

    def start(self, net: Net, iteration: int) -> None:
        """Measure from here on."""
        self._since, self._first, self._waited = perf_counter(), iteration, _waited(net) or 0.0

    def measure(self, net: Net, iteration: int) -> Measured:
        """Return what the run took since the start."""
        waited = _waited(net)
        if waited is not None:  # a source that was opened again counts from 0
            waited = max(0.0, waited - self._waited)
        return Measured(iteration - self._first, perf_counter() - self._since, waited)


def images_of_a_pass(net: Net) -> int:
    """Return the first axis of the first blob that comes from outside; 0 where there is none."""
    structure = net.structure
    first = next((node.tops[0] for node in structure.graph.nodes if not node.bottoms), None)
    shape = () if first is None else structure.blob_list[first].shape
    return shape[0] if shape else 0


def _waited(net: Net) -> float | None:
    """Return the seconds that a net has waited for batches; None where nothing is read ahead."""
    times = [layer.waited for layer in net.layers if isinstance(layer, PrefetchingDataLayer)]
    return sum(times) if times else None
