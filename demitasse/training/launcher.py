"""Iterations of a device that queues its work: queued piece by piece, or launched as one."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.backends.arrays import Array
from demitasse.backends.recording import PreparedUpdate, Recorder
from demitasse.memory import SyncedMemory
from demitasse.net.launching import Launching, Work
from demitasse.net.loss import Loss
from demitasse.training.run import Run

__all__ = ["Launch", "Launcher"]

Launch = Callable[[float, int], Loss]
"""Queues what is left of an iteration, for a learning rate and the number of updates made so far.

The update is guarded by the loss: where that is NaN or infinite nothing is changed.
"""


class Launcher:
    """Queues the iterations of a run.

    Where the device can, the passes and the update are recorded, and from then on launched as one.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._launching = Launching(run.net, "iterations")
        self._loss: Array | None = None
        self._update: PreparedUpdate | None = None

    def begin(self) -> Launch:
        """Bring the next batch, and all of the passes that is not recorded; return the rest."""
        run = self._run
        if self._launching.begin(run.param.clip_gradients, run.updater.moved()):
            run.net.queue_sources()
            return self._rest
        loss = run.net.queue_passes()

        def update(rate: float, iteration: int) -> Loss:
            run.updater.apply(run.param, rate, iteration, guard=loss.array)
            return loss

        return update

    def _rest(self, rate: float, iteration: int) -> Loss:
        """Do what comes behind the sources."""
        run = self._run
        net, updater, param = run.net, run.updater, run.param

        def queue() -> None:
            self._loss = net.queue_rest(backward=True)
            updater.apply(param, rate, iteration, guard=self._loss)

        def record(recorder: Recorder) -> None:
            self._loss = net.queue_rest(backward=True)
            self._update = updater.prepare(recorder.updates, param, rate, iteration, self._loss)
            self._update.queue()

        def renew() -> None:
            if self._update is not None:
                self._update.write(updater.updates(param, rate, iteration))

        self._launching.run(Work(queue, record, self._memories, renew, net.clear_param_diffs))
        return net.played(self._loss)

    def _memories(self) -> list[SyncedMemory]:
        return [*self._run.net.memories(), *self._run.updater.history.memories]
