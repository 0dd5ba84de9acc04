"""The parts of a training run, which a solver makes once and its helpers share."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from demitasse.errors import ConfigError, ErrorCode
from demitasse.io.proto import SolverParameter
from demitasse.net import Net
from demitasse.training.distributed import WorkerGroup
from demitasse.training.monitor import MetricMonitor
from demitasse.training.nonfinite import NonfiniteCheck
from demitasse.training.report import TrainReport
from demitasse.training.updater import Updater

Request = Literal["stop", "snapshot"]


class Requests:
    """Queue of requests to a running solver; safe in signal handlers."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()
        self._last: Request | None = None

    def add(self, action: Request | None) -> None:
        """Add a request, unless an equal one is in the queue; None clears the queue."""
        if action is None:
            self._queue.clear()
        elif action in {"stop", "snapshot"}:
            if action not in self._queue:
                self._queue.append(action)
        else:
            message = f"got request {action!r}, expected 'stop', 'snapshot' or None"
            raise ConfigError(message, code=ErrorCode.UNKNOWN, field="action", got=action)

    def next(self) -> Request | None:
        """Remove and return the first request; None if the queue is empty."""
        self._last = self._queue.popleft() if self._queue else None
        return self._last

    @property
    def pending(self) -> list[Request]:
        """Requests in the queue, and the last one removed, which may be in progress."""
        return [*([self._last] if self._last else []), *self._queue]


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """The parts of a training run."""

    param: SolverParameter
    net: Net
    test_nets: Sequence[Net]  # they share the weights of ``net``
    updater: Updater
    report: TrainReport
    monitor: MetricMonitor
    nonfinite: NonfiniteCheck
    team: WorkerGroup
    rank: int = 0  # of this solver among the data-parallel solvers, or its first shard
    world_size: int = 1  # number of solvers or shards

    @property
    def is_root(self) -> bool:
        """True if this solver tests and writes snapshots."""
        return self.rank == 0

    def named_nets(self) -> Iterator[tuple[str, Net]]:
        """Yield all nets with their names in states: "train", "test 0", ..."""
        yield "train", self.net
        for index, net in enumerate(self.test_nets):
            yield f"test {index}", net
