"""How weights and gradients are distributed while a solver runs, told to its loggers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from demitasse.blob import Blob
from demitasse.blob.distribution import distribution
from demitasse.errors import ConfigError, ErrorCode
from demitasse.net import Net
from demitasse.training.solver import Solver

__all__ = ["tell_distributions"]


def tell_distributions(solver: Solver, every: int) -> None:
    """Tell the loggers of a solver every so many iterations of its weights and gradients.

    They get the event ``distributions`` with a histogram of every parameter and of its gradient,
    and the number ``gradient_norm``, the norm of all gradients together. Gradients are those of the
    sum over ``iter_size`` batches, before they are clipped; of several ranks, the first's.
    Iterations in between cost nothing.

    Args:
        solver: The solver.
        every: Iterations from one time to the next; the first time is at once.

    Raises:
        ConfigError: ``every`` is below 1.
    """
    if every < 1:
        message = f"histograms come every 1 iteration or more, not every {every}"
        raise ConfigError(message, code=ErrorCode.OUT_OF_RANGE, field="every", got=every)

    def tell() -> None:
        found = {name: dict(_about(blob)) for name, blob in _parameters(solver.net)}
        norms = [about["gradients"]["norm"] for about in found.values() if "gradients" in about]
        solver.tell_loggers("distributions", {"parameters": found})
        solver.tell_numbers({"gradient_norm": math.hypot(*norms)})

    def begin() -> None:
        """Listen in this iteration alone: a listener keeps an update from being queued ahead."""
        due, listening = solver.iter % every == 0, tell in solver.on_gradients_ready
        if due and not listening:
            solver.on_gradients_ready.append(tell)
        elif listening and not due:
            solver.on_gradients_ready.remove(tell)

    solver.on_start.append(begin)


def _parameters(net: Net) -> Iterator[tuple[str, Blob]]:
    """Yield parameters as LAYER/INDEX; what several layers share is the first's."""
    seen = set()
    for layer, blobs in net.params.items():
        for index, blob in enumerate(blobs):
            if blob.data_memory.serial not in seen:
                seen.add(blob.data_memory.serial)
                yield f"{layer}/{index}", blob


def _about(blob: Blob) -> Iterator[tuple[str, dict[str, float]]]:
    for what, diff in (("weights", False), ("gradients", True)):
        found = distribution(blob, diff=diff)
        if found is not None:
            yield what, asdict(found)
