"""Plan: a net's layers as prepared steps, and the loop that runs them.

A plan asks the backend once for a faster way to run each operation. As long as no blob changes its
shape or memory, a pass is a loop over the prepared steps; one integer comparison detects changes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakSet

from demitasse.backends import ops
from demitasse.backends.arrays import Array
from demitasse.backends.kernel_cache import LRUCache
from demitasse.backends.recording import Recording
from demitasse.backends.step import AnyStep
from demitasse.blob import Blob, VersionCounter
from demitasse.core.config import settings
from demitasse.core.out_of_memory import with_location
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.memory.arena import Assignment, Slot
from demitasse.memory.transfers import Guard, current_guard
from demitasse.plan.layout import LayoutAssignment
from demitasse.plan.planned_layer import CACHED_SHAPES, Group, LayerBinding, PlannedLayer
from demitasse.plan.replay import Segment, Segments, group_within

POOLS = ops.Pool, ops.SpatialPyramidPool

LONGEST = 40  # largest number of layers that may run as one; backends take fewer


class Observer(Protocol):
    """Callbacks around each Step of a pass."""

    def before_pass(self) -> None:
        """Called before a pass."""

    def before_step(self, layers: range, *, backward: bool) -> None:
        """Called before layers that run as one, by index, or before a single layer."""

    def after_step(self, layers: range, *, backward: bool) -> None:
        """Called after the same layers."""


class Preparation(NamedTuple):
    """All that a replay needs for some shapes of the inputs.

    Attributes:
        shapes: Shape of each blob.
        memories: Serials of the blobs' memories.
        places: Assignment of the data of each blob.
        segment: All layers, with their replay.
    """

    shapes: list[tuple[int, ...]]
    memories: list[tuple[int, int]]
    places: list[Assignment | None]
    segment: Segment


class Fusion:
    """Decides which layers may run as one, and has the backend prepare their Steps.

    ``elidable`` are the ids of blobs that one layer writes, one layer reads, and no caller reads.
    """

    def __init__(
        self, entries: Sequence[PlannedLayer], elidable: frozenset[int], *, optimize: bool
    ) -> None:
        self._entries, self._elidable, self._optimize = entries, elidable, optimize

    def last_fusable(self, index: int, end: int) -> int:
        """Return the index of the last layer that may run as one with layer ``index``."""
        layer, top = self._entries[index].layer, self._entries[index].binding.top
        if not self._optimize or layer.op is None or layer.loss_weights or len(top) != 1:
            return index
        end = min(end, index + LONGEST - 1)
        while index < end:
            follower = self._entries[index + 1]
            if not follower.may_follow(layer.op, top[0], elidable=id(top[0]) in self._elidable):
                break
            index, top = index + 1, follower.binding.top
        return index

    def ends(self) -> list[int]:
        """Return, for each layer, the last of those that may run as one with it."""
        end, last, found = len(self._entries) - 1, -1, []
        for index in range(len(self._entries)):
            last = max(last, self.last_fusable(index, end))
            found.append(last)
        return found

    def fuse(self, head: PlannedLayer, index: int, end: int) -> int:
        """Fuse layer ``index`` with as many followers as possible; return the number of layers."""
        head.group = None
        last = self.last_fusable(index, end)
        if last > index or head.follows_layouts:
            head.fuse(self._entries[index + 1 : last + 1])
        count = head.group.count if head.group else 1
        for member in self._entries[index + 1 : index + count]:
            member.group = None
        return count


class Plan:
    """The layers of a net, prepared for its device.

    Args:
        bindings: The layers with their blobs.
        changes: Counts the changes of the blobs' shapes and memories.
        optimize: False runs the portable code of every layer, and no Steps.
        elidable: Ids of blobs that one layer writes, one layer reads, and no caller reads.

    Attributes:
        layouts: The private layouts of the blobs.
        observer: Gets a call before and after each Step; None for nobody. With an observer, layers
            run one by one, and nothing is replayed.
        completed: Called in a backward pass with the index of each layer, or of the first of
            layers that run as one, after its gradients are computed; None for nobody.
        recordings: Recordings of passes on the device that are still in use.
    """

    def __init__(
        self,
        bindings: Sequence[LayerBinding],
        changes: VersionCounter,
        *,
        optimize: bool,
        elidable: frozenset[int] = frozenset(),
    ) -> None:
        self.layouts = LayoutAssignment()
        self.entries = [PlannedLayer(one, self.layouts, optimize=optimize) for one in bindings]
        self.optimize, self.elidable = optimize, elidable
        self.observer: Observer | None = None
        self.completed: Callable[[int], None] | None = None
        self.recordings: WeakSet[Recording] = WeakSet()
        for entry in self.entries:
            entry.subscribe(changes)
        self._changes = changes
        self._seen = self._ran_backward = self._restored = -1  # last change before each
        blobs = {id(b): b for one in bindings for b in (*one.bottom, *one.top, *one.layer.blobs)}
        self._blobs: list[Blob] = list(blobs.values())
        self._inputs = [blob for one in bindings if not one.bottom for blob in one.top]
        self._preparations: LRUCache[Preparation] = LRUCache(CACHED_SHAPES)
        self._present: Preparation | None = None
        self.fusion = Fusion(self.entries, elidable, optimize=optimize)
        self._segments = Segments(self.entries, changes)
        self._dynamic = [i for i, one in enumerate(bindings) if one.layer.dynamic_shapes]

    # -- passes --------------------------------------------------------------------------------

    def forward(self, start: int, end: int) -> list[Array]:
        """Run layers ``start`` to ``end``, both included; return the weighted losses, each 0-d."""
        terms: list[Array] = []
        if self.observer is not None:
            self.observer.before_pass()
        if start > end:
            return terms
        self.prepare_replayed()
        guard, eager = current_guard(), bool(self.replay_blocker())
        for first, last in self._ranges(start, end):
            if self._seen != self._changes.number:
                self._prepare(first, last)
                self._before_first_run(first, last, backward=False)
            for segment in self._segments.forward(first, last):
                if segment.replay is None or eager:
                    terms += self._run(segment, guard)
                else:
                    with self._named_segment(segment):
                        segment.replay.run(partial(self._run, segment, None))
        now = self._changes.number
        if self._seen != now and all(entry.seen == now for entry in self.entries):
            if self._seen < 0:
                self.entries[0].layer.device.backend.after_first_run()
            self._seen = now
            self._keep_preparation()
        return terms

    def replay(self) -> bool:
        """Repeat the calls of an earlier forward pass over all layers, if calls were all it was.

        The preparations of a pass take longer than the calls of a small net, and are skipped. No
        caller may use the blobs in between, and no library of the host may compute. False leaves
        everything as it is.
        """
        # settings are in the key
        if self.observer is not None or current_guard() is not None or not self._prepared():
            return False
        segment = self._segments.all_layers()
        if segment is None or segment.replay is None:
            return False
        try:
            return segment.replay.try_replay()
        except DemitasseError as error:
            self._name(segment, error)
            raise

    def backward(self, start: int, end: int) -> None:
        """Run layers ``start`` down to ``end``, both included, those that take part."""
        if start < end:
            return
        self.prepare_replayed()
        for border in (end, start + 1):
            self._separate(border)
        if self._ran_backward != self._changes.number:
            self._before_first_run(end, start, backward=True)
            self._ran_backward = self._changes.number
        if self.observer is not None:
            self.observer.before_pass()
        if self.completed is not None or self.replay_blocker():
            self._run_backward(start, end, current_guard())
            return
        index = start
        while index >= end:
            segment = self._segments.backward(index, end)
            if segment.replay is None:
                self._run_backward(index, segment.first, None)
            else:
                with self._named_segment(segment):
                    segment.replay.run(partial(self._run_backward, index, segment.first, None))
            index = segment.first - 1

    def replay_blocker(self) -> str:
        """Return why nothing is recorded or replayed now; "" if it may be."""
        if self.observer is not None:
            return "layers are observed one by one"
        if current_guard() is not None:
            return "copies between host and device are watched (setting transfers)"
        if settings.get_often("debug_fill_stale"):
            return "stale memory is filled with NaN (setting debug_fill_stale)"
        return ""

    def _run(self, segment: Segment, guard: Guard | None) -> list[Array]:
        """Run the layers of a segment one by one; return the weighted sums of their loss tops."""
        terms: list[Array] = []
        index = segment.first
        while index <= segment.last:
            entry = self.entries[index]
            group = group_within(entry, index, segment.last)
            layers = range(index, index + (1 if group is None else group.count))
            if guard is not None:
                guard.at(entry.binding.label, "forward", feeds=not entry.binding.bottom)
            if self.observer is not None:
                self.observer.before_step(layers, backward=False)
            try:
                if group is None:
                    entry.forward()
                else:
                    group.step.forward()
                    executed = group if group.step.own_backward else None
                    for member in self.entries[layers.start : layers.stop]:
                        member.executed_step, member.executed_group = member.step, executed
            except (DemitasseError, MemoryError, OSError) as error:
                fault = _fault(error, entry, "forward")
                raise fault from fault.__cause__
            if entry.layer.loss_weights:
                terms += entry.layer.loss_terms(entry.binding.top)
            if self.observer is not None:
                self.observer.after_step(layers, backward=False)
            index = layers.stop
        return terms

    def _run_backward(self, start: int, end: int, guard: Guard | None) -> None:
        """Run layers ``start`` down to ``end`` one by one."""
        index = start
        while index >= end:
            entry = self.entries[index]
            group = entry.executed_group if entry.binding.backward else None
            layers = range(index - (0 if group is None else group.count - 1), index + 1)
            if guard is not None:
                guard.at(entry.binding.label, "backward")
            try:
                if group is not None:
                    self._check_whole_group(layers, end, group)
                if self.observer is not None:
                    self.observer.before_step(layers, backward=True)
                if group is not None:
                    group.step.backward()
                elif entry.binding.backward:
                    entry.backward()
            except (DemitasseError, MemoryError, OSError) as error:
                fault = _fault(error, entry, "backward")
                raise fault from fault.__cause__
            if self.observer is not None:
                self.observer.after_step(layers, backward=True)
            if self.completed is not None:
                self.completed(layers.start)
            index = layers.start - 1

    def _separate(self, border: int) -> None:
        """Compute layers that ran as one anew, one by one, if ``border`` begins between them.

        All layers that write their memory run again. Averages stay as they are. Nothing is done
        where the values cannot be computed again; the gradient then raises NetError.
        """
        if self.elidable or not 0 < border < len(self.entries):
            return
        group = self.entries[border].executed_group
        head = next((one for one in self.entries if one.group is group), None)
        if head is None or group is None or self.entries[border - 1].executed_group is not group:
            return
        memory = head.binding.top[0].data_memory
        again = [
            one for one in self.entries if any(b.data_memory is memory for b in one.binding.top)
        ]
        read, layers = again[0].binding.bottom, [one.layer for one in again]
        overwritten = not read or any(blob.data_memory is memory for blob in read)
        unknown = any(one.op is None and not one.is_alias for one in layers)  # of any effect
        random = any(one.random_in_test or isinstance(one.op, POOLS) for one in layers)
        if overwritten or unknown or random:
            return
        states = [(blob, blob.read().copy()) for one in layers for blob in one.state_blobs()]
        for entry in again:
            with _naming(entry, "forward"):
                entry.forward()
        for blob, value in states:
            blob.write(value)

    def _check_whole_group(self, layers: range, end: int, group: Group) -> None:
        """Raise NetError for the gradient of a part of the layers that ran forward as one."""
        members = self.entries[max(layers.start, 0) : layers.stop]
        whole = layers.start >= end and all(one.executed_group is group for one in members)
        if not whole or members[0].group is not group:
            message = (
                "its last forward pass ran as one with its neighbours, so its gradient cannot be "
                "computed alone; run forward over the same range of layers, or with optimize=False"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE)

    def _ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Cut a range after each layer whose top shapes depend on values."""
        cuts = [i for i in self._dynamic if start <= i < end]
        firsts = [start, *(i + 1 for i in cuts)]
        return list(zip(firsts, [*cuts, end], strict=True))

    # -- results of preparation ----------------------------------------------------------------

    def steps(self) -> list[AnyStep | None]:
        """Return the Step of each layer's next forward; None for portable code."""
        return [entry.step for entry in self.entries]

    @property
    def held(self) -> int:
        """Bytes of scratch memory of its own, recorded passes included."""
        own = sum(entry.held for entry in self.entries)
        with self.entries[0].layer.device.backend.device_scope():  # of the recordings' memory
            return own + sum(recording.nbytes for recording in self.recordings)

    # -- preparation ---------------------------------------------------------------------------

    def reshape(self) -> None:
        """Compute the shapes of all tops, and prepare the Steps."""
        if self._seen != self._changes.number:
            self._prepare(0, len(self.entries) - 1)

    def prepare_replayed(self) -> None:
        """Prepare the Steps if the last pass was a replay for earlier shapes, which needs none."""
        if self._restored == self._changes.number:
            self.reshape()

    def reshape_layers(self, entries: Sequence[PlannedLayer]) -> None:
        """Compute the shapes of the tops of some layers, and prepare nothing."""
        for entry in entries:
            with _naming(entry, "reshape"):
                entry.reshape()

    def _prepare(self, start: int, end: int) -> None:
        """Reshape and lower the layers of a range, if shapes may have changed."""
        entries = self.entries[start : end + 1]
        if all(entry.seen == self._changes.number for entry in entries):
            return
        self.reshape_layers(entries)
        while not self._lower_range(start, end):
            continue
        self.layouts.clear_written()
        self._add_written(start)
        index = start
        while index <= end:
            entry = self.entries[index]
            with _naming(entry, "preparation"):
                index += self.fusion.fuse(entry, index, end)
            self.layouts.add_written(entry.forward_step)
        for entry in entries:
            entry.subscribe(self._changes)
            entry.seen = self._changes.number

    def _before_first_run(self, start: int, end: int, *, backward: bool) -> None:
        """Let the backend compile what some layers run, before the first pass in a direction."""
        entries = self.entries[start : end + 1]
        found = [entry.forward_step for entry in entries]
        if backward:
            found = [
                entry.executed_group.step if entry.executed_group else entry.executed_step
                for entry in entries
                if entry.binding.backward
            ]
        steps = list(dict.fromkeys(step for step in found if step is not None))
        entries[0].layer.device.backend.before_first_run(steps, backward=backward)

    def _keep_preparation(self) -> None:
        """Keep the present preparation for the shapes of the inputs, if all calls are recorded."""
        segment = self._segments.all_layers()
        self._present = None
        if segment is None or segment.replay is None:
            return
        shapes = [blob.shape for blob in self._blobs]
        places = [blob.data_memory.assignment for blob in self._blobs]
        self._present = Preparation(shapes, self._memories(), places, segment)
        self._preparations.keep(self._input_shapes(), self._present)

    def _prepared(self) -> bool:
        """Return whether a replay is prepared for the present shapes of the inputs.

        If the inputs alone have changed, and have shapes of an earlier pass, its preparation is
        used again. Layers are not reshaped and have the Steps of other shapes, so only a replay or
        ``prepare_replayed`` may follow.
        """
        if self._changes.number in (self._seen, self._restored):
            return True
        found, present = self._preparations.find(self._input_shapes()), self._present
        if found is None or present is None:
            return False
        inputs = set(map(id, self._inputs))
        for blob, shape in zip(self._blobs, present.shapes, strict=True):
            if blob.shape != shape and id(blob) not in inputs:
                return False
        if self._memories() != found.memories:
            return False
        memories = [blob.data_memory for blob in self._blobs]
        places = list(zip(memories, found.places, strict=True))
        if any(_slot(memory.assignment) is not _slot(place) for memory, place in places):
            return False
        for blob, shape in zip(self._blobs, found.shapes, strict=True):
            blob.reshape(shape)
        for memory, place in places:
            if place is not None:
                memory.move(place)
        self._present, self._restored = found, self._changes.number
        self._segments.restore(found.segment)
        return True

    def _input_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(blob.shape for blob in self._inputs)

    def _memories(self) -> list[tuple[int, int]]:
        return [(blob.data_memory.serial, blob.diff_memory.serial) for blob in self._blobs]

    def _lower_range(self, start: int, end: int) -> bool:
        """Lower the layers of a range; return False if other layouts are to be assigned."""
        self.layouts.clear()
        self._add_written(start)
        fresh = []
        for index in range(start, end + 1):
            entry = self.entries[index]
            with _naming(entry, "preparation"):
                fresh.append(entry.lower())
            self.layouts.add(entry.step)
        complete = True
        for index in range(end, start - 1, -1):
            entry = self.entries[index]
            if fresh[index - start]:
                with _naming(entry, "preparation"):
                    complete = entry.lower_backward() and complete
            self.layouts.add(entry.step, backward=True)
        return complete

    def _add_written(self, end: int) -> None:
        """Add the layouts that the layers before ``end`` write."""
        index = 0
        while index < end:
            entry = self.entries[index]
            self.layouts.add_written(entry.forward_step)
            index += entry.group.count if entry.group else 1

    # -- errors --------------------------------------------------------------------------------

    @contextmanager
    def _named_segment(self, segment: Segment) -> Iterator[None]:
        """Name the layers of a segment in errors of replayed calls."""
        try:
            yield
        except DemitasseError as error:
            self._name(segment, error)
            raise

    def _name(self, segment: Segment, error: DemitasseError) -> None:
        """Add the first and the last layer of a segment to an error without a place."""
        if not error.place:
            entries = self.entries[segment.first : segment.last + 1]
            labels = [entry.binding.label for entry in entries if not entry.layer.is_alias]
            error.at(" to ".join(dict.fromkeys([labels[0], labels[-1]])))


@contextmanager
def _naming(entry: PlannedLayer, doing: str) -> Iterator[None]:
    """Name the layer in errors of the block."""
    try:
        yield
    except (DemitasseError, MemoryError, OSError) as error:
        fault = _fault(error, entry, doing)
        raise fault from fault.__cause__


def _fault(error: Exception, entry: PlannedLayer, doing: str) -> Exception:
    """Return an error that names the layer, and for a lack of memory also the pass."""
    explain = entry.layer.device.backend.explained
    return with_location(error, entry.binding.label, doing=doing, explain=explain)


def _slot(place: Assignment | None) -> Slot | None:
    """Return the slot of an assignment."""
    return None if place is None else place.slot
