"""Replay: compiled calls of a pass, recorded once and repeated as long as memories match.

To check memories, layouts and addresses takes Python as long as the code of a small layer takes to
run. A *segment* is a range of layers that compute by compiled calls alone. As long as all memories
are in the states of an earlier pass, the same calls have the same effects: a segment records them
once, and then repeats them without a look at each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, Self

from demitasse.backends.base import Backend
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.recording import CapturedCalls
from demitasse.backends.step import AnyStep
from demitasse.blob import Blob, VersionCounter
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.memory import SyncedMemory, transfers
from demitasse.memory.replay_check import ReplayCheck
from demitasse.plan.planned_layer import CACHED_SHAPES, Group, PlannedLayer

__all__ = [
    "WARMUP_RUNS",
    "DeferredExecution",
    "ReplaySegment",
    "Segment",
    "Segments",
    "WarmUp",
]

MOST_RECORDED = 2
"""Number of recordings of a segment: in-place layers exchange two arrays from pass to pass."""

WARMUP_RUNS = 2
"""Runs before the first recording: the first run prepares Steps and compiles kernels, the second
leaves all memories where they stay."""

MOST_WARMUP_RUNS = 65
"""Largest number of runs before another recording, after recordings that did not match."""

Executed = list[tuple[PlannedLayer, AnyStep | None, Group | None]]


class WarmUp:
    """Counts the runs of some work before a recording.

    Attributes:
        key: Values that the recording depends on.
        runs: Number of runs since the last restart or recording.
        needed: Number of runs before the next recording.
    """

    __slots__ = ("key", "needed", "runs")

    def __init__(self) -> None:
        self.key: Hashable = None
        self.runs, self.needed = 0, WARMUP_RUNS

    @property
    def done(self) -> bool:
        """True once enough runs are counted."""
        return self.runs >= self.needed

    def restart(self, key: Hashable) -> None:
        """Count from zero, for another key."""
        self.key, self.runs = key, 0

    def count(self) -> None:
        """Count a run."""
        self.runs += 1

    def back_off(self) -> None:
        """Count from zero after a recording; need about twice as many runs before the next."""
        self.runs, self.needed = 0, min(2 * self.needed - 1, MOST_WARMUP_RUNS)


class _Recorded(NamedTuple):
    """One recorded pass.

    Attributes:
        calls: The calls.
        check: The memory states that the calls require and leave.
        reorders: Number of calls that copy from one layout to another.
        executed: The Step and the group that ran each layer.
    """

    calls: CapturedCalls
    check: ReplayCheck
    reorders: int
    executed: Executed


class ReplaySegment:
    """Consecutive layers that compute by compiled calls alone.

    Args:
        entries: The layers, in the order of a forward pass.
        backward: Whether the segment is part of a backward pass.
    """

    def __init__(self, entries: Sequence[PlannedLayer], *, backward: bool = False) -> None:
        self._entries, self._backward = entries, backward
        self._backend = entries[0].layer.device.backend
        self._warm_up = WarmUp()
        self._versions: dict[int, int] = {}
        self._recorded: list[_Recorded] = []

    def run(self, run_layers: Callable[[], object]) -> None:
        """Compute the tops, or the gradients.

        Args:
            run_layers: Computes them layer by layer.
        """
        key, warm_up = self._backend.capture_key(), self._warm_up
        if key != warm_up.key:
            warm_up.restart(key)
            self._recorded = []
        if self._replay():
            return
        if warm_up.done:
            self._record(run_layers)
            warm_up.back_off()  # until a replay
        else:
            run_layers()
            warm_up.count()
        if self._recorded or warm_up.done:
            self._versions = {m.serial: m.version for m in self._memories()}

    def try_replay(self) -> bool:
        """Repeat the calls of an earlier pass, without the preparations of a pass.

        Returns:
            Whether the calls were repeated; False leaves everything as it is.
        """
        return self._warm_up.key == self._backend.capture_key() and self._replay(compiled=True)

    def _replay(self, *, compiled: bool = False) -> bool:
        """Repeat the calls whose check matches; return whether there were any.

        Args:
            compiled: Whether only recordings of nothing but compiled code count.
        """
        for recorded in self._recorded:
            if compiled and not recorded.calls.compiled:
                continue
            if recorded.check.matches(self._versions):
                # all Python before the calls, which fill the caches with their own data
                recorded.check.apply_effects(self._versions)
                if recorded.reorders:
                    transfers.note(reorders=recorded.reorders)
                for entry, step, group in recorded.executed:
                    entry.executed_step, entry.executed_group = step, group
                self._warm_up.needed = WARMUP_RUNS
                recorded.calls.play()
                return True
        return False

    def _record(self, run_layers: Callable[[], object]) -> None:
        check = ReplayCheck(self._memories(), self._overwritten(), self._versions)
        before = transfers.reorders_here
        with self._backend.capture() as calls:
            run_layers()
        if calls.whole and check.record_effects():
            executed = [
                (entry, entry.executed_step, entry.executed_group) for entry in self._entries
            ]
            recorded = _Recorded(calls, check, transfers.reorders_here - before, executed)
            self._recorded = [*self._recorded, recorded][-MOST_RECORDED:]

    def _memories(self) -> list[SyncedMemory]:
        blobs = [blob for entry in self._entries for blob in _blobs(entry)]
        memories = [blob.data_memory for blob in blobs]
        if self._backward:
            memories += [blob.diff_memory for blob in blobs]
        return list({memory.serial: memory for memory in memories}.values())

    def _overwritten(self) -> frozenset[int]:
        """Return the serials of memories that are written before any layer reads them."""
        if self._backward:
            return frozenset()
        read: set[int] = set()
        written: set[int] = set()
        for entry in self._entries:
            binding = entry.binding
            if entry.layer.is_alias:
                continue
            read |= {
                blob.data_memory.serial for blob in (*binding.bottom, *entry.layer.blobs)
            } - written
            written |= {blob.data_memory.serial for blob in binding.top} - read
        return frozenset(written)


def _blobs(entry: PlannedLayer) -> list[Blob]:
    binding, layer = entry.binding, entry.layer
    return [*binding.bottom, *binding.top, *layer.blobs, *layer.internal_blobs()]


class Segment(FrozenStruct):
    """A range of layers, both ends included, with its replay; None for layers without one."""

    first: int
    last: int
    replay: ReplaySegment | None


class _Backward(FrozenStruct):
    """A segment of a backward pass, and the Steps that ran its layers forward."""

    segment: Segment
    executed: list[tuple[AnyStep | None, Group | None]]


class Segments:
    """Cuts ranges of prepared layers into segments with and without a replay.

    The segments of a forward pass stay for some shapes of the blobs, with their recordings.

    Args:
        entries: All layers of a plan.
        changes: Counts the changes of shapes and memories, after which ranges are cut anew.
    """

    def __init__(self, entries: Sequence[PlannedLayer], changes: VersionCounter) -> None:
        self._entries, self._changes = entries, changes
        self._seen = self._seen_backward = -1
        self._forward: dict[tuple[int, int], Sequence[Segment]] = {}
        self._cached: LRUCache[Sequence[Segment]] = LRUCache(CACHED_SHAPES)
        self._backward: dict[tuple[int, int], _Backward] = {}

    def forward(self, first: int, last: int) -> Sequence[Segment]:
        """Return the segments of a range of layers of a forward pass, in order."""
        if self._seen != self._changes.number:
            self._forward.clear()
            self._seen = self._changes.number
        known = self._forward.get((first, last))
        if known is None:
            key = (first, last, *(entry.prepared() for entry in self._entries[first : last + 1]))
            known = self._cached.find(key) or self._cached.keep(key, list(self._cut(first, last)))
            self._forward[first, last] = known
        return known

    def restore(self, segment: Segment) -> None:
        """Use a segment of all layers again that ``all_layers`` returned for the present shapes."""
        self._seen = self._changes.number
        self._forward = {(segment.first, segment.last): [segment]}

    def all_layers(self) -> Segment | None:
        """Return the segment of all layers forward, if there is one since the last change."""
        if self._seen != self._changes.number:
            return None
        segments = self._forward.get((0, len(self._entries) - 1), ())
        return segments[0] if len(segments) == 1 else None

    def backward(self, start: int, end: int) -> Segment:
        """Return the first segment of a backward pass from layer ``start`` down to ``end``."""
        if self._seen_backward != self._changes.number:
            self._backward.clear()
            self._seen_backward = self._changes.number
        known = self._backward.get((start, end))
        if known is not None and known.executed == self._executed(known.segment.first, start):
            return known.segment
        segment = self._cut_backward(start, end)
        self._backward[start, end] = _Backward(segment, self._executed(segment.first, start))
        return segment

    def _executed(self, first: int, last: int) -> list[tuple[AnyStep | None, Group | None]]:
        entries = self._entries[first : last + 1]
        return [(entry.executed_step, entry.executed_group) for entry in entries]

    def _cut(self, first: int, last: int) -> Iterator[Segment]:
        begin = index = first
        replayable = False
        if self._entries[first].layer.device.backend.capture_key() is None:
            index = last + 1
        while index <= last:
            entry = self._entries[index]
            group = group_within(entry, index, last)
            step = entry.step if group is None else group.step
            kind = entry.layer.is_alias if step is None else step.replayable
            kind = kind and not entry.layer.loss_weights
            if kind != replayable and index > begin:
                yield self._segment(begin, index - 1, replayable=replayable)
                begin = index
            replayable = kind
            index += 1 if group is None else group.count
        yield self._segment(begin, last, replayable=replayable)

    def _segment(self, first: int, last: int, *, replayable: bool) -> Segment:
        entries = self._entries[first : last + 1]
        computes = replayable and any(entry.step is not None for entry in entries)
        return Segment(first, last, ReplaySegment(entries) if computes else None)

    def _cut_backward(self, start: int, end: int) -> Segment:
        if self._entries[start].layer.device.backend.capture_key() is None:
            return Segment(end, start, None)
        index, kind = start, self._replayable_backward(start)
        while index >= end and self._replayable_backward(index) == kind:
            group = self._entries[index].executed_group
            index -= 1 if group is None else group.count
        first = max(index + 1, end)
        entries = self._entries[first : start + 1]
        computes = kind and any(entry.binding.backward for entry in entries)
        return Segment(first, start, ReplaySegment(entries, backward=True) if computes else None)

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


class DeferredExecution:
    """Defers the work of consecutive Steps, until it is needed or the block ends.

    Args:
        backend: The backend, which runs the deferred work as one batch.
    """

    __slots__ = ("_backend", "_defers")

    def __init__(self, backend: Backend) -> None:
        self._backend, self._defers = backend, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> None:
        """Defer the work from now on."""
        if not self._defers:
            self._defers = True
            self._backend.begin_batch()

    def end(self) -> None:
        """Run the deferred work; run later work at once."""
        if self._defers:
            self._backend.flush()
            self._defers = False
