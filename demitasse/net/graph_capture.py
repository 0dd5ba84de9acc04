"""Graph capture: passes that are queued kernel by kernel at first, and launched as one later.

CUDA graphs are one form of it. Work is captured after ``WARMUP_RUNS`` runs, as long as no blob
changes its shape or its memory and no layer runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.backends.recording import NotRecorded, Recorder
from demitasse.core.config import settings
from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError
from demitasse.layers import Layer
from demitasse.memory import SyncedMemory
from demitasse.memory.replay_check import LaunchCheck
from demitasse.memory.transfers import transfer_mode
from demitasse.net.rollback import BlobCopies, nothing
from demitasse.plan import Executed, PlannedLayer
from demitasse.plan.replay import WARMUP_RUNS, WarmUp

if TYPE_CHECKING:
    from demitasse.net.execution import Execution

log = get_logger(__name__)


# -- obstacles to a capture --------------------------------------------------------------------


def count_sources(entries: Sequence[PlannedLayer]) -> int:
    """Return the number of layers at the beginning that only bring data in."""
    firsts = (index for index, entry in enumerate(entries) if entry.binding.bottom)
    return next(firsts, len(entries))


def layer_blocker(entries: Sequence[PlannedLayer]) -> str:
    """Return which layer prevents the capture of passes, and why; "" for none.

    Args:
        entries: Layers whose Steps are prepared.
    """
    first = count_sources(entries)
    for index, entry in enumerate(entries):
        if why := _blocks(entry) if index >= first else _blocks_as_source(entry):
            return f"{entry.binding.label} {why}"
    return ""


def _blocks_as_source(entry: PlannedLayer) -> str:
    return "is a data layer with a loss weight" if entry.layer.loss_weights else ""


def _blocks(entry: PlannedLayer) -> str:
    if not entry.binding.bottom:
        return "brings in data after other layers"
    if entry.layer.dynamic_shapes:
        return "runs on the host, or its shapes depend on values"
    if entry.step is None and not (entry.layer.is_alias or _capturable(entry.layer)):
        return "has no step of this device" + (f" ({entry.why})" if entry.why else "")
    return ""


def _capturable(layer: Layer) -> bool:
    """Return whether the layer's portable code can be captured on this device."""
    return layer.device.backend.records_arrays and bool(vars(type(layer)).get("graph_capturable"))


# -- captured work -----------------------------------------------------------------------------


