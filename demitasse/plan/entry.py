"""One layer of a plan: its blobs, the Step that runs it, and why nothing faster does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from demitasse.backends.ops import Op
from demitasse.backends.recent import Recent
from demitasse.backends.step import AnyStep, Declined, Operands
from demitasse.blob import Blob, Changes
from demitasse.core.frozen_struct import FrozenStruct
from demitasse.layers.base import Layer

__all__ = ["Entry", "Group", "Place"]

KEPT_SHAPES = 4
"""For how many shapes of its blobs a layer's Steps stay prepared."""


class Choice(FrozenStruct):
    """What runs a layer, for some shapes of its blobs.

    Attributes:
        step: The Step; None for the layer's portable code.
        why: Why nothing faster runs; empty where the fastest does.
    """

    step: AnyStep | None
    why: str = ""


class Group(FrozenStruct):
    """Layers that follow each other, run by one Step.

    Attributes:
        step: The Step.
        count: How many layers there are.
        last: Where it is of gradients, those of its last layers that also run forward as one; None
            where each runs by itself.
    """

    step: AnyStep
    count: int
    last: Group | None = None


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

    Args:
        place: The layer with its blobs.
        lowered: Whether the backend is asked for Steps.

    Attributes:
        step: What the next forward runs.
        ran: What the last forward ran; backward follows it.
        group: The layers from this one on that run as one, or None.
        ran_in: The group whose Step ran this layer and keeps what its gradient needs, or None.
        back: The layers up to this one whose gradients are computed as one, or None.
        why: Why nothing faster runs.
        why_alone: Why no more of the layers after it run as one with it.
        seen: The number of the last change when its shapes were last looked at.
    """

    def __init__(self, place: Place, *, lowered: bool) -> None:
        self.place, self.layer = place, place.layer
        self.step: AnyStep | None = None
        self.ran: AnyStep | None = None
        self.group: Group | None = None
        self.ran_in: Group | None = None
        self.back: Group | None = None
        self.why = self.why_alone = ""
        self.seen = -1
        self._lowered = lowered
        self._weighted = [blob.shape for blob in place.top]
        self._choices: Recent[Choice] = Recent(KEPT_SHAPES)
        self._groups: Recent[tuple[Group | None, str]] = Recent(KEPT_SHAPES)
        self._backs: Recent[tuple[Group | None]] = Recent(KEPT_SHAPES)

    def tell(self, changes: Changes) -> None:
        """Have all its blobs note changes there, also those it got from another net."""
        for blob in (*self.place.bottom, *self.place.top, *self.layer.blobs):
            blob.tell(changes)

    def reshape(self) -> None:
        """Let the layer give its tops their shapes."""
        self.layer.run_reshape(self.place.bottom, self.place.top)
        shapes = [blob.shape for blob in self.place.top]
        if shapes != self._weighted:
            self.layer.fill_loss_weights(self.place.top)
            self._weighted = shapes

    def lower(self, followers: Sequence[Op] = ()) -> bool:
        """Find or prepare the Step for the present shapes; True when it is a new one.

        Args:
            followers: What the layers after it do that may run as one with it, in order.
        """
        op = self.layer.op
        if op is None or not self._lowered:
            self.step = None
            self.why = "plans are off" if op is not None else ""
            return False
        found = self._choices.find(self._key(op))
        if found is None:
            try:
                self.step = self.layer.device.backend.lower(op, self._operands(followers))
            except Declined as declined:
                found = self._choices.keep(self._key(op), Choice(None, str(declined)))
            else:
                return True
        self.step, self.why = found.step, found.why
        return False

    def lower_backward(self) -> None:
        """Prepare the gradient of a new Step; without one the layer runs its portable code.

        Only now is the Step kept: one whose preparation was interrupted is never met again.
        """
        op = self.layer.op
        if op is None or self.step is None:
            return
        choice = Choice(self.step, "; ".join(self.step.declined))
        if self.place.backward:
            try:
                self.step.prepare_backward()
            except Declined as declined:
                choice = Choice(None, f"its gradient: {declined}")
        self.step, self.why = choice.step, choice.why
        self._choices.keep(self._key(op), choice)

    def fuse(self, followers: Sequence[Entry]) -> None:
        """Find or prepare a group of this layer and as many of the ``followers`` as possible.

        Args:
            followers: The layers after it that may run as one with it, in order.
        """
        members = [self, *followers]
        key = tuple(member._key(op) for member in members if (op := member.layer.op))
        found = self._groups.find(key) or self._groups.keep(key, self._fused(members))
        self.group, self.why_alone = found

    def join(self, before: Sequence[Entry], last: Group | None = None) -> None:
        """Find or prepare a group, for the gradients, of this layer and as many as possible.

        Args:
            before: The layers before it whose gradients may be computed along, in order.
            last: The group that ends with this layer and computes its gradient as one; those are
                the layers before it.
        """
        own = self.step if last is None else last.step
        keys = tuple(entry._key(op) for entry in (*before, self) if (op := entry.layer.op))
        key = (keys, last)
        found = self._backs.find(key) or self._backs.keep(key, (self._joined(before, own, last),))
        [self.back] = found

    def _joined(
        self, before: Sequence[Entry], own: AnyStep | None, last: Group | None
    ) -> Group | None:
        """Return the longest group that ends with this layer."""
        for first in range(len(before)):
            steps = [*(entry.step for entry in before[first:]), own]
            with suppress(Declined):
                step = self.layer.device.backend.join_gradients(steps)
                return Group(step, len(steps) - 1 + (1 if last is None else last.count), last)
        return None

    def _fused(self, members: Sequence[Entry]) -> tuple[Group | None, str]:
        """Return the longest group that the backend runs as one, and why it is no longer."""
        why = ""
        chain = [member.layer.op for member in members if member.layer.op]
        operands = [member._operands() for member in members]
        steps = [member.step for member in members]
        for count in range(len(members), 1, -1):
            try:
                step = self.layer.device.backend.fuse(
                    chain[:count], operands[:count], steps[:count]
                )
            except Declined as declined:
                why = str(declined)
            else:
                return Group(step, count), why
        return None, why

    def follows(self, first: Op, top: Blob, *, hidden: bool) -> bool:
        """Whether it may run as one with layers before it, the last of which writes ``top`` alone.

        Args:
            first: What the first of them does.
            top: What the last writes.
            hidden: Whether nobody but this layer reads it.
        """
        mine, op = self.place, self.layer.op
        if op is None or self.layer.loss_weights or len(mine.top) != 1:
            return False
        if mine.bottom == mine.top == (top,):
            return True
        elsewhere = top in mine.bottom and mine.top[0] not in mine.bottom
        return hidden and elsewhere and op.joins_behind(first)

    def forward(self) -> None:
        """Compute the tops."""
        self.ran, self.ran_in = self.step, None
        if self.step is not None:
            self.step.forward()
        else:
            self.layer.run_forward(self.place.bottom, self.place.top)

    def backward(self) -> None:
        """Compute the wanted gradients, the way the last forward ran."""
        if self.ran is not None and not self.ran.portable_gradient:
            self.ran.backward()
        else:
            place = self.place
            self.layer.backward(place.top, place.propagate_down, place.bottom)

    @property
    def workspace(self) -> int:
        """Scratch memory of the prepared Steps, in bytes."""
        return sum(step.workspace for step in self._steps())

    @property
    def held(self) -> int:
        """The same without what they borrow of the engine's."""
        return sum(step.workspace for step in self._steps() if not step.borrows)

    def _steps(self) -> list[AnyStep]:
        """Return the prepared Steps, also those for other shapes than the present ones."""
        steps = [choice.step for choice in self._choices.values()]
        steps += [group.step for group, _ in self._groups.values() if group is not None]
        return [step for step in steps if step is not None]

    def _key(self, op: Op) -> tuple[object, ...]:
        # a Step may hold on to memories, so a blob with another memory is another operand
        blobs = (*self.place.bottom, *self.place.top, *self.layer.blobs)
        return (
            op,
            tuple(
                (b.data_memory.serial, b.diff_memory.serial, b.shape, b.data_memory.concat_slot)
                for b in blobs
            ),
        )

    def _operands(self, followers: Sequence[Op] = ()) -> Operands:
        place, layer = self.place, self.layer
        storage = layer.context.storage
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
            backward=place.backward and storage == "float",
            words=layer.random_words,
            draw=layer.draw,
            storage=storage,
            followers=tuple(followers),
        )
