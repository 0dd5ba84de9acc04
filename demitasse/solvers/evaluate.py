"""The mean of a net's outputs over some batches, or over every record exactly once.

Source: Caffe, ``Solver::Test`` in ``src/caffe/solver.cpp``; whole epochs are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from demitasse.backends.arrays import Array
from demitasse.errors import ConfigError, ShapeError
from demitasse.layers._data_base import EpochDataLayer
from demitasse.layers.facts import facts_of
from demitasse.log import get_logger
from demitasse.net import Net

__all__ = ["Epoch", "mean_outputs", "passes"]

log = get_logger(__name__)


class Epoch:
    """One pass over the records that a net's data layers read; the last batch may be smaller.

    Args:
        net: The net.

    Raises:
        ConfigError: No layer, or one too many, reads records to an end; names it.
    """

    def __init__(self, net: Net) -> None:
        self._net = net
        self._sources: list[EpochDataLayer] = []
        for index, layer in enumerate(net.layers):
            if isinstance(layer, EpochDataLayer):
                self._sources.append(layer)
            elif not net.structure.bottom_ids(index) and facts_of(layer.type).records:
                message = (
                    f"layer {layer.name!r} ({layer.type}) has no last record, so there is no "
                    "whole epoch; give the number of batches"
                )
                raise ConfigError(message)
        if not self._sources:
            message = "no layer reads records, so there is no epoch; give the number of batches"
            raise ConfigError(message)

    def batches(self) -> Iterator[tuple[int, float]]:
        """Run the net over its records, from the first on.

        Yields:
            After each forward pass, how many records it was for, and the loss.

        Raises:
            ConfigError: Data layers of the net read unequal numbers of records.
        """
        for layer in self._sources:
            layer.begin_epoch()
        ended = False
        while not ended:
            loss = self._net.forward()
            seen = {(layer.batch_records, layer.epoch_ended) for layer in self._sources}
            if len(seen) != 1:
                counts = ", ".join(f"{one.name!r} {one.batch_records}" for one in self._sources)
                message = (
                    "the data layers do not read equally many records in equal batches, so they "
                    f"have no common epoch; in the last batch: {counts}"
                )
                raise ConfigError(message)
            [(records, ended)] = seen
            yield records, loss


def mean_outputs(
    net: Net, batches: int, go_on: Callable[[], bool] = lambda: True
) -> tuple[dict[str, np.ndarray], float]:
    """Run batches through a net and return the mean of every output, and of the loss.

    Sums stay on the device until the end, in double precision.

    Args:
        net: The net, with data layers.
        batches: How many. 0 is a whole epoch: every record once, and each batch counts as much as
            it has records.
        go_on: Asked before each; False ends the run, and what is returned is then of no use.

    Raises:
        ConfigError: A whole epoch is wanted of a net that has none.
        ShapeError: An output changes its shape from one batch to another.
    """
    runs = passes(net, batches)
    sums = _Sums(net, whole_epoch=batches == 0)
    while go_on():
        done = next(runs, None)
        if done is None:
            break
        sums.add(*done)
    return sums.means()


def passes(net: Net, batches: int) -> Iterator[tuple[int, float]]:
    """Run batches through a net; 0 is a whole epoch.

    Yields:
        After each forward pass, how much it counts, and the loss.

    Raises:
        ConfigError: A whole epoch is wanted of a net that has none.
    """
    return Epoch(net).batches() if batches == 0 else _runs(net, batches)


def _runs(net: Net, batches: int) -> Iterator[tuple[int, float]]:
    for _ in range(batches):
        yield 1, net.forward()


class _Sums:
    """Weighted sums of a net's outputs."""

    def __init__(self, net: Net, whole_epoch: bool) -> None:
        self._net, self._whole_epoch = net, whole_epoch
        self._sums: dict[str, Array] = {}
        self._outputs = list(net.outputs)
        self._loss, self._weight = 0.0, 0

    def add(self, weight: int, loss: float) -> None:
        """Add what the net holds now, so many times."""
        self._loss += weight * loss
        self._weight += weight
        backend = self._net.device.backend
        widest = backend.dtype("float64" if backend.has_float64 else "float32")
        with backend.enter():
            for name in list(self._outputs):
                value = self._net.blob_by_name(name).read()
                part = backend.xp.astype(value, widest) * weight  # a copy, whatever the dtype
                total = self._sums.get(name)
                if total is None:
                    self._sums[name] = part
                elif total.shape == part.shape:
                    self._sums[name] = total + part
                else:
                    self._changed(name, total.shape, part.shape)

    def _changed(self, name: str, before: tuple[int, ...], now: tuple[int, ...]) -> None:
        """Refuse, or leave out of an epoch, what has no mean."""
        message = f"output {name!r} changed from {before} to {now} between batches"
        if not self._whole_epoch:
            raise ShapeError(message)
        log.warning("%s, so there is no mean of it.", message.capitalize())
        self._outputs.remove(name)
        del self._sums[name]

    def means(self) -> tuple[dict[str, np.ndarray], float]:
        """Return the mean of each output, in the net's dtype, and of the loss."""
        weight = self._weight or 1
        to_host = self._net.device.backend.to_host
        means = {
            name: np.asarray(to_host(total) / weight).astype(self._net.dtype)
            for name, total in self._sums.items()
        }
        return means, self._loss / weight
