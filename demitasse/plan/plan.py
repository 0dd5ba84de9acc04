"""Plan: a net's layers as prepared steps, and the loop that runs them.

A backend is asked once for a faster way to run each operation. As long as no blob changes its
shape or memory, a pass is a loop over what was prepared; one integer comparison finds that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from weakref import WeakSet

from demitasse.backends.arrays import Array
from demitasse.backends.ops import BatchNorm, Concat, Split
from demitasse.backends.step import AnyStep
from demitasse.blob import Changes
from demitasse.core.config import settings
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.core.out_of_memory import with_location
from demitasse.errors import DemitasseError, ErrorCode, NetError
from demitasse.memory.transfers import Guard, current_guard
from demitasse.plan.entry import Entry, Group, Place
from demitasse.plan.stretch import Stretch
from demitasse.plan.waiting import Waiting

__all__ = ["Plan", "Ran"]

Ran = Sequence[tuple[AnyStep | None, Group | None]]
"""For each layer the Step that ran it, and the group whose Step keeps what its gradient needs."""

MOST_JOINED = 3
"""Of how many layers gradients may be computed as one."""

LONGEST = 40
"""How many layers may run as one; backends take fewer."""


class Watch(Protocol):
    """Who is told what a plan runs."""

    def begin(self) -> None:
        """A pass begins."""

    def ran(self, layer: int, *, backward: bool) -> None:
        """A layer, and those that run as one with it, have run."""


class Part(FrozenStruct):
    """Layers that follow each other: a stretch, or some that are not."""

    first: int
    last: int
    stretch: Stretch | None


class _Back(FrozenStruct):
    """A part of a backward pass, and what ran its layers forward."""

    part: Part
    ran: list[tuple[AnyStep | None, Group | None]]


class Recorded(Protocol):
    """Passes that were recorded."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its own that it needs on the device."""


