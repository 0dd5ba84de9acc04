"""Who runs the batches of a test: this process, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from demitasse.errors import DataError, ErrorCode
from demitasse.io.data.sources.source import BatchShard
from demitasse.layers import Layer
from demitasse.layers.data_layers.base import PrefetchingDataLayer
from demitasse.layers.metadata import layer_metadata
from demitasse.net import Net
from demitasse.training.distributed import WorkerGroup, first_request
from demitasse.training.epoch import Epoch, passes

__all__ = ["ByItself", "Tester", "Together", "needs_one_process"]

Found = TypeVar("Found")


class Tester(Protocol):
    """Runs the batches of a test.

    Attributes:
        several: Whether several processes do, so that what is found has to travel.
    """

    several: bool

    def run(
        self, net: Net, batches: int, look: Callable[[int], Found]
    ) -> Iterator[tuple[int, float, Found]]:
        """Run batches, in their order.

        Args:
            net: The net, with data layers.
            batches: How many; 0 is a whole epoch, where each batch counts as much as it has
                records.
            look: Called after each with how much it counts; returns what is wanted of the net.

        Yields:
            For each batch how much it counts, the loss, and what ``look`` has found.

        Raises:
            ConfigError: A whole epoch is wanted of a net that has none.
        """


class ByItself:
    """This process.

    Args:
        go_on: Asked before each batch, and after the last; False ends the test.
    """

    several = False

    def __init__(self, go_on: Callable[[], bool] = lambda: True) -> None:
        self._go_on = go_on

    def run(
        self, net: Net, batches: int, look: Callable[[int], Found]
    ) -> Iterator[tuple[int, float, Found]]:
        """Run batches one after the other."""
        for weight, loss in passes(net, batches, self._go_on):
            yield weight, loss, look(weight)


@dataclass(frozen=True)
class _Round(Generic[Found]):
    """What one process has done of as many batches as there are processes.

    Attributes:
        asked: What it is asked for: to stop, to write a snapshot, or nothing.
        found: By the number of each batch how much it counts, its loss, and what was found.
        done: Batches up to and including these, of all processes.
        ended: Whether they were the last.
    """

    asked: str | None
    found: dict[int, tuple[int, float, Found]]
    done: int
    ended: bool


class Together:
    """All processes of a run, which take turns.

    What they find is told after as many batches as there are processes, and comes in the order of
    the batches: whoever adds it up has the bits of a single process.

    Args:
        team: The processes.
        asked: Returns what this process is asked for; it is agreed on.
        go_on: Told how many batches are done and what any process is asked for, before the first
            batch and then whenever all have told; False ends the test.
    """

    several = True

    def __init__(
        self,
        team: WorkerGroup,
        asked: Callable[[], str | None],
        go_on: Callable[[int, str | None], bool],
    ) -> None:
        self._team, self._asked, self._go_on = team, asked, go_on

    def run(
        self, net: Net, batches: int, look: Callable[[int], Found]
    ) -> Iterator[tuple[int, float, Found]]:
        """Run batches, as many at a time as there are processes."""
        sources = _sources(net)
        first = self._team.broadcast_object([layer.state() for layer in sources])
        for layer, state in zip(sources, first, strict=True):
            if layer.state() != state:
                layer.set_state(state)
            layer.set_batch_shard(BatchShard(self._team.rank, self._team.size))
        epoch = Epoch(net) if batches == 0 else None
        if epoch is not None:
            epoch.begin()
        done, ended = 0, False
        asked: str | None = None
        while self._go_on(done, asked) and not ended:
            begun = done
            work = partial(self._round, net, sources, begun, batches, epoch, look)
            rounds = self._team.allgather(work)
            done, ended = rounds[0].done, rounds[0].ended
            asked = first_request(one.asked for one in rounds)
            found = {number: one for each in rounds for number, one in each.found.items()}
            if sorted(found) != list(range(begun, done)) or {one.done for one in rounds} != {done}:
                message = (
                    "the processes do not read the same records to test with; do their data "
                    "layers have the same sources?"
                )
                raise DataError(message, code=ErrorCode.INCOMPATIBLE)
            for number in range(begun, done):
                yield found[number]

    def _round(
        self,
        net: Net,
        sources: list[PrefetchingDataLayer],
        done: int,
        batches: int,
        epoch: Epoch | None,
        look: Callable[[int], Found],
    ) -> _Round[Found]:
        """Do this process's part of the next batches, and pass over those of others."""
        found: dict[int, tuple[int, float, Found]] = {}
        ended, begun = False, done
        while not ended and done < begun + self._team.size:
            turns = {layer.has_turn() for layer in sources}
            if len(turns) != 1:
                message = "data layers of one net stand at different batches: " + ", ".join(
                    f"{layer.name!r} at record {layer.state()}" for layer in sources
                )
                raise DataError(message, code=ErrorCode.INCOMPATIBLE)
            if turns == {True}:
                loss = net.forward()
                weight = 1 if epoch is None else epoch.seen()[0]
                found[done] = (weight, loss, look(weight))
            else:
                for layer in sources:
                    layer.skip()
            done += 1
            ended = done == batches if epoch is None else epoch.ended
        return _Round(self._asked(), found, done, ended)


def needs_one_process(net: Net) -> str:
    """Say why the batches of a net cannot be shared out among processes; "" where they can."""
    for layer in net.layers:
        why = _why_alone(layer)
        if why:
            return f"layer {layer.name!r} ({layer.type}) {why}"
    sources = _sources(net)
    places = {(layer.batch_size, tuple(layer.state().items())) for layer in sources}
    if len(places) != 1:
        return "its data layers do not read the same records" if sources else "it reads no records"
    return ""


def _why_alone(layer: Layer) -> str:
    if isinstance(layer, PrefetchingDataLayer):
        return "skips broken records" if layer.skips_bad_records else ""
    if layer.type == "HDF5Output":
        return "writes a file"
    if layer.type == "DetectionOutput":
        folder = layer.param.detection_output_param.save_output_param.output_directory
        return "writes files" if folder else ""
    facts = layer_metadata(layer.type)
    if layer.type == "Python" or not facts.known:
        return "may do anything"
    if facts.records or layer.type == "Input":
        return "knows no shard"
    if layer.has_counters or layer.has_state:
        return "carries something from one batch to the next"
    return "draws random numbers" if layer.random_in_test else ""


def _sources(net: Net) -> list[PrefetchingDataLayer]:
    return [layer for layer in net.layers if isinstance(layer, PrefetchingDataLayer)]
