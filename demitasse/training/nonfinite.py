"""Losses and weights that are NaN or infinite: what first went wrong, and whether to go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from demitasse.blob import Blob
from demitasse.core.log import get_logger, number
from demitasse.errors import ErrorCode, NetError
from demitasse.net import Net
from demitasse.training.distributed import WorkerGroup

__all__ = ["Nonfinite", "OnNonfinite"]

log = get_logger(__name__)

OnNonfinite = Literal["warn", "stop"]

Found = tuple[int, str, int]
"""What first went wrong in a net: the number of its layer, its name, and the net's shard."""


class Nonfinite:
    """Warns of the first such loss of a run and of such weights, or ends the run.

    Args:
        action: "warn", or "stop" with an error.

    Attributes:
        stops: Whether they end the run.
    """

    def __init__(self, action: OnNonfinite) -> None:
        self.stops, self._warned = action == "stop", False

    def forget(self) -> None:
        """Warn again, as in a new run."""
        self._warned = False

    def check(self, loss: float, net: Net, team: WorkerGroup, iteration: int, rate: float) -> None:
        """Look at the loss of an iteration; all processes of a run do, which have the same.

        Args:
            loss: The loss.
            net: The net that has it.
            team: Who trains.
            iteration: The iteration.
            rate: The last learning rate.

        Raises:
            NetError: It is NaN or infinite, and this is to end the run.
        """
        if math.isfinite(loss) or (self._warned and not self.stops):
            return
        message = (
            f"the loss is {loss} at iteration {iteration}; what first went wrong is "
            f"{_first_of_all(net, team)} (the last learning rate was {number(rate)}; try a "
            "smaller one, or clip_gradients)"
        )
        if self.stops:
            raise NetError(message, code=ErrorCode.NOT_FINITE, iteration=iteration, got=loss)
        log.warning(message)
        self._warned = True

    def check_weights(self, net: Net, iteration: int) -> None:
        """Look at the weights before they are written: a loss may be finite without them.

        MAX pooling may turn NaN into a number.

        Args:
            net: The net that has them.
            iteration: The iteration.

        Raises:
            NetError: Some are NaN or infinite, and this is to end the run.
        """
        places = (parameter for i in range(len(net.layers)) for parameter in _parameters(net, i))
        place = next(places, None)
        if place is None:
            return
        message = f"{place} is NaN or infinite in part at iteration {iteration}"
        if self.stops:
            message += "; nothing is written. on_nonfinite 'warn' writes all the same"
            raise NetError(message, code=ErrorCode.NOT_FINITE, iteration=iteration)
        log.warning("%s, and is written all the same", message)


def _first_of_all(net: Net, team: WorkerGroup) -> str:
    """Say what first holds NaN or infinity, in forward order, in the net of any shard."""

    def own() -> list[Found]:
        nets = enumerate((net, *team.other_nets))
        found = ((_first(one), team.rank + i * team.size) for i, one in nets)
        return [(*first, shard) for first, shard in found if first is not None]

    everywhere = [one for each in team.allgather(own) for one in each]
    if not everywhere:
        return "nothing that is left of the pass"
    _, place, shard = min(everywhere, key=lambda found: (found[0], found[2]))
    return place if team.is_single else f"{place}, of shard {shard}"


def _first(net: Net) -> tuple[int, str] | None:
    """Find the parameter or top of a net that first holds NaN or infinity: its layer and name."""
    for index, layer in enumerate(net.layers):
        for parameter in _parameters(net, index):
            return index, parameter
        place = f"layer {layer.name!r} ({layer.type})"
        for top in net.structure.top_ids(index):
            if not _finite(net.structure.blob_list[top]):
                return index, f"top {net.blob_names[top]!r} of {place}"
    return None


def _parameters(net: Net, index: int) -> Iterator[str]:
    """Yield the parameters of a layer that hold NaN or infinity."""
    layer = net.layers[index]
    for i, blob in enumerate(layer.blobs):
        if not _finite(blob):
            yield f"parameter {i} of layer {layer.name!r} ({layer.type})"


def _finite(blob: Blob) -> bool:
    with np.errstate(all="ignore"):  # a sum of large numbers may be infinite by itself
        return math.isfinite(blob.asum_data()) or bool(np.isfinite(blob.cpu_data()).all())
