"""Check for losses and weights that are NaN or infinite, and search for their first blob."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from demitasse.core.deprecated import warn_once
from demitasse.core.log import get_logger, number
from demitasse.errors import ConfigError, ErrorCode, NetError
from demitasse.net import Net

if TYPE_CHECKING:
    from demitasse.training.context import TrainingContext

log = get_logger(__name__)

OnNonfinite = Literal["warn", "raise"]


class NonfiniteCheck:
    """Warns of the first loss and of weights that are NaN or infinite, or raises an error."""

    def __init__(self, action: OnNonfinite | str) -> None:
        if action == "stop":
            warn_once('on_nonfinite="stop"', 'on_nonfinite="raise"', stacklevel=5)
            action = "raise"
        if action not in {"warn", "raise"}:
            message = f"got on_nonfinite {action!r}, expected 'warn' or 'raise'"
            raise ConfigError(message, code=ErrorCode.INVALID, field="on_nonfinite", got=action)
        self.raises, self._warned = action == "raise", False

    def reset(self) -> None:
        """Warn again, as in a new run."""
        self._warned = False

    def check_loss(self, loss: float, run: TrainingContext, iteration: int, rate: float) -> None:
        """Check the loss of an iteration, the same in all processes of a run (NetError).

        The message names the first value of the run's nets that is not finite, and the last rate.
        """
        if math.isfinite(loss) or (self._warned and not self.raises):
            return
        hint = f"the last learning rate was {number(rate)}; try a smaller one, or clip_gradients"
        message = (
            f"the loss is {loss} at iteration {iteration}; the first values that are not finite "
            f"are in {_first_place(run)}{'' if math.isnan(rate) else f' ({hint})'}"
        )
        if self.raises:
            raise NetError(message, code=ErrorCode.NOT_FINITE, iteration=iteration, got=loss)
        log.warning(message)
        self._warned = True

    def check_weights(self, net: Net, iteration: int) -> None:
        """Check the weights before they are written (NetError).

        The loss may be finite all the same: MAX pooling, for example, may drop NaN.
        """
        first = next(_nonfinite_blobs(net, tops=False), None)
        if first is None:
            return
        message = f"{first[1]} has values that are NaN or infinite at iteration {iteration}"
        if self.raises:
            message += "; nothing is written. on_nonfinite 'warn' writes the weights anyway"
            raise NetError(message, code=ErrorCode.NOT_FINITE, iteration=iteration)
        log.warning("%s, and is written anyway", message)


def _first_place(run: TrainingContext) -> str:
    """Return the first blob that is not finite, in forward order, in the net of any shard."""
    team = run.team

    def own() -> list[tuple[int, int, str]]:
        """Return for each shard the number of the layer, the shard and the blob."""
        places = []
        for index, net in enumerate(run.team.nets):
            if (first := next(_nonfinite_blobs(net), None)) is not None:
                places.append((first[0], team.rank + index * team.size, first[1]))
        return places

    everywhere = [place for places in team.allgather(own) for place in places]
    if not everywhere:
        return "no blob that is left of the pass"
    _, shard, name = min(everywhere)
    return name if team.is_single else f"{name}, of shard {shard}"


def _nonfinite_blobs(net: Net, *, tops: bool = True) -> Iterator[tuple[int, str]]:
    """Yield layer and name of each parameter, and top, that is not finite."""
    for index, at in enumerate(net.structure.bindings()):
        blobs = [(f"parameter {i}", blob) for i, blob in enumerate(at.layer.blobs)]
        if tops:
            blobs += [(f"top {blob.name!r}", blob) for blob in at.top]
        for name, blob in blobs:
            with np.errstate(all="ignore"):  # the sum of large numbers may be infinite
                total = blob.asum_data()
            if not math.isfinite(total) and not np.isfinite(blob.cpu_data()).all():
                yield index, f"{name} of {at.label}"
