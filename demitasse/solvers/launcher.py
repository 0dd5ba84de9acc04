"""Iterations of a device that queues its work: queued piece by piece, or launched as one."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.backends.arrays import Array
from demitasse.backends.recording import NotRecorded, PreparedUpdate, Recorder
from demitasse.config import settings
from demitasse.errors import DeviceError
from demitasse.log import get_logger
from demitasse.net.loss import Loss
from demitasse.net.replay import Replay
from demitasse.solvers.run import Run

__all__ = ["Launch", "Launcher"]

log = get_logger(__name__)

WARM = 2
"""How many iterations are queued piece by piece before one is recorded: the first prepares Steps
and compiles kernels, and after the second all memories are where they stay."""

Launch = Callable[[float, int], Loss]
"""Queues what is left of an iteration, for a learning rate and the number of updates made so far.

The update is guarded by the loss: where that is NaN or infinite nothing is changed.
"""


class Launcher:
    """Queues the iterations of a run.

    As long as no blob changes its shape or its memory and no layer works on the host, the passes
    and the update are recorded, and from then on launched as one. What stands in the way is logged
    once.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._key: object = None
        self._seen = 0
        self._failed = False
        self._told: set[str] = set()
        self._replay: Replay | None = None
        self._loss: Array | None = None
        self._update: PreparedUpdate | None = None

    def begin(self) -> Launch:
        """Bring the next batch, and all of the passes that is not recorded; return the rest."""
        net, recorder = self._run.net, self._run.net.device.backend.recorder
        if recorder is None or settings.get_often("graph") == "off":
            return self._queued()
        if self._seen and (why := net.obstacle()):
            self._tell(why)
            self._seen, self._replay = 0, None
            return self._queued()
        key = (
            *(net.changes, net.plan, settings.get_often("tf32")),
            *(self._run.param.clip_gradients, self._run.updater.moved()),
        )
        if key != self._key or (self._replay is not None and not self._replay.intact()):
            self._key, self._seen, self._replay, self._failed = key, 0, None, False
        self._seen += 1
        if self._seen < WARM or self._failed:
            return self._queued()
        changes = net.changes
        net.queue_sources()
        if changes != net.changes:  # a batch of another size
            self._key, self._seen, self._replay = None, 0, None
            return self._rest_alone
        if self._replay is not None:
            return self._play
        queue = self._rehearse if self._seen == WARM else self._record
        return lambda rate, iteration: queue(recorder, rate, iteration)

    def _queued(self) -> Launch:
        loss = self._run.net.queue_passes()

        def update(rate: float, iteration: int) -> Loss:
            self._run.updater.apply(self._run.param, rate, iteration, guard=loss.array)
            return loss

        return update

    def _rehearse(self, recorder: Recorder, rate: float, iteration: int) -> Loss:
        take_back = self._run.net.remember()
        try:
            with recorder.aside():
                self._rest(rate, iteration)
        except DeviceError as why:  # memory for another stream is perhaps not to be had
            take_back()
            return self._give_up(str(why), rate, iteration)
        return self._run.net.played(self._loss)

    def _rest_alone(self, rate: float, iteration: int) -> Loss:
        """Queue piece by piece what comes behind the sources."""
        self._rest(rate, iteration)
        return self._run.net.played(self._loss)

    def _rest(self, rate: float, iteration: int) -> None:
        self._loss = self._run.net.queue_rest()
        self._run.updater.apply(self._run.param, rate, iteration, guard=self._loss)

    def _record(self, recorder: Recorder, rate: float, iteration: int) -> Loss:
        run = self._run

        def work() -> None:
            self._loss = run.net.queue_rest()
            self._update = run.updater.prepare(
                recorder.updates, run.param, rate, iteration, self._loss
            )
            self._update.queue()

        memories = [*run.net.memories(), *run.updater.history.memories]
        try:
            self._replay = Replay(memories, run.net.device.backend, work)
        except NotRecorded as why:
            return self._give_up(str(why), rate, iteration)
        log.debug("From iteration %d on passes and update are launched as one.", iteration)
        return self._play(rate, iteration)

    def _give_up(self, why: str, rate: float, iteration: int) -> Loss:
        """Queue piece by piece, from now on, what the device has not done."""
        self._tell(why)
        self._failed = True
        self._run.net.clear_param_diffs()
        return self._rest_alone(rate, iteration)

    def _play(self, rate: float, iteration: int) -> Loss:
        run = self._run
        if self._replay is not None and self._update is not None:
            self._update.write(run.updater.updates(run.param, rate, iteration))
            self._replay.play()
        return run.net.played(self._loss)

    def _tell(self, why: str) -> None:
        if why not in self._told:
            log.info("Iterations are queued kernel by kernel, not launched as one: %s.", why)
            self._told.add(why)
