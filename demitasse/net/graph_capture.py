"""Graph capture: passes that are queued kernel by kernel at first, and launched as one later.

CUDA graphs are one form of it. Work is captured and launched by ``demitasse.plan.replay``, as long
as no blob changes its shape or its memory and no layer runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from demitasse.backends.arrays import Array
from demitasse.backends.recording import NotRecorded
from demitasse.core.config import settings
from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError
from demitasse.memory import SyncedMemory
from demitasse.memory.transfers import transfer_mode
from demitasse.net.rollback import BlobCopies, nothing
from demitasse.plan import PlannedLayer
from demitasse.plan.replay import Recorded, Replay, record_blocker

if TYPE_CHECKING:
    from demitasse.net.execution import Execution

log = get_logger(__name__)


def count_sources(entries: Sequence[PlannedLayer]) -> int:
    """Return the number of layers at the beginning that only bring data in."""
    firsts = (index for index, entry in enumerate(entries) if entry.binding.bottom)
    return next(firsts, len(entries))


def layer_blocker(entries: Sequence[PlannedLayer]) -> str:
    """Return which layer with a prepared Step prevents a capture, and why; "" for none."""
    first = count_sources(entries)
    for index, entry in enumerate(entries):
        if index < first:
            why = "is a data layer with a loss weight" if entry.layer.loss_weights else ""
        elif not entry.binding.bottom:
            why = "brings in data after other layers"
        elif entry.layer.dynamic_shapes:
            why = "runs on the host, or its shapes depend on values"
        else:
            why = record_blocker(entry, entry.step)
        if why:
            return f"{entry.binding.label} {why}"
    return ""


@dataclass(frozen=True)
class CapturableWork:
    """Work on a net that may be captured.

    Attributes:
        queue: Queues the work kernel by kernel; returns its loss, (), or None.
        record: Queues the work for a capture; returns the loss. A trace gives it ``numbers``.
        numbers: Numbers and arrays that may differ in each launch of a program.
        update_inputs: Copies numbers of the host to the device before a launch.
        clear: Prepares ``queue`` where a launch was expected, or could not do all of the work.
    """

    queue: Callable[[], Array | None]
    record: Callable[..., Array | None]
    numbers: tuple[Any, ...] = ()
    update_inputs: Callable[[], None] = nothing
    clear: Callable[[], None] = nothing


class GraphCapture:
    """One kind of work on a net: warm-up runs, the captured graph, and obstacles to a capture.

    The first part of a captured graph copies the state that the work changes, for a rollback.
    ``what`` names the work in messages; ``memories`` returns all memories that it may use.
    """

    def __init__(
        self, execution: Execution, what: str, memories: Callable[[], Sequence[SyncedMemory]]
    ) -> None:
        self._execution, self._what, self._memories = execution, what, memories
        self._logged: set[str] = set()
        self._captured: tuple[Recorded, BlobCopies] | None = None
        self._loss: Array | None = None
        self._new = True
        self._restart()

    def ready(self, *more: Hashable) -> bool:
        """Return whether the work is to be done by ``run`` this time; else it is to be queued.

        Before ``run``, the caller runs the layers that only bring data in. The captured work
        depends on ``more``, besides net, shapes and memories.
        """
        execution = self._execution
        backend = execution.device.backend
        recorder = backend.recorder
        off = settings.get_often("cuda_graphs") == "off" or transfer_mode() != "allow"
        if off or recorder is None:
            self._restart()
            return False
        key = (execution.passes.changes, execution.passes.plan, recorder.key(), backend, *more)
        replay = self._replay
        intact = self._captured is None or self._captured[0].guard.matches()
        if replay is not None and key == replay.warm_up.key and intact:
            why = execution.passes.capture_blocker()
            if not why:
                return not self._failed
            self._log(why)
        replay = Replay(
            execution.passes.plan.entries, recorder, self._memories,
            volatile=execution.volatile, key=key,
        )  # fmt: skip
        # single operations take long to compile, so the first work is traced at once; layers of
        # users run before their trace, since they may prepare something in their first pass
        layers = [e.layer for e in execution.passes.plan.entries[execution.passes.sources :]]
        traceable = all(vars(type(layer)).get("traceable") for layer in layers)
        new, self._new = self._new and not backend.mutable, False
        at_once = new and traceable and not execution.passes.capture_blocker()
        self._restart(replay, 0 if at_once else 1)
        return at_once

    @property
    def repeats(self) -> bool:
        """True if all memories but inputs and outputs are as the last launch has left them."""
        return self._captured is not None and self._captured[0].guard.unchanged

    def run(self, work: CapturableWork) -> Array | None:
        """Run, capture or launch the work; return its loss.

        Shape: () on the device; a launch of a graph overwrites that of the launch before.
        """
        with self._execution.device.backend.enter():
            return self._run(work)

    def _run(self, work: CapturableWork) -> Array | None:
        replay = self._replay
        changed = self._changes != self._execution.passes.changes  # data of another size
        if replay is None or changed:
            self._restart()
            work.clear()
            return work.queue()
        if 0 < replay.warm_up.runs < replay.warm_up.needed:
            loss = work.queue()
            replay.warm_up.count()
            return loss
        try:
            if not replay.warm_up.done:
                self._rehearse(work, replay)
            self._captured = self._captured or self._capture(work, replay)
        except (NotRecorded, DeviceError) as why:
            self._failed = True
            self._log(str(why))
            work.clear()
            return work.queue()
        return self._launch(work, replay, *self._captured)

    def _restart(self, replay: Replay | None = None, runs: int = 0) -> None:
        """Discard what was captured; the caller queues the first ``runs`` for another replay."""
        self._replay, self._changes, self._failed = replay, self._execution.passes.changes, False
        self._captured = None
        if replay is not None:
            replay.warm_up.runs = runs

    def _rehearse(self, work: CapturableWork, replay: Replay) -> None:
        """Trace the first work in place of its runs for warm-up."""
        passes = self._execution.passes
        diffs = [b.diff_memory for entry in passes.plan.entries for b in entry.layer.blobs]
        cleared = [memory for memory in diffs if memory.cleared]
        passes.stateful_blobs.before_pass(0, passes.last)
        replay.rehearse(partial(self._trace, work), self._numbers(work))
        for memory in cleared:
            memory.clear()

    def _trace(self, work: CapturableWork, *numbers: Any) -> Array | None:
        """Queue the work for a trace, with the number of the pass and the numbers of the work."""
        counter = self._execution.pass_counter
        passes, counter.passes = counter.passes, numbers[0]
        try:
            return work.record(*numbers[1:])
        finally:
            counter.passes = passes

    def _capture(self, work: CapturableWork, replay: Replay) -> tuple[Recorded, BlobCopies]:
        execution = self._execution
        roll_back, copies = execution.savepoint(), execution.passes.stateful_blobs.reserve()

        def record(*numbers: Any) -> Array | None:
            if numbers:
                return self._trace(work, *numbers)
            copies.make()
            self._loss = work.record()
            return self._loss

        try:
            recorded = replay.record(record, self._numbers(work))
        except (NotRecorded, DeviceError):
            roll_back()
            raise
        execution.passes.plan.recordings.add(recorded.recording)
        log.debug("From now on %s are launched as one.", self._what)
        return recorded, copies

    def _launch(
        self, work: CapturableWork, replay: Replay, recorded: Recorded, copies: BlobCopies
    ) -> Array | None:
        execution = self._execution
        work.update_inputs()
        execution.passes.stateful_blobs.before_replay(copies)
        numbers = self._numbers(work)
        if numbers:
            copies.make()
        with Uninterrupted():
            try:
                loss = replay.play(recorded, *numbers)
            except BaseException:
                execution.passes.gradients_valid = False  # heads are those after the launch
                recorded.guard.forget()
                raise
            execution.passes.stateful_blobs.assign(copies)
        return loss if numbers else self._loss

    def _numbers(self, work: CapturableWork) -> tuple[Any, ...]:
        """Return the arguments of a program: the number of the pass, and those of the work."""
        if self._execution.device.backend.mutable:
            return ()
        return self._execution.pass_counter.passes, *work.numbers

    def _log(self, why: str) -> None:
        if why not in self._logged:
            text = "%s are queued kernel by kernel, not launched as one: %s."
            log.info(text, self._what.capitalize(), why)
            self._logged.add(why)
