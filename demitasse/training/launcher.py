"""Iterations of a device that queues its work: queued piece by piece, or launched as one."""

from __future__ import annotations

from collections.abc import Callable

from demitasse.backends.arrays import Array
from demitasse.backends.recording import PreparedUpdate, Recorder
from demitasse.memory import SyncedMemory
from demitasse.net.execution import Loss
from demitasse.net.graph_capture import CapturableWork, GraphCapture
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
        self._capture = GraphCapture(run.net.execution, "iterations")
        self._loss: Array | None = None
        self._update: PreparedUpdate | None = None

    def begin(self) -> Launch:
        """Bring the next batch, and all of the passes that is not recorded; return the rest."""
        run = self._run
        if self._capture.ready(run.param.clip_gradients, run.updater.moved()):
            run.net.execution.queue_sources()
            return self._rest
        loss = run.net.execution.queue_passes()

        def update(rate: float, iteration: int) -> Loss:
            run.updater.apply(run.param, rate, iteration, guard=loss.array)
            return loss

        return update

    def _rest(self, rate: float, iteration: int) -> Loss:
        """Do what comes behind the sources."""
        run = self._run
        net, updater, param = run.net, run.updater, run.param

        def queue() -> None:
            self._loss = net.execution.queue_rest(backward=True)
            updater.apply(param, rate, iteration, guard=self._loss)

        def record(recorder: Recorder) -> None:
            self._loss = net.execution.queue_rest(backward=True)
            self._update = updater.prepare(recorder.updates, param, rate, iteration, self._loss)
            self._update.queue()

        def update_inputs() -> None:
            if self._update is not None:
                self._update.write(updater.updates(param, rate, iteration))

        self._capture.run(
            CapturableWork(queue, record, self._memories, update_inputs, net.clear_param_diffs)
        )
        return net.execution.finish_pass(self._loss)

    def _memories(self) -> list[SyncedMemory]:
        return [*self._run.net.execution.memories(), *self._run.updater.history.memories]