class GraphReplay:
    """Captured work on memories, which is launched again and again.

    Args:
        memories: All memories that the work may use; the work has run on the device before.
        backend: The backend of the device.
        recorder: Captures the work.
        work: Queues the work.

    Raises:
        NotRecorded: The work cannot be captured.
    """

    def __init__(
        self,
        memories: Sequence[SyncedMemory],
        backend: Backend,
        recorder: Recorder,
        work: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._where: object = None
        self._check = LaunchCheck(memories)
        with recorder.aside():
            self._check.order_after(backend.order_after(None))
        self._recording = recorder.record(work)
        self._check.record_effects()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the captured work needs besides the memories."""
        with self._backend.enter():
            return self._recording.nbytes

    def intact(self) -> bool:
        """Return whether all arrays are in place, and memories cleared that were cleared."""
        return self._check.matches()

    def play(self) -> None:
        """Launch the work."""
        self._check.prepare()
        self._where = self._backend.order_after(self._where)
        self._check.order_after(self._where)
        self._recording.play()
        self._check.apply_effects()


@dataclass(frozen=True)
class CapturableWork:
    """Work on a net that may be captured.

    Attributes:
        queue: Queues the work kernel by kernel.
        record: Queues the work for a capture.
        memories: Returns all memories that the work may use.
        update_inputs: Copies numbers of the host to the device before a launch.
        clear: Prepares another ``queue`` where the device could not do all of the work.
    """

    queue: Callable[[], None]
    record: Callable[[Recorder], None]
    memories: Callable[[], Sequence[SyncedMemory]]
    update_inputs: Callable[[], None] = nothing
    clear: Callable[[], None] = nothing


@dataclass(frozen=True)
class _Captured:
    """Captured work.

    Attributes:
        replay: Launches the work.
        copies: The first part of the work: copies of the state that the work changes.
        steps: The Steps that ran the layers, for a backward pass that follows.
    """

    replay: GraphReplay
    copies: BlobCopies
    steps: Executed


class GraphCapture:
    """One kind of work on a net: warm-up runs, the captured graph, and obstacles to a capture.

    Args:
        execution: The execution of the net.
        what: Name of the work in messages, in the plural.
    """

    def __init__(self, execution: Execution, what: str) -> None:
        self._execution, self._what = execution, what
        self._warm_up = WarmUp()
        self._changes = -1
        self._failed = False
        self._captured: _Captured | None = None
        self._logged: set[str] = set()

    def ready(self, *more: Hashable) -> bool:
        """Return whether the work is to be done by ``run`` this time; else it is to be queued.

        Before ``run``, the caller runs the layers that only bring data in.

        Args:
            more: Values that the captured work depends on, besides net, shapes and memories.
        """
        execution = self._execution
        backend = execution.device.backend
        off = settings.get_often("cuda_graphs") == "off" or transfer_mode() != "allow"
        if off or backend.recorder is None:
            self._reset(None)
            return False
        key = (execution.changes, execution.plan, settings.get_often("tf32"), backend, *more)
        if key != self._warm_up.key or not self._intact():
            self._reset(key)
        elif self._warm_up.runs and (why := execution.capture_blocker()):
            self._log(why)
            self._reset(key)
        self._warm_up.count()
        return self._warm_up.done and not self._failed

    def run(self, work: CapturableWork) -> None:
        """Run, capture or launch the work."""
        with self._execution.device.backend.enter():
            self._run(work)

    def _run(self, work: CapturableWork) -> None:
        recorder = self._execution.device.backend.recorder
        if recorder is None or self._changes != self._execution.changes:  # data of another size
            self._reset(None)
            work.queue()
            return
        try:
            if self._warm_up.runs == WARMUP_RUNS:
                self._rehearse(work, recorder)
                return
            self._captured = self._captured or self._capture(work, recorder)
        except (NotRecorded, DeviceError) as why:
            self._failed = True
            self._log(str(why))
            work.clear()
            work.queue()
            return
        self._launch(work, self._captured)

    def _intact(self) -> bool:
        return self._captured is None or self._captured.replay.intact()

    def _reset(self, key: Hashable) -> None:
        self._warm_up.restart(key)
        self._changes = self._execution.changes
        self._failed, self._captured = False, None

    def _rehearse(self, work: CapturableWork, recorder: Recorder) -> None:
        """Run the work on the stream of the capture, which leaves all memories where they stay."""
        roll_back = self._execution.savepoint()
        try:
            with recorder.aside():
                work.queue()
        except DeviceError:  # perhaps no memory for another stream
            roll_back()
            raise

    def _capture(self, work: CapturableWork, recorder: Recorder) -> _Captured:
        execution = self._execution
        roll_back, copies = execution.savepoint(), execution.stateful_blobs.reserve()

        def record() -> None:
            copies.make()
            work.record(recorder)

        try:
            replay = GraphReplay(work.memories(), execution.device.backend, recorder, record)
        except NotRecorded:
            roll_back()
            raise
        execution.plan.captured.add(replay)
        log.debug("From now on %s are launched as one.", self._what)
        return _Captured(replay, copies, execution.plan.executed())

    def _launch(self, work: CapturableWork, captured: _Captured) -> None:
        execution = self._execution
        if execution.last_launch is not self:
            execution.plan.restore_executed(captured.steps)
        work.update_inputs()
        execution.stateful_blobs.before_replay(captured.copies)
        with Uninterrupted():
            captured.replay.play()
            execution.stateful_blobs.assign(captured.copies)
        execution.last_launch = self

    def _log(self, why: str) -> None:
        if why not in self._logged:
            text = "%s are queued kernel by kernel, not launched as one: %s."
            log.info(text, self._what.capitalize(), why)
            self._logged.add(why)


class CapturablePasses:
    """Whole passes of a net: layer by layer at first, later launched as one.

    The layers that bring data in run before a launch and are not captured.

    Args:
        execution: The execution of the net.
        backward: Whether each forward pass is followed by a backward pass.
    """

    def __init__(self, execution: Execution, *, backward: bool) -> None:
        self._execution, self._backward = execution, backward
        what = "training passes" if backward else "forward passes"
        self._capture = GraphCapture(execution, what)
        self._loss: Array | None = None

    def ready(self) -> bool:
        """Return whether the next passes are to be done by ``run``; else they are to be queued."""
        return self._capture.ready()

    def run(self) -> Array | None:
        """Run all layers.

        Returns:
            The loss, () on the device, overwritten by the next run; None without a loss layer.
        """
        self._execution.queue_sources()
        memories = self._execution.memories
        self._capture.run(CapturableWork(self._rest, lambda _: self._rest(), memories))
        return self._loss

    def _rest(self) -> None:
        self._loss = self._execution.queue_rest(backward=self._backward)
