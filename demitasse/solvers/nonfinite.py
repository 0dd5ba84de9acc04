"""Losses that are NaN or infinite: what first went wrong, and whether to go on."""

from __future__ import annotations

import math
from typing import Literal

from demitasse.blob import Blob
from demitasse.errors import NetError
from demitasse.log import get_logger, number
from demitasse.net import Net

__all__ = ["NonfiniteLosses", "OnNonfinite"]

log = get_logger(__name__)

OnNonfinite = Literal["warn", "stop"]


class NonfiniteLosses:
    """Warns of the first such loss of a run, or ends the run.

    Args:
        action: "warn", or "stop" with an error.
    """

    def __init__(self, action: OnNonfinite) -> None:
        self._action, self._warned = action, False

    def forget(self) -> None:
        """Warn again, as in a new run."""
        self._warned = False

    def check(self, loss: float, net: Net, iteration: int, rate: float) -> None:
        """Look at the loss of an iteration.

        Args:
            loss: The loss.
            net: The net that has it.
            iteration: The iteration.
            rate: The last learning rate.

        Raises:
            NetError: It is NaN or infinite, and this is to end the run.
        """
        if math.isfinite(loss):
            return
        message = (
            f"the loss is {loss} at iteration {iteration}; what first went wrong is "
            f"{_first_nonfinite(net)} (the last learning rate was {number(rate)}; try a "
            "smaller one, or clip_gradients)"
        )
        if self._action == "stop":
            raise NetError(message)
        if not self._warned:
            log.warning(message)
        self._warned = True


def _first_nonfinite(net: Net) -> str:
    """Say which parameter or top of a net, in forward order, first holds NaN or infinity."""
    for index, layer in enumerate(net.layers):
        place = f"layer {layer.name!r} ({layer.type})"
        for i, blob in enumerate(layer.blobs):
            if not _finite(blob):
                return f"parameter {i} of {place}"
        for top in net.structure.top_ids(index):
            if not _finite(net.structure.blob_list[top]):
                return f"top {net.blob_names[top]!r} of {place}"
    return "nothing that is left of the pass"


def _finite(blob: Blob) -> bool:
    return math.isfinite(blob.asum_data())
