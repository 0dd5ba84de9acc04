"""Plan: a net's layers as prepared steps, and the loop that runs them.

A backend is asked once for a faster way to run each operation. As long as no blob changes its
shape or memory, a pass is a loop over what was prepared; one integer comparison finds that out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from demitasse.backends.base import Array, Operands, Step
from demitasse.backends.ops import Op
from demitasse.blob import Blob, epoch
from demitasse.errors import DemitasseError, NetError
from demitasse.layers.base import Layer

__all__ = ["Entry", "Plan"]

KEPT_STEPS = 4
"""How many shapes of one layer stay prepared."""


@dataclass(frozen=True)
class Group:
    """Layers that follow each other, each on the top of the one before, run by one Step."""

    step: Step
    count: int


@dataclass(frozen=True)
class Place:
    """One layer with its blobs and the gradients that are wanted of it."""

    layer: Layer
    bottom: tuple[Blob, ...]
    top: tuple[Blob, ...]
    propagate_down: tuple[bool, ...]
    backward: bool

    @property
    def called(self) -> str:
        """The layer as messages name it."""
        return f"layer {self.layer.name!r} ({self.layer.type})"


class Entry:
    """One layer of a plan: the Step that runs it, or None for its portable code.

    Attributes:
        step: What the next forward runs.
        ran: What the last forward ran; backward follows it.
        group: The layers from this one on that may run as one.
        ran_in: The group whose Step ran this layer and keeps what its gradient needs, or None.
        epoch: When its shapes were last looked at.
    """

    def __init__(self, place: Place, *, lowered: bool) -> None:
        self.place, self.layer = place, place.layer
        self.step: Step | None = None
        self.ran: Step | None = None
        self.group: Group | None = None
        self.ran_in: Group | None = None
        self.epoch = -1
        self._lowered = lowered
        self._weighted = [blob.shape for blob in place.top]
        self._steps: OrderedDict[tuple[object, ...], Step | None] = OrderedDict()
        self._groups: OrderedDict[tuple[object, ...], Group | None] = OrderedDict()

    def reshape(self) -> None:
        """Let the layer give its tops their shapes."""
        self.layer.reshape(self.place.bottom, self.place.top)
        shapes = [blob.shape for blob in self.place.top]
        if shapes != self._weighted:
            self.layer.fill_loss_weights(self.place.top)
            self._weighted = shapes

    def lower(self) -> bool:
        """Find or prepare the Step for the present shapes; True when it is a new one."""
        op = self.layer.op
        if op is None or not self._lowered:
            self.step = None
            return False
        key = self._key(op)
        if key in self._steps:
            self._steps.move_to_end(key)
            self.step = self._steps[key]
            return False
        self.step = self.layer.device.backend.lower(op, self._operands())
        if self.step is None:
            self._keep(key)
        return self.step is not None

    def lower_backward(self) -> None:
        """Ask a new Step for its gradient; without one the layer runs its portable code.

        Only now is the Step kept: one whose preparation was interrupted is never met again.
        """
        op = self.layer.op
        if op is None or self.step is None:
            return
        if not self.step.lower_backward(self._operands()):
            self.step = None
        self._keep(self._key(op))

    def fuse(self, followers: Sequence[Entry]) -> None:
        """Find or prepare a group of this layer and as many of the ``followers`` as possible.

        Args:
            followers: The layers behind it that may run as one with it, in order.
        """
        members = [self, *followers]
        key = tuple(member._key(op) for member in members if (op := member.layer.op))
        if key in self._groups:
            self._groups.move_to_end(key)
            self.group = self._groups[key]
            return
        self.group = None
        for count in range(len(members), 1, -1):
            part = members[:count]
            ops = [member.layer.op for member in part if member.layer.op]
            step = self.layer.device.backend.fuse(
                ops, [member._operands() for member in part], [member.step for member in part]
            )
            if step is not None:
                self.group = Group(step, count)
                break
        self._groups[key] = self.group
        while len(self._groups) > KEPT_STEPS:
            self._groups.popitem(last=False)

    def follows(self, top: Blob, *, hidden: bool) -> bool:
        """Whether it may run as one with the layer before it, whose only top is ``top``.

        Args:
            top: What that layer writes.
            hidden: Whether nobody but this layer reads it.
        """
        mine, op = self.place, self.layer.op
        if op is None or self.layer.loss_weights or len(mine.top) != 1:
            return False
        if mine.bottom == mine.top == (top,):
            return True
        elsewhere = top in mine.bottom and mine.top[0] not in mine.bottom
        return hidden and op.joins and elsewhere

    def forward(self) -> None:
        """Compute the tops."""
        self.ran, self.ran_in = self.step, None
        if self.step is not None:
            self.step.forward()
        else:
            self.layer.run_forward(self.place.bottom, self.place.top)

    def backward(self) -> None:
        """Compute the wanted gradients, the way the last forward ran."""
        if self.ran is not None:
            self.ran.backward()
        else:
            place = self.place
            self.layer.backward(place.top, place.propagate_down, place.bottom)

    @property
    def workspace(self) -> int:
        """Scratch memory of the prepared Steps, in bytes."""
        groups = (group.step for group in self._groups.values() if group is not None)
        steps = (step for step in self._steps.values() if step is not None)
        return sum(step.workspace for step in (*steps, *groups))

    def _key(self, op: Op) -> tuple[object, ...]:
        # a Step may hold on to memories, so a blob with another memory is another operand
        blobs = (*self.place.bottom, *self.place.top, *self.layer.blobs)
        return (op, tuple((b.data_memory.serial, b.diff_memory.serial, b.shape) for b in blobs))

    def _keep(self, key: tuple[object, ...]) -> None:
        self._steps[key] = self.step
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)

    def _operands(self) -> Operands:
        place, layer = self.place, self.layer
        return Operands(
            bottom=place.bottom,
            top=place.top,
            params=tuple(layer.blobs),
            saved=layer.saved,
            propagate_down=place.propagate_down,
            param_propagate_down=tuple(
                layer.param_propagate_down(i) for i in range(len(layer.blobs))
            ),
            phase=layer.phase,
            backward=place.backward,
        )


class Plan:
    """The layers of a net, prepared for its device.

    Args:
        places: The layers with their blobs.
        lowered: Whether the backend is asked; False runs every layer's portable code.
        hidden: Ids of blobs that one layer writes, one reads, and nobody else will ask for.
    """

    def __init__(
        self, places: Sequence[Place], *, lowered: bool, hidden: frozenset[int] = frozenset()
    ) -> None:
        self.entries = [Entry(place, lowered=lowered) for place in places]
        self.lowered, self._hidden = lowered, hidden
        self._epoch = -1
        self._dynamic = [i for i, place in enumerate(places) if place.layer.dynamic_shapes]

    def forward(self, start: int, end: int) -> list[Array]:
        """Run layers ``start`` to ``end``, both included.

        Returns:
            Weighted sums of the loss tops on the way, each a 0-d device array.
        """
        terms: list[Array] = []
        for first, last in self._segments(start, end):
            if self._epoch != epoch.value:
                self._prepare(first, last)
            index = first
            while index <= last:
                entry = self.entries[index]
                group = entry.group
                try:
                    if group is None or index + group.count - 1 > last:
                        entry.forward()
                        index += 1
                    else:
                        self._forward_group(index, group)
                        index += group.count
                except DemitasseError as error:
                    error.at(entry.place.called)
                    raise
                if entry.layer.loss_weights:
                    terms += entry.layer.loss_terms(entry.place.top)
        if all(entry.epoch == epoch.value for entry in self.entries):
            self._epoch = epoch.value
        return terms

    def backward(self, start: int, end: int) -> None:
        """Run layers ``start`` down to ``end``, both included, those that take part."""
        index = start
        while index >= end:
            entry = self.entries[index]
            group, count = entry.ran_in, 1
            try:
                if group is not None:
                    count = self._backward_group(index, end, group)
                elif entry.place.backward:
                    entry.backward()
            except DemitasseError as error:
                error.at(entry.place.called)
                raise
            index -= count

    def reshape(self) -> None:
        """Let every layer give its tops their shapes."""
        self._prepare(0, len(self.entries) - 1)

    def steps(self) -> list[Step | None]:
        """Return what each layer's next forward runs."""
        return [entry.step for entry in self.entries]

    def runs(self) -> list[int]:
        """Return, for each layer, the last of those that may run as one with it."""
        end, last, found = len(self.entries) - 1, -1, []
        for index in range(len(self.entries)):
            last = max(last, self._run(index, end))
            found.append(last)
        return found

    @property
    def workspace(self) -> int:
        """Scratch memory of all prepared Steps, in bytes."""
        return sum(entry.workspace for entry in self.entries)

    def _forward_group(self, index: int, group: Group) -> None:
        """Run the layers of a group as one."""
        group.step.forward()
        for member in self.entries[index : index + group.count]:
            member.ran, member.ran_in = member.step, group if group.step.own_backward else None

    def _backward_group(self, index: int, end: int, group: Group) -> int:
        """Compute the gradients of a group whose last layer is ``index``; return its length."""
        first = index - group.count + 1
        whole = first >= end and all(e.ran_in is group for e in self.entries[first : index + 1])
        if not whole or self.entries[first].group is not group:
            message = (
                "its last forward pass ran as one with its neighbours, so its gradient cannot be "
                "computed alone; run forward over the same range of layers, or with plan=False"
            )
            raise NetError(message)
        group.step.backward()
        return group.count

    def _segments(self, start: int, end: int) -> list[tuple[int, int]]:
        """Cut a range behind each layer whose top shapes depend on values."""
        cuts = [i for i in self._dynamic if start <= i < end]
        firsts = [start, *(i + 1 for i in cuts)]
        return list(zip(firsts, [*cuts, end], strict=True))

    def _prepare(self, start: int, end: int) -> None:
        """Reshape and lower those of a range whose shapes may have changed."""
        part = self.entries[start : end + 1]
        if all(entry.epoch == epoch.value for entry in part):
            return
        for entry in part:
            try:
                entry.reshape()
            except DemitasseError as error:
                error.at(entry.place.called)
                raise
        fresh = [entry for entry in part if entry.lower()]
        for entry in reversed(fresh):
            entry.lower_backward()
        self._fuse(start, end)
        for entry in part:
            entry.epoch = epoch.value

    def _fuse(self, start: int, end: int) -> None:
        """Group the layers of a range that may run as one with the one before them."""
        index = start
        while index <= end:
            head = self.entries[index]
            head.group = None
            last = self._run(index, end)
            if last > index:
                head.fuse(self.entries[index + 1 : last + 1])
            for member in self.entries[index + 1 : index + (head.group.count if head.group else 1)]:
                member.group = None
            index += head.group.count if head.group else 1

    def _run(self, index: int, end: int) -> int:
        """Return the last of the layers that may run as one with that of number ``index``."""
        layer, top = self.entries[index].layer, self.entries[index].place.top
        if not self.lowered or layer.op is None or layer.loss_weights or len(top) != 1:
            return index
        while index < end:
            follower = self.entries[index + 1]
            if not follower.follows(top[0], hidden=id(top[0]) in self._hidden):
                break
            index, top = index + 1, follower.place.top
        return index
