"""The passes of a net: its plan run forward and backward, and what surrounds that.

Callbacks and debug lines stand between layers, live views of blobs are brought up to date around a
pass, and buffers that blobs share are opened for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from demitasse.backends.arrays import Array
from demitasse.backends.storage import Stored
from demitasse.blob import Changes
from demitasse.core.config import settings
from demitasse.errors import ErrorCode, NetError
from demitasse.memory import SyncedMemory
from demitasse.memory.guard import Guard, transfer_mode, watching
from demitasse.memory.leases import leased_memories, leases_alive
from demitasse.net.beginning import begin
from demitasse.net.debug import NetDebug
from demitasse.net.recordable import obstacle, sources
from demitasse.net.states import States
from demitasse.net.structure import Structure
from demitasse.plan import Plan
from demitasse.plan.liveness import Allocator, hidden_blobs

__all__ = ["Callback", "Passes"]

Callback = Callable[[int], None]


class Passes:
    """Runs the layers of a net by a plan.

    Args:
        structure: The net's parts.
        kept: Names of the blobs whose values are kept; None for all.
        lowered: Whether backends are asked for Steps.

    Attributes:
        plan: How the layers run.
        debug_info: Whether mean absolute values of everything are written to the log.
        states: What forward passes leave for later ones, to be taken back.
        launched_by: Who ran the last forward pass, where it was launched as one; None where it was
            queued.
        gradients_whole: Whether no backward pass was cut short since the parameters' gradients
            were cleared.
        before_forward, after_forward: Called with a layer's index around its forward.
        before_backward, after_backward: The same around its backward.
    """

    def __init__(
        self,
        structure: Structure,
        kept: frozenset[str] | None,
        *,
        lowered: bool,
        storage: Stored = "float",
    ) -> None:
        self._structure, self._kept, self._storage = structure, kept, storage
        self._allocator: Allocator | None = None
        self._changes = Changes()
        self._serials: tuple[int, frozenset[int]] = (-1, frozenset())
        self.plan = self._planned(lowered=lowered)
        self.debug_info, self.gradients_whole = False, True
        self._guard = Guard()
        self._obstacle: tuple[tuple[int, Plan], str] | None = None
        self._begun = False
        self.launched_by: object = None
        self.states = States(structure.layers)
        self._cut: tuple[int, int] | None = None  # the layers of a forward pass that was cut short
        self.before_forward: list[Callback] = []
        self.after_forward: list[Callback] = []
        self.before_backward: list[Callback] = []
        self.after_backward: list[Callback] = []

    @property
    def changes(self) -> int:
        """The number of the last change of a blob's shape or memory."""
        return self._changes.number

    @property
    def last(self) -> int:
        """The index of the last layer."""
        return len(self._structure.layers) - 1

    @property
    def sources(self) -> int:
        """How many layers at the beginning only bring data in."""
        return sources(self.plan.entries)

    def obstacle(self) -> str:
        """Say why the passes cannot be recorded; "" where they can."""
        if self._called_between:
            return "callbacks stand between layers"
        if self.debug_info or self.plan.watch is not None:
            return "layers are looked at one by one"
        if self._leased():
            return "somebody holds a live view of a blob (blob.data)"
        if settings.get_often("debug_fill_stale"):
            return "stale memory is poisoned"
        key = (self._changes.number, self.plan)
        if self._obstacle is None or self._obstacle[0] != key:
            self._obstacle = (key, obstacle(self.plan.entries))
        return self._obstacle[1]

    def plan_anew(self) -> None:
        """Forget what was prepared, as when the net has moved to another device."""
        self.plan = self._planned(lowered=self.plan.lowered)

    def forward(self, first: int, last: int) -> list[Array]:
        """Run layers ``first`` to ``last``, both included.

        Returns:
            Weighted sums of the loss tops on the way, each a 0-d device array.
        """
        if not self._begun:
            begin(self._structure.params_list)
            self._begun = True
        self.launched_by = None
        try:
            with self._pass(first, last, backward=False):
                self.states.save(first, last)
                terms = self._forward(first, last)
        except BaseException:
            self._cut = (first, last)
            raise
        if self._cut is not None and first <= self._cut[0] and self._cut[1] <= last:
            self._cut = None
        return terms

    def again(self) -> bool:
        """Run all layers forward again as an earlier pass did, where that made calls alone.

        Nothing may carry over from pass to pass (``states``).

        Returns:
            Whether that was possible, and has been done.
        """
        if self._cut is not None or self.debug_info or self._called_between:
            return False
        if watching() is not None:
            return False
        try:
            self._take_over_views()
            made = self.plan.again()
            if made:
                self._show_views()
        except BaseException:
            self._cut = (0, self.last)
            raise
        return made

    def whole(self, run: Callable[[], Array | None]) -> Array | None:
        """Run all layers forward by a function of one's own, which may do so in parts.

        Args:
            run: Returns their loss.
        """
        try:
            loss = run()
        except BaseException:
            self._cut = (0, self.last)
            raise
        self._cut = None
        return loss

    def backward(self, first: int, last: int) -> None:
        """Run layers ``first`` down to ``last``, both included.

        Raises:
            NetError: The blobs of a net that only runs forward share buffers; or they are not all
                of one forward pass.
        """
        if self._allocator is not None and not self._allocator.backward:
            message = (
                "a net in phase TEST made with keep=... only runs forward; leave keep out to run "
                "backward"
            )
            raise NetError(message, code=ErrorCode.UNSUPPORTED, field="keep")
        if self._storage != "float":
            message = f"a net whose values are kept as {self._storage} only runs forward"
            raise NetError(message, code=ErrorCode.UNSUPPORTED, field="storage", got=self._storage)
        if self._cut is not None:
            message = (
                "the last forward pass was not done to its end, so there is nothing that backward "
                "could begin with; run forward again"
            )
            raise NetError(message, code=ErrorCode.BAD_STATE)
        try:
            with self._pass(first, last, backward=True):
                self._backward(first, last)
        except BaseException:
            self.gradients_whole = False
            raise
        if self.debug_info:
            NetDebug(self._structure).totals()

    @property
    def _called_between(self) -> bool:
        """Whether somebody is called between layers."""
        forward = self.before_forward or self.after_forward
        return bool(forward or self.before_backward or self.after_backward)

    def _forward(self, first: int, last: int) -> list[Array]:
        if not (self._called_between or self.debug_info):
            return self.plan.forward(first, last)
        # layer by layer, so that no layers run as one and each has its own gradient
        terms: list[Array] = []
        for index in range(first, last + 1):
            self._call(self.before_forward, index)
            terms += self.plan.forward(index, index)
            if self.debug_info:
                NetDebug(self._structure).forward(index)
            self._call(self.after_forward, index)
        return terms

    def _backward(self, first: int, last: int) -> None:
        if not (self.before_backward or self.after_backward or self.debug_info):
            self.plan.backward(first, last)
            return
        for index in range(first, last - 1, -1):
            self._call(self.before_backward, index)
            self.plan.backward(index, index)
            if self.debug_info and self._structure.needs.layers[index]:
                NetDebug(self._structure).backward(index)
            self._call(self.after_backward, index)

    def _call(self, callbacks: Sequence[Callback], index: int) -> None:
        if callbacks and (guard := watching()) is not None:
            guard.at(f"a callback at layer {self._structure.layers[index].name!r}")
        for callback in callbacks:
            callback(index)

    @contextmanager
    def _pass(self, first: int, last: int, *, backward: bool) -> Iterator[None]:
        """Prepare the memories for a pass over some layers, and release them after it."""
        allocator = self._allocator
        if allocator is not None and allocator.backward != backward:
            allocator = None
        if allocator is not None:
            if not backward:
                self.plan.reshape()
            allocator.update(self.plan.runs)
            allocator.check_reads(first, last)
        try:
            if allocator is not None:
                allocator.arena.open = True
            self._take_over_views()
            mode = transfer_mode()
            if mode == "allow":
                yield
                self._show_views()
            else:
                with self._guard.watch(mode):
                    yield
                    self._guard.after_pass()
                    self._show_views()
        finally:
            if allocator is not None:
                allocator.arena.open = False

    def _take_over_views(self) -> None:
        """Let what was written through live views of blobs count."""
        for memory in self._leased():
            memory.before_pass()

    def _show_views(self) -> None:
        """Bring live views of blobs up to date."""
        for memory in self._leased():
            memory.after_pass()

    def _planned(self, *, lowered: bool) -> Plan:
        """Return a plan of the layers, and let the blobs that are not kept share buffers."""
        places = self._structure.places()
        if self._kept is None:
            return Plan(places, self._changes, lowered=lowered)
        if self._allocator is not None:
            self._allocator.release()
        wanted = self._kept.union(self._structure.inputs, self._structure.outputs)
        kept = [blob for name, blob in self._structure.blobs.items() if name in wanted]
        if self._structure.phase == "TRAIN":
            self._allocator = Allocator(places, kept, self._changes, backward=True)
            return Plan(places, self._changes, lowered=lowered)
        places = [replace(place, backward=False) for place in places]
        self._allocator = Allocator(places, kept, self._changes)
        hidden = hidden_blobs(places, kept)
        joins = lowered and places[0].layer.device.backend.joins_in_place
        arrange = self._allocator.find_homes if joins else None
        return Plan(places, self._changes, lowered=lowered, hidden=hidden, arrange=arrange)

    def _leased(self) -> list[SyncedMemory]:
        """Return the memories of the net that somebody holds live views of."""
        if not leases_alive():
            return []
        if self._serials[0] != self._changes.number:
            blobs = [*self._structure.blob_list, *self._structure.params_list]
            serials = (m.serial for b in blobs for m in (b.data_memory, b.diff_memory))
            self._serials = (self._changes.number, frozenset(serials))
        ours = self._serials[1]
        return [memory for memory in leased_memories() if memory.leased and memory.serial in ours]
