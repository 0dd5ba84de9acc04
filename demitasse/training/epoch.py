"""Batches to test a net with: so many of them, or one pass over every record.

Whole epochs are ours; Caffe counts batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from demitasse.errors import ConfigError, ErrorCode
from demitasse.layers.data_layers.base import EpochDataLayer
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net

__all__ = ["Epoch", "passes"]


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
            elif not net.structure.bottom_ids(index) and layer_metadata(layer.type).records:
                message = (
                    f"layer {layer.name!r} ({layer.type}) has no last record, so there is no "
                    "whole epoch; give the number of batches"
                )
                raise ConfigError(message, code=ErrorCode.UNSUPPORTED, layer=layer.name)
        if not self._sources:
            message = "no layer reads records, so there is no epoch; give the number of batches"
            raise ConfigError(message, code=ErrorCode.UNSUPPORTED)

    def batches(self) -> Iterator[tuple[int, float]]:
        """Run the net over its records, from the first on.

        Yields:
            After each forward pass, how many records it was for, and the loss.

        Raises:
            ConfigError: Data layers of the net read unequal numbers of records.
        """
        self.begin()
        ended = False
        while not ended:
            loss = self._net.forward()
            records, ended = self.seen()
            yield records, loss

    def begin(self) -> None:
        """Go back to the first record."""
        for layer in self._sources:
            layer.begin_epoch()

    def seen(self) -> tuple[int, bool]:
        """Return how many records the last batch had, and whether the last of all was among them.

        Raises:
            ConfigError: Data layers of the net have read unequal numbers of records.
        """
        seen = {(layer.batch_records, layer.epoch_ended) for layer in self._sources}
        if len(seen) != 1:
            counts = ", ".join(f"{one.name!r} {one.batch_records}" for one in self._sources)
            message = (
                "the data layers do not read equally many records in equal batches, so they "
                f"have no common epoch; in the last batch: {counts}"
            )
            raise ConfigError(
                message, code=ErrorCode.COUNT_MISMATCH, layers=[one.name for one in self._sources]
            )
        return seen.pop()

    @property
    def ended(self) -> bool:
        """Whether the last record of all has been read, or passed over."""
        return any(layer.epoch_ended for layer in self._sources)


def passes(net: Net, batches: int, go_on: Callable[[], bool]) -> Iterator[tuple[int, float]]:
    """Run batches through a net.

    Args:
        net: The net, with data layers.
        batches: How many. 0 is a whole epoch: every record once, and each batch counts as much as
            it has records.
        go_on: Asked before each, and after the last; False ends the run.

    Yields:
        After each forward pass, how much it counts, and the loss.

    Raises:
        ConfigError: A whole epoch is wanted of a net that has none.
    """
    runs = Epoch(net).batches() if batches == 0 else _runs(net, batches)
    while go_on():
        done = next(runs, None)
        if done is None:
            return
        yield done


def _runs(net: Net, batches: int) -> Iterator[tuple[int, float]]:
    for _ in range(batches):
        yield 1, net.forward()