class Plan:
    """The layers of a net, prepared for its device.

    Args:
        places: The layers with their blobs.
        changes: Where the blobs note changes of their shapes and memories.
        lowered: Whether the backend is asked; False runs every layer's portable code.
        hidden: Ids of blobs that one layer writes, one reads, and nobody else will ask for.
        arrange: Called when the shapes of all blobs are known, before Steps are prepared; None for
            nobody.

    Attributes:
        watch: Is told what runs, to take the time; None for nobody.
        completed: Called in a backward pass with each layer, or the first of some that run as one,
            once it is done; None for nobody.
        recorded: What was recorded of it, for as long as others have it.
    """

    def __init__(
        self,
        places: Sequence[Place],
        changes: Changes,
        *,
        lowered: bool,
        hidden: frozenset[int] = frozenset(),
        arrange: Callable[[], None] | None = None,
    ) -> None:
        self.entries = [Entry(place, lowered=lowered) for place in places]
        self.lowered, self._hidden, self._arrange = lowered, hidden, arrange
        self.watch: Watch | None = None
        self.completed: Callable[[int], None] | None = None
        self.recorded: WeakSet[Recorded] = WeakSet()
        for entry in self.entries:
            entry.tell(changes)
        self._changes, self._seen, self._parted = changes, -1, -1
        self._parted_back = -1
        self._parts_back: dict[tuple[int, int], _Back] = {}
        self._parts_known: dict[tuple[int, int], Sequence[Part]] = {}
        self._dynamic = [i for i, place in enumerate(places) if place.layer.dynamic_shapes]

    def forward(self, start: int, end: int) -> list[Array]:
        """Run layers ``start`` to ``end``, both included.

        Returns:
            Weighted sums of the loss tops on the way, each a 0-d device array.
        """
        terms: list[Array] = []
        if self.watch is not None:
            self.watch.begin()
        if start > end:
            return terms
        guard = current_guard()
        hurried = (
            self.watch is not None or guard is not None or settings.get_often("debug_fill_stale")
        )
        with Waiting(self.entries[start].layer.device.backend) as waiting:
            for first, last in self._segments(start, end):
                if self._seen != self._changes.number:
                    waiting.end()
                    self._prepare(first, last)
                for part in self._parts(first, last):
                    if part.stretch is None or hurried:
                        terms += self._one_by_one(part, waiting, guard, hurried=hurried)
                    else:
                        waiting.end()
                        with self._naming(part):
                            part.stretch.run(
                                partial(self._one_by_one, part, waiting, None, hurried=False)
                            )
        now = self._changes.number
        if self._seen != now and all(entry.seen == now for entry in self.entries):
            if self._seen < 0:
                self.entries[0].layer.device.backend.prepared()
            self._seen = now
        return terms

    def again(self) -> bool:
        """Make the calls of an earlier pass over all layers again, where they are all it was.

        What surrounds a pass takes longer than the calls of a small net. They need none of it:
        nobody else looks at the blobs in between, and the host's libraries compute nothing.

        Returns:
            Whether that was possible, and has been done.
        """
        number = self._changes.number
        if self._seen != number or self._parted != number or self.watch is not None:
            return False
        parts = self._parts_known.get((0, len(self.entries) - 1), ())
        if len(parts) != 1 or parts[0].stretch is None:
            return False
        try:
            return parts[0].stretch.again()
        except DemitasseError as error:
            self._name(parts[0], error)
            raise

    @contextmanager
    def _naming(self, part: Part) -> Iterator[None]:
        """Name the layers of a part in errors of calls that were put off, or made again."""
        try:
            yield
        except DemitasseError as error:
            self._name(part, error)
            raise

    def _name(self, part: Part, error: DemitasseError) -> None:
        """Say in an error which layers it is of, unless it does."""
        if not error.place:
            entries = self.entries[part.first : part.last + 1]
            called = [entry.place.called for entry in entries if not entry.layer.is_alias]
            error.at(" to ".join(dict.fromkeys([called[0], called[-1]])))

    def _one_by_one(
        self, part: Part, waiting: Waiting, guard: Guard | None, *, hurried: bool
    ) -> list[Array]:
        """Run the layers of a part; return the weighted sums of their loss tops."""
        terms: list[Array] = []
        index = part.first
        while index <= part.last:
            entry, number = self.entries[index], index
            group = self._group(index, part.last)
            if hurried or not self._may_wait(index, group):
                waiting.end()
            else:
                waiting.begin()
            if guard is not None:
                guard.at(entry.place.called, "forward", feeds=not entry.place.bottom)
            try:
                if group is None:
                    entry.forward()
                    index += 1
                else:
                    self._forward_group(index, group)
                    index += group.count
            except (DemitasseError, MemoryError, OSError) as error:
                fault = _fault(error, entry, "forward")
                raise fault from fault.__cause__
            if entry.layer.loss_weights:
                waiting.end()
                terms += entry.layer.loss_terms(entry.place.top)
            if self.watch is not None:
                self.watch.ran(number, backward=False)
        if part.stretch is not None:
            waiting.end()
        return terms

    def backward(self, start: int, end: int) -> None:
        """Run layers ``start`` down to ``end``, both included, those that take part."""
        if self.watch is not None:
            self.watch.begin()
        guard = current_guard()
        observed = self.watch is not None or self.completed is not None or guard is not None
        if observed or settings.get_often("debug_fill_stale"):
            self._back(start, end, guard)
            return
        index = start
        while index >= end:
            part = self._part_back(index, end)
            if part.stretch is None:
                self._back(index, part.first, None)
            else:
                with self._naming(part):
                    part.stretch.run(partial(self._back, index, part.first, None))
            index = part.first - 1

    def _back(self, start: int, end: int, guard: Guard | None) -> None:
        """Run layers ``start`` down to ``end`` one by one."""
        index = start
        while index >= end:
            entry = self.entries[index]
            group, count = entry.ran_in, 1
            joined = self._joined(index, end)
            if guard is not None:
                guard.at(entry.place.called, "backward")
            try:
                if joined is not None:
                    joined.step.backward()
                    count = joined.count
                elif group is not None:
                    count = self._backward_group(index, end, group)
                elif entry.place.backward:
                    entry.backward()
            except (DemitasseError, MemoryError, OSError) as error:
                fault = _fault(error, entry, "backward")
                raise fault from fault.__cause__
            index -= count
            if self.watch is not None:
                self.watch.ran(index + 1, backward=True)
            if self.completed is not None:
                self.completed(index + 1)

    def _part_back(self, start: int, end: int) -> Part:
        """Return the layers from ``start`` down that are a stretch in backward, or that are not."""
        if self._parted_back != self._changes.number:
            self._parts_back.clear()
            self._parted_back = self._changes.number
        known = self._parts_back.get((start, end))
        if known is not None and known.ran == [
            (entry.ran, entry.ran_in) for entry in self.entries[known.part.first : start + 1]
        ]:
            return known.part
        part = self._cut_back(start, end)
        ran = [(entry.ran, entry.ran_in) for entry in self.entries[part.first : start + 1]]
        self._parts_back[start, end] = _Back(part, ran)
        return part

    def _cut_back(self, start: int, end: int) -> Part:
        if self.entries[start].layer.device.backend.call_key() is None:
            return Part(end, start, None)
        index, kind = start, self._repeats_back(start)
        while index >= end and self._repeats_back(index) == kind:
            group = self.entries[index].ran_in
            index -= 1 if group is None else group.count
        first = max(index + 1, end)
        entries = self.entries[first : start + 1]
        computes = kind and any(entry.place.backward for entry in entries)
        return Part(first, start, Stretch(entries, backward=True) if computes else None)

    def _repeats_back(self, index: int) -> bool:
        """Whether the gradient of a layer, and of those it ran with, is calls to be noted."""
        entry = self.entries[index]
        if entry.ran_in is not None:
            return entry.ran_in.step.backward_repeats
        if not entry.place.backward:
            return True
        return entry.ran is not None and entry.ran.backward_repeats

    def ran(self) -> Ran:
        """Return what the last forward pass ran of each layer, which its gradient comes from."""
        return [(entry.ran, entry.ran_in) for entry in self.entries]

    def follow(self, ran: Ran) -> None:
        """Let the next backward pass follow another forward pass than the last."""
        for entry, (step, group) in zip(self.entries, ran, strict=True):
            entry.ran, entry.ran_in = step, group

    def reshape(self) -> None:
        """Let every layer give its tops their shapes."""
        if self._seen != self._changes.number:
            self._prepare(0, len(self.entries) - 1)

    def reshape_layers(self) -> None:
        """Let every layer give its tops their shapes, and prepare nothing."""
        self._reshape(self.entries)

    def steps(self) -> list[AnyStep | None]:
        """Return what each layer's next forward runs."""
        return [entry.step for entry in self.entries]

    def runs(self) -> list[int]:
        """Return, for each layer, the last of those that may run as one with it."""
        end, last, found = len(self.entries) - 1, -1, []
        for index in range(len(self.entries)):
            last = max(last, self._run(index, end), self._parted_by(index))
            found.append(last)
        return found

    @property
    def workspace(self) -> int:
        """Scratch memory of all prepared Steps, in bytes."""
        return sum(entry.workspace for entry in self.entries)

    @property
    def held(self) -> int:
        """The same without what they borrow of the engine's; what was recorded needs some too."""
        own = sum(entry.held for entry in self.entries)
        return own + sum(recorded.nbytes for recorded in self.recorded)

    def _forward_group(self, index: int, group: Group) -> None:
        """Run the layers of a group as one."""
        group.step.forward()
        ran_in = group if group.step.own_backward else None
        for member in self.entries[index : index + group.count]:
            member.ran, member.ran_in = member.step, ran_in

    def _backward_group(self, index: int, end: int, group: Group) -> int:
        """Compute the gradients of a group whose last layer is ``index``; return its length."""
        first = index - group.count + 1
        whole = first >= end and all(e.ran_in is group for e in self.entries[first : index + 1])
        if not whole or self.entries[first].group is not group:
            message = (
                "its last forward pass ran as one with its neighbours, so its gradient cannot be "
                "computed alone; run forward over the same range of layers, or with lowered=False"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE)
        group.step.backward()
        return group.count

    def _joined(self, index: int, end: int) -> Group | None:
        """Return the layers up to ``index`` whose gradients are one's now, if ``end`` allows."""
        group = self.entries[index].back
        if group is None or index - group.count + 1 < end:
            return None
        behind = index + 1
        if group.last is not None:
            behind -= group.last.count
            if any(member.ran_in is not group.last for member in self.entries[behind : index + 1]):
                return None
        members = self.entries[index - group.count + 1 : behind]
        alone = all(m.ran is not None and m.ran is m.step and m.ran_in is None for m in members)
        return group if alone else None

    def _segments(self, start: int, end: int) -> list[tuple[int, int]]:
        """Cut a range after each layer whose top shapes depend on values."""
        cuts = [i for i in self._dynamic if start <= i < end]
        firsts = [start, *(i + 1 for i in cuts)]
        return list(zip(firsts, [*cuts, end], strict=True))

    def _group(self, index: int, last: int) -> Group | None:
        """Return the group that begins with a layer, if it ends at ``last`` or before."""
        group = self.entries[index].group
        return None if group is None or index + group.count - 1 > last else group

    def _may_wait(self, index: int, group: Group | None) -> bool:
        entry = self.entries[index]
        step = entry.step if group is None else group.step
        return entry.layer.is_alias if step is None else step.may_wait

    def _repeats(self, index: int, group: Group | None) -> bool:
        entry = self.entries[index]
        step = entry.step if group is None else group.step
        return entry.layer.is_alias if step is None else step.repeats

    def _parts(self, first: int, last: int) -> Sequence[Part]:
        """Cut a range of prepared layers into stretches and what lies between them."""
        if self._parted != self._changes.number:
            self._parts_known.clear()
            self._parted = self._changes.number
        known = self._parts_known.get((first, last))
        if known is None:
            known = self._parts_known[first, last] = list(self._cut(first, last))
        return known

    def _cut(self, first: int, last: int) -> Iterator[Part]:
        begin = index = first
        repeats = False
        if self.entries[first].layer.device.backend.call_key() is None:
            index = last + 1
        while index <= last:
            group = self._group(index, last)
            may = self._repeats(index, group) and not self.entries[index].layer.loss_weights
            if may != repeats and index > begin:
                yield self._part(begin, index - 1, stretch=repeats)
                begin = index
            repeats = may
            index += 1 if group is None else group.count
        yield self._part(begin, last, stretch=repeats)

    def _part(self, first: int, last: int, *, stretch: bool) -> Part:
        entries = self.entries[first : last + 1]
        computes = stretch and any(entry.step is not None for entry in entries)
        return Part(first, last, Stretch(entries) if computes else None)

    def _prepare(self, start: int, end: int) -> None:
        """Reshape and lower those of a range whose shapes may have changed."""
        part = self.entries[start : end + 1]
        if all(entry.seen == self._changes.number for entry in part):
            return
        self._reshape(part)
        if self._arrange is not None and len(part) == len(self.entries):
            self._arrange()
        fresh = [self.entries[i] for i in range(start, end + 1) if self._lowered(i, end)]
        for entry in reversed(fresh):
            with _named(entry, "preparation"):
                entry.lower_backward()
        self._fuse(start, end)
        self._join(start, end)
        for entry in part:
            entry.tell(self._changes)
            entry.seen = self._changes.number

    def _reshape(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            with _named(entry, "reshape"):
                entry.reshape()

    def _lowered(self, index: int, end: int) -> bool:
        entry = self.entries[index]
        after = self.entries[index + 1 : self._run(index, end) + 1]
        with _named(entry, "preparation"):
            return entry.lower([op for member in after if (op := member.layer.op)])

    def _fuse(self, start: int, end: int) -> None:
        """Group the layers of a range that may run as one with the one before them."""
        index = start
        while index <= end:
            head = self.entries[index]
            head.group = None
            last = self._run(index, end)
            if last > index:
                with _named(head, "preparation"):
                    head.fuse(self.entries[index + 1 : last + 1])
            for member in self.entries[index + 1 : index + (head.group.count if head.group else 1)]:
                member.group = None
            index += head.group.count if head.group else 1

    def _join(self, start: int, end: int) -> None:
        """Group the layers of a range whose gradients may be computed as one."""
        together = self._together(start, end)
        for index in range(start, end + 1):
            entry, last = self.entries[index], together.get(index)
            own = index if last is None else index - last.count + 1
            entry.back, first = None, own
            while first > start and own - first < MOST_JOINED - 1 and self._links(first):
                first -= 1
            if first < own:
                with _named(entry, "preparation"):
                    entry.join(self.entries[first:own], last)

    def _together(self, start: int, end: int) -> dict[int, Group]:
        """Return the groups that compute their gradients as one, by their last layers."""
        groups = ((index, self.entries[index].group) for index in range(start, end + 1))
        return {
            index + group.count - 1: group
            for index, group in groups
            if group is not None and group.step.own_backward
        }

    def _parted_by(self, index: int) -> int:
        """Return the last layer whose gradient a Concat may part; itself where it is none.

        What it parts lies in other places than the whole, which has to stay until all is read.
        """
        last = index
        if self.lowered and isinstance(self.entries[index].layer.op, Concat):
            end = min(index + MOST_JOINED, len(self.entries)) - 1
            while last < end and self._links(last + 1):
                last += 1
                if isinstance(self.entries[last].layer.op, BatchNorm):
                    return self._run(last, len(self.entries) - 1)
        return last

    def _links(self, index: int) -> bool:
        """Whether the gradient of a layer may be computed along with that of the one before."""
        entry, before = self.entries[index], self.entries[index - 1]
        if entry.layer.op is None or before.layer.op is None:
            return False
        one, other = before.place, entry.place
        weighted = before.layer.loss_weights or entry.layer.loss_weights
        reads = one.top == other.bottom
        if isinstance(before.layer.op, Split) and isinstance(entry.layer.op, BatchNorm):
            # the last of the Split's readers whose gradient is computed: those of the others are
            reads = len(other.bottom) == 1 and other.bottom[0] in one.top
        return one.backward and other.backward and reads and not weighted

    def _run(self, index: int, end: int) -> int:
        """Return the index of the last layer that may run as one with layer ``index``."""
        layer, top = self.entries[index].layer, self.entries[index].place.top
        if not self.lowered or layer.op is None or layer.loss_weights or len(top) != 1:
            return index
        end = min(end, index + LONGEST - 1)
        while index < end:
            follower = self.entries[index + 1]
            if not follower.follows(layer.op, top[0], hidden=id(top[0]) in self._hidden):
                break
            index, top = index + 1, follower.place.top
        return index


@contextmanager
def _named(entry: Entry, doing: str) -> Iterator[None]:
    """Name the layer in errors of the block."""
    try:
        yield
    except (DemitasseError, MemoryError, OSError) as error:
        fault = _fault(error, entry, doing)
        raise fault from fault.__cause__


def _fault(error: Exception, entry: Entry, doing: str) -> Exception:
    """Return an error that names the layer, and of a lack of memory the pass."""
    explain = entry.layer.device.backend.explained
    return with_location(error, entry.place.called, doing=doing, explain=explain)
