"""The mean of a net's outputs over batches, told batch by batch as Caffe tells it.

Source: Caffe, ``tools/caffe.cpp`` (``test``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from demitasse.core.log import get_logger, number
from demitasse.net import Net
from demitasse.training import Epoch

__all__ = ["Scores"]

log = get_logger(__name__)


class Scores:
    """Sums of a net's outputs, each batch counting as many times as it has records.

    Attributes:
        batches: How many have been run.
        weight: Sum of their weights.
    """

    def __init__(self) -> None:
        self.batches, self.weight, self._loss = 0, 0.0, 0.0
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, float] = {}

    def run(self, net: Net, batches: int | None) -> None:
        """Run batches through a net and add up what comes out.

        Args:
            net: The net.
            batches: How many; None is an epoch, in which every record counts once.

        Raises:
            ConfigError: An epoch is wanted of a net that has none.
        """
        self._weights = dict(zip(net.blob_names, net.structure.blob_loss_weights, strict=True))
        for weight, loss in Epoch(net).batches() if batches is None else _batches(net, batches):
            self._loss += weight * loss
            for name in net.outputs:
                self._add(name, net.blob_by_name(name).cpu_data(), weight)
            self.batches += 1
            self.weight += weight

    def _add(self, name: str, values: np.ndarray, weight: float) -> None:
        for value in values.reshape(-1).tolist():
            log.info("Batch %d, %s = %s", self.batches, name, number(value))
        part = weight * values.astype(np.float64)
        if not self.batches:
            self._sums[name] = part
        elif name in self._sums and self._sums[name].shape == part.shape:
            self._sums[name] += part
        elif self._sums.pop(name, None) is not None:
            log.warning("Output %s changes its shape, so there is no mean of it", name)

    @property
    def loss(self) -> float:
        """Mean of the loss."""
        return self._loss / self.weight

    def means(self) -> dict[str, np.ndarray]:
        """Return the mean of every output whose shape stayed the same."""
        return {name: total / self.weight for name, total in self._sums.items()}

    def tell(self) -> None:
        """Log the means as Caffe does, with what each contributes to the loss."""
        log.info("Loss: %s", number(self.loss))
        for name, mean in self.means().items():
            loss_weight = self._weights[name]
            for value in mean.reshape(-1).tolist():
                share = f"{number(loss_weight)} = {number(loss_weight * value)} loss"
                note = f" (* {share})" if loss_weight else ""
                log.info("%s = %s%s", name, number(value), note)

    def as_dict(self) -> dict[str, Any]:
        """Return the means for JSON: plain numbers for outputs of one value."""
        outputs = {name: mean.tolist() for name, mean in self.means().items()}
        return {"batches": self.batches, "loss": self.loss, "outputs": outputs}


def _batches(net: Net, count: int) -> Iterator[tuple[int, float]]:
    for _ in range(count):
        yield 1, net.forward()
