"""Replay: work that runs twice, is recorded once, and is repeated as long as memories match.

To check memories, layouts and addresses takes Python as long as the code of a small layer takes to
run. While all memories are in the states of an earlier run, the same calls have the same effects. A
recording then repeats the calls and skips the checks of each layer. ``Replay`` is the mechanism for
every device. A plan divides passes on the host into *segments*: ranges of layers that compute by
compiled calls alone. ``demitasse.net.graph_capture`` replays whole passes of devices that queue
their work.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from demitasse.backends.arrays import Array
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.recording import NotRecorded, Program, Recorder, Recording, TracingRecorder
from demitasse.backends.step import AnyStep
from demitasse.blob import Blob, VersionCounter
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.memory import Head, SyncedMemory, transfers
from demitasse.memory.memory_guard import MemoryGuard
from demitasse.memory.transfers import Guard as TransferGuard
from demitasse.plan.planned_layer import CACHED_SHAPES, Group, PlannedLayer

MOST_RECORDED = 2
"""Number of recordings of some work: in-place layers exchange two arrays from pass to pass."""

WARMUP_RUNS = 2
"""Runs before the first recording: the first run prepares Steps and compiles kernels, the second
leaves all memories where they stay."""

MOST_WARMUP_RUNS = 65
"""Largest number of runs before another recording, after recordings that did not match."""


class WarmUp:
    """Counts the runs of some work since the last restart or recording; ``needed`` are enough."""

    __slots__ = ("key", "needed", "runs")

    def __init__(self, key: Hashable = None) -> None:
        self.key = key
        self.runs, self.needed = 0, WARMUP_RUNS

    @property
    def done(self) -> bool:
        """True once enough runs are counted."""
        return self.runs >= self.needed

    def count(self) -> None:
        """Count a run."""
        self.runs += 1

    def back_off(self) -> None:
        """Count from zero after a recording; need about twice as many runs before the next."""
        needed = max(self.needed, WARMUP_RUNS)
        self.runs, self.needed = 0, min(2 * needed - 1, MOST_WARMUP_RUNS)


class Recorded(NamedTuple):
    """One recorded run.

    Attributes:
        guard: The memory states that the run requires and leaves.
        reorders: Number of calls that copy from one layout to another.
        executed: The Step and the group that ran each layer, if a backward pass may follow them.
    """

    recording: Recording
    guard: MemoryGuard
    reorders: int
    executed: list[tuple[PlannedLayer, AnyStep | None, Group | None]]


class Replay:
    """Some work on layers: its warm-up, its recordings, and their replay.

    Args:
        entries: The layers.
        recorder: The recorder of their backend.
        memories: Returns all memories that the work may use.
        overwritten: Returns the serials of memories that the work writes before it reads them.
        volatile: Returns the serials of memories that others use between replays.
        key: Key of the warm-up.
    """

    def __init__(
        self,
        entries: Sequence[PlannedLayer],
        recorder: Recorder,
        memories: Callable[[], Sequence[SyncedMemory]],
        overwritten: Callable[[], frozenset[int]] = frozenset,
        volatile: Callable[[], frozenset[int]] = frozenset,
        key: Hashable = None,
    ) -> None:
        self._entries, self._recorder = entries, recorder
        self._memories, self._overwritten, self._volatile = memories, overwritten, volatile
        self._versions: dict[int, int] = {}
        self.warm_up = WarmUp(key)
        self.recorded: list[Recorded] = []

    def run(self, work: Callable[[], object]) -> None:
        """Do the work by a recording that matches, or run and perhaps record it; on the host."""
        key, warm_up = self._recorder.key(), self.warm_up
        if key != warm_up.key:
            warm_up.key, warm_up.runs = key, 0
            self.recorded = []
        found = self.find()
        if found is not None:
            self.play(found)
            return
        try:
            if warm_up.done:
                with suppress(NotRecorded):
                    self.record(work)
                warm_up.back_off()  # until a replay
            else:
                work()
                warm_up.count()
        finally:  # interrupted work, too, has read what changed
            if self.recorded or warm_up.done:
                self._versions.update({m.serial: m.version for m in self._memories()})

    def try_replay(self) -> bool:
        """Repeat the compiled calls of an earlier run; False leaves everything as it is."""
        if self.warm_up.key != self._recorder.key():
            return False
        found = self.find(compiled=True)
        if found is None:
            return False
        self.play(found)
        return True

    def find(self, *, compiled: bool = False) -> Recorded | None:
        """Return the recorded run whose memory states are the present ones, or None.

        With ``compiled``, only recordings of nothing but compiled code count.
        """
        for recorded in self.recorded:
            if (recorded.recording.compiled or not compiled) and recorded.guard.matches():
                return recorded
        return None

    def record(self, work: Callable[..., object], numbers: Sequence[Any] = ()) -> Recorded:
        """Record the work, which a host computes at the same time.

        Args:
            work: The work.
            numbers: Example of the arguments of work that is traced.

        Raises:
            NotRecorded: The work cannot be recorded.
        """
        memories, recorder = self._memories(), self._recorder
        if isinstance(recorder, TracingRecorder):
            _upload(memories)
        guard = MemoryGuard(
            memories,
            self._versions if recorder.computes else None,
            self._overwritten(),
            self._volatile(),
        )
        guard.order()
        before = transfers.reorders_here
        if isinstance(recorder, TracingRecorder):
            recording: Recording = self._trace(recorder, work, memories, numbers)
        else:
            recording = recorder.record(work)
        guard.record_effects(getattr(recording, "reused", ()))  # recordings of calls have it
        followed = self._entries if any(one.binding.backward for one in self._entries) else ()
        executed = [(entry, entry.executed_step, entry.executed_group) for entry in followed]
        recorded = Recorded(recording, guard, transfers.reorders_here - before, executed)
        self.recorded = [*self.recorded, recorded][-MOST_RECORDED:]
        return recorded

    def rehearse(self, work: Callable[..., object], numbers: Sequence[Any]) -> None:
        """Trace the work in place of its runs for warm-up, which would compile each operation.

        Contents stay as they are. Memories without contents are zero where the work writes them.
        """
        memories, recorder = self._memories(), self._recorder
        known = {memory.serial for memory in memories if not memory.cleared}
        _upload(memories)
        try:
            if isinstance(recorder, TracingRecorder):
                self._trace(recorder, work, memories, numbers, rehearsal=True)
        finally:
            for memory in self._memories():
                if memory.serial not in known and not memory.cleared:
                    memory.clear()
                    memory.gpu_data()
        self.warm_up.runs = self.warm_up.needed

    def _trace(
        self,
        recorder: TracingRecorder,
        work: Callable[..., object],
        memories: Sequence[SyncedMemory],
        numbers: Sequence[Any],
        *,
        rehearsal: bool = False,
    ) -> Recording:
        """Record the work by a trace, in which all values are on the device alone."""
        synced = [(memory, memory.version) for memory in memories if memory.state is Head.SYNCED]
        for memory, _ in synced:
            memory.state = Head.HEAD_AT_GPU
        guard = TransferGuard()
        try:
            with guard.for_pass("raise"):
                sides = [memory.device_side for memory in memories]
                return recorder.record(work, sides, numbers, rehearsal=rehearsal)
        except NotRecorded as why:
            message = f"{guard.place} is not traced ({why})"
            raise NotRecorded(message) from why
        finally:
            for memory, version in synced:
                if memory.version == version:
                    memory.state = Head.SYNCED
            for entry in self._entries:
                entry.layer.clear_constants()  # some are arrays of the trace

    def play(self, recorded: Recorded, *numbers: Any) -> Array | None:
        """Repeat a recorded run; return the result of a program, given its numbers."""
        recording, guard, reorders, executed = recorded
        guard.apply()  # all Python before the calls, which fill the caches with their own data
        if reorders:
            transfers.note(reorders=reorders)
        for entry, step, group in executed:
            entry.executed_step, entry.executed_group = step, group
        self.warm_up.needed = WARMUP_RUNS
        if isinstance(recording, Program):
            result: Array = recording.play(*numbers)
            return result
        recording.play()
        return None


def _upload(memories: Sequence[SyncedMemory]) -> None:
    """Copy what is newest on the host to the device, whose side alone a trace reads."""
    for memory in memories:
        if memory.head is Head.HEAD_AT_CPU:
            memory.gpu_data()


def record_blocker(entry: PlannedLayer, step: AnyStep | None) -> str:
    """Return why the forward pass of a layer cannot be recorded; "" if it can.

    ``step`` runs the layer; None for its portable code.
    """
    layer, backend = entry.layer, entry.layer.device.backend
    traces, declared = isinstance(backend.recorder, TracingRecorder), vars(type(layer))
    capturable = (traces or backend.records_arrays) and declared.get("graph_capturable")
    if step is not None:
        blocker = "" if step.replayable else "computes without calls that can be recorded"
    elif layer.is_alias or capturable or (traces and declared.get("traceable")):
        blocker = ""
    elif traces:
        blocker = "does not define graph_capturable = True"
    else:
        blocker = "has no step of this device" + (f" ({entry.why})" if entry.why else "")
    if not blocker and layer.loss_weights and not backend.queues:
        blocker = "has a loss that the host adds up"
    return blocker


def _memories(entries: Sequence[PlannedLayer], *, backward: bool) -> list[SyncedMemory]:
    blobs: list[Blob] = []
    for entry in entries:
        binding, layer = entry.binding, entry.layer
        blobs += [*binding.bottom, *binding.top, *layer.blobs, *layer.internal_blobs()]
    memories = [blob.data_memory for blob in blobs]
    if backward:
        memories += [blob.diff_memory for blob in blobs]
    return list({memory.serial: memory for memory in memories}.values())


def _overwritten(entries: Sequence[PlannedLayer]) -> frozenset[int]:
    """Return the serials of memories that a forward pass writes before any layer reads them."""
    read: set[int] = set()
    written: set[int] = set()
    for entry in entries:
        binding = entry.binding
        layer = entry.layer
        if layer.is_alias:
            continue
        state = layer.state_blobs()
        saved = [blob for blob in layer.internal_blobs() if blob not in state]
        inputs = (*binding.bottom, *layer.blobs, *state)
        read |= {blob.data_memory.serial for blob in inputs} - written
        written |= {blob.data_memory.serial for blob in (*binding.top, *saved)} - read
    return frozenset(written)


class Segment(FrozenStruct):
    """A range of layers, both ends included, with its replay; None for layers without one."""

    first: int
    last: int
    replay: Replay | None


Executed = list[tuple[AnyStep | None, Group | None]]
"""The Step and the group that ran each layer of a segment forward."""


class Segments:
    """Cuts ranges of prepared layers into segments with and without a replay.

    The segments of a forward pass stay for some shapes of the blobs, with their recordings. After
    ``changes`` of shapes and memories, ranges are cut anew.
    """

    def __init__(self, entries: Sequence[PlannedLayer], changes: VersionCounter) -> None:
        self._entries, self._changes = entries, changes
        self._seen = self._seen_backward = -1
        self._all_layers: Segment | None = None
        self._forward: dict[tuple[int, int], Sequence[Segment]] = {}
        self._cached: LRUCache[Sequence[Segment]] = LRUCache(CACHED_SHAPES)
        self._backward: dict[tuple[int, int], tuple[Segment, Executed]] = {}

    def forward(self, first: int, last: int) -> Sequence[Segment]:
        """Return the segments of a range of layers of a forward pass, in order."""
        if self._seen != self._changes.number:
            self._forward.clear()
            self._all_layers = None
            self._seen = self._changes.number
        known = self._forward.get((first, last))
        if known is None:
            key = (first, last, *(entry.prepared() for entry in self._entries[first : last + 1]))
            known = self._cached.find(key) or self._cached.keep(key, list(self._cut(first, last)))
            self._forward[first, last] = known
            if len(known) == 1 and last - first == len(self._entries) - 1:
                [self._all_layers] = known
        return known

    def restore(self, segment: Segment) -> None:
        """Use a segment of all layers again that ``all_layers`` returned for the present shapes."""
        self._seen, self._all_layers = self._changes.number, segment
        self._forward = {(segment.first, segment.last): [segment]}

    def all_layers(self) -> Segment | None:
        """Return the segment of all layers forward, if there is one since the last change."""
        return self._all_layers if self._seen == self._changes.number else None

    def backward(self, start: int, end: int) -> Segment:
        """Return the first segment of a backward pass from layer ``start`` down to ``end``."""
        if self._seen_backward != self._changes.number:
            self._backward.clear()
            self._seen_backward = self._changes.number
        known = self._backward.get((start, end))
        if known is not None and known[1] == self._executed(known[0].first, start):
            return known[0]
        segment = self._cut_backward(start, end)
        self._backward[start, end] = segment, self._executed(segment.first, start)
        return segment

    @property
    def _recorder(self) -> Recorder | None:
        """The recorder of segments; None without one, and for graphs of whole passes."""
        recorder = self._entries[0].layer.device.backend.recorder
        return recorder if recorder is not None and recorder.computes else None

    def _executed(self, first: int, last: int) -> Executed:
        entries = self._entries[first : last + 1]
        return [(entry.executed_step, entry.executed_group) for entry in entries]

    def _cut(self, first: int, last: int) -> Iterator[Segment]:
        begin = index = first
        replayable = False
        if self._recorder is None:
            index = last + 1
        while index <= last:
            entry = self._entries[index]
            group = group_within(entry, index, last)
            step = entry.step if group is None else group.step
            kind = not record_blocker(entry, step)
            if kind != replayable and index > begin:
                yield self._segment(begin, index - 1, replayable=replayable)
                begin = index
            replayable = kind
            index += 1 if group is None else group.count
        yield self._segment(begin, last, replayable=replayable)

    def _segment(
        self, first: int, last: int, *, replayable: bool, backward: bool = False
    ) -> Segment:
        entries, recorder = self._entries[first : last + 1], self._recorder
        computes = (one.binding.backward if backward else one.step is not None for one in entries)
        if recorder is None or not replayable or not any(computes):
            return Segment(first, last, None)
        memories = partial(_memories, entries, backward=backward)
        overwritten = frozenset if backward else partial(_overwritten, entries)
        replay = Replay(entries, recorder, memories, overwritten)
        if self._cached and not backward:
            replay.warm_up.needed = 1  # memories already have the places of another shape
        return Segment(first, last, replay)

    def _cut_backward(self, start: int, end: int) -> Segment:
        if self._recorder is None:
            return Segment(end, start, None)
        index, kind = start, self._replayable_backward(start)
        while index >= end and self._replayable_backward(index) == kind:
            group = self._entries[index].executed_group
            index -= 1 if group is None else group.count
        return self._segment(max(index + 1, end), start, replayable=kind, backward=True)

    def _replayable_backward(self, index: int) -> bool:
        """Return whether the gradient of a layer, and of its group, is compiled calls alone."""
        entry = self._entries[index]
        if entry.executed_group is not None:
            return entry.executed_group.step.backward_replayable
        if not entry.binding.backward:
            return True
        return entry.executed_step is not None and entry.executed_step.backward_replayable


def group_within(entry: PlannedLayer, index: int, last: int) -> Group | None:
    """Return the group that begins with layer ``index``, if it ends at ``last`` or before."""
    group = entry.group
    return None if group is None or index + group.count - 1 > last else group
