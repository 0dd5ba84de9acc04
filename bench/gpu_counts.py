"""What an iteration asks of a GPU: launches, matrix products, new arrays; queued and recorded."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import gpu_nets

from demitasse.core.config import settings
from demitasse.core.device import Device

__all__ = ["Counted", "requests"]

WARM = 5
"""Iterations before those that are counted; the third is recorded."""

ACCUMULATED = 2
"""Batches to an update, where there are several."""

METHODS = {"empty": "arrays", "asarray": "arrays", "put": "copies", "multiply": "products"}


class Counted:
    """Counts what is asked of a device's engine, from now on.

    Attributes:
        counts: How many "launches" of kernels, "products" and new "arrays" of the engine's own,
            "copies" of numbers, "recordings" that were played and "allocations" of cupy.
    """

    def __init__(self, device: Device) -> None:
        self.counts: Counter[str] = Counter()
        engine, recorder = device.backend.engine, device.backend.recorder
        make, record = engine.function, recorder.record

        def function(*args: Any) -> Any:
            return self._counted(make(*args), "launches")

        def recorded(work: Any) -> Any:
            recording = record(work)
            return Played(self._counted(recording.play, "recordings"), recording)

        engine.function, recorder.record = function, recorded
        for name, what in METHODS.items():
            setattr(engine, name, self._counted(getattr(engine, name), what))

    def _counted(self, method: Any, what: str) -> Any:
        def call(*args: Any) -> Any:
            self.counts[what] += 1
            return method(*args)

        return call


class Played:
    """A recording whose plays are counted."""

    def __init__(self, play: Any, recording: Any) -> None:
        self.play, self._recording = play, recording


@contextmanager
def allocations(counts: Counter[str]) -> Iterator[None]:
    """Count what is asked of cupy's memory within the block; nothing where there is no cupy."""
    try:
        hooks = import_module("cupy.cuda.memory_hook")
    except ImportError:
        yield
        return

    class Hook(hooks.MemoryHook):
        def malloc_preprocess(self, **asked: int) -> None:
            counts["allocations"] += 1

    with Hook():
        yield


def requests(device: Device, dry: bool) -> dict[str, Any]:
    """Count for one iteration of each net, queued piece by piece and launched as one."""
    found: dict[str, Any] = {}
    counted = Counted(device)
    for name, batch, scale in (*gpu_nets.cases(dry), ("residual", 2, 1)):
        for batches in (1, ACCUMULATED):
            several = f", {batches} batches to an update" if batches > 1 else ""
            row = found[f"{name} {batch}{several}"] = {}
            for way, graph in (("queued", "off"), ("recorded", "auto")):
                with settings.override(cuda_graphs=graph):
                    solver = gpu_nets.solver_of(name, device, batch, scale, iter_size=batches)
                    solver.step(WARM)
                    counted.counts.clear()
                    with allocations(counted.counts):
                        solver.step(1)
                row[way] = dict(counted.counts)
    return found
