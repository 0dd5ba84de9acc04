"""Stretches: layers that follow each other and compute by calls of compiled code alone.

To look after memories, layouts and addresses takes Python as long as the code of a small layer
takes to run. As long as a stretch finds all memories as the pass before found them, the same calls
lead to the same ends: they are noted once, and then made again without looking at each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from demitasse.backends.recording import Notes
from demitasse.backends.step import AnyStep
from demitasse.blob import Blob
from demitasse.memory import SyncedMemory, transfers
from demitasse.memory.replay_check import ReplayCheck
from demitasse.plan.entry import Entry, Group

__all__ = ["Stretch"]

MOST_NOTED = 2
"""Of how many ways in which a pass finds memories the calls are kept: layers in place exchange two
arrays from pass to pass."""

MOST_WAITED = 64
"""Passes after which calls are noted anew at the latest, where memories were not as before.

At first that is tried after the second pass: the first one prepares what the calls need."""


class _Noted(NamedTuple):
    """What was noted of a pass.

    Attributes:
        notes: The calls.
        check: The memory states that they require and leave.
        reorders: How many of them copy from one layout to another.
        ran: What ran each layer.
    """

    notes: Notes
    check: ReplayCheck
    reorders: int
    ran: list[tuple[Entry, AnyStep | None, Group | None]]


class Stretch:
    """Layers of a plan that follow each other and compute by calls of compiled code alone.

    Args:
        entries: The layers, in the order of a forward pass.
        backward: Whether this is a part of a backward pass.
    """

    def __init__(self, entries: Sequence[Entry], *, backward: bool = False) -> None:
        self._entries, self._backward = entries, backward
        self._backend = entries[0].layer.device.backend
        self._key: Hashable = None
        self._versions: dict[int, int] = {}
        self._noted: list[_Noted] = []
        self._wait, self._waited = 1, 0

    def run(self, pass_over: Callable[[], object]) -> None:
        """Compute the tops, or the gradients.

        Args:
            pass_over: Does so layer by layer.
        """
        key = self._backend.call_key()
        if key != self._key:
            self._key, self._waited, self._noted = key, 0, []
        if self._play():
            return
        if self._waited > self._wait:
            self._note(pass_over)
            self._wait, self._waited = min(2 * self._wait, MOST_WAITED), 0  # unless it was of use
        else:
            pass_over()
            self._waited += 1
        if self._noted or self._waited > self._wait:
            self._versions = {m.serial: m.version for m in self._memories()}

    def again(self) -> bool:
        """Make the calls of an earlier pass again, and nothing else.

        It needs nothing that surrounds a pass, and looks at nothing but the memories.

        Returns:
            Whether that was possible, and has been done.
        """
        return self._key == self._backend.call_key() and self._play(alone=True)

    def _play(self, *, alone: bool = False) -> bool:
        """Make the calls again; return whether that was possible.

        Args:
            alone: Only where all of them are compiled code.
        """
        for noted in self._noted:
            if alone and not noted.notes.compiled:
                continue
            if noted.check.matches(self._versions):
                # all of it before the calls, which leave nothing of Python's in the caches
                noted.check.apply_effects(self._versions)
                if noted.reorders:
                    transfers.note(reorders=noted.reorders)
                for entry, step, group in noted.ran:
                    entry.ran, entry.ran_in = step, group
                self._wait = 1
                noted.notes.play()
                return True
        return False

    def _note(self, pass_over: Callable[[], object]) -> None:
        check = ReplayCheck(self._memories(), self._overwritten(), self._versions)
        before = transfers.reorders_here
        with self._backend.note() as notes:
            pass_over()
        if notes.whole and check.record_effects():
            ran = [(entry, entry.ran, entry.ran_in) for entry in self._entries]
            noted = _Noted(notes, check, transfers.reorders_here - before, ran)
            self._noted = [*self._noted, noted][-MOST_NOTED:]

    def _memories(self) -> list[SyncedMemory]:
        blobs = [blob for entry in self._entries for blob in _blobs(entry)]
        memories = [blob.data_memory for blob in blobs]
        if self._backward:
            memories += [blob.diff_memory for blob in blobs]
        return list({memory.serial: memory for memory in memories}.values())

    def _overwritten(self) -> frozenset[int]:
        """Return the serials of memories that the layers write before any of them reads them."""
        if self._backward:
            return frozenset()
        read: set[int] = set()
        written: set[int] = set()
        for entry in self._entries:
            place = entry.place
            if entry.layer.is_alias:
                continue
            read |= {
                blob.data_memory.serial for blob in (*place.bottom, *entry.layer.blobs)
            } - written
            written |= {blob.data_memory.serial for blob in place.top} - read
        return frozenset(written)


def _serials(blobs: Sequence[Blob]) -> set[int]:
    return {blob.data_memory.serial for blob in blobs}


def _blobs(entry: Entry) -> list[Blob]:
    place, layer = entry.place, entry.layer
    return [*place.bottom, *place.top, *layer.blobs, *layer.internal_blobs()]
