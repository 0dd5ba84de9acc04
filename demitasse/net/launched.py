"""Whole forward passes that somebody waits for, launched as one where the device can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from demitasse.backends.arrays import Array
from demitasse.backends.base import Backend
from demitasse.backends.recording import NotRecorded, Recorder
from demitasse.config import settings
from demitasse.errors import DeviceError
from demitasse.log import get_logger
from demitasse.memory import SyncedMemory
from demitasse.memory.guard import transfer_mode
from demitasse.net.passes import Passes
from demitasse.net.replay import Replay

__all__ = ["LaunchedForward"]

log = get_logger(__name__)

WARM = 2
"""How many passes are queued layer by layer before one is recorded; the last of them is rehearsed
where the recording will be."""


class Remembering(Protocol):
    """A net (``demitasse.net.Net``), as far as its forward pass needs it."""

    def memories(self) -> Sequence[SyncedMemory]:
        """Return all memories that passes work on."""

    def remember(self) -> Callable[[], None]:
        """Return a function that takes back the forward passes made from now on."""


class LaunchedForward:
    """Runs all layers of a net forward: layer by layer at first, later as one.

    Recorded is what comes behind the layers that bring data in, once two passes in a row have found
    the same shapes and memories. Any other forward pass in between ends that: what a Step keeps for
    its gradient is then not where the recording writes it.

    Args:
        net: Whose layers they are.
    """

    def __init__(self, net: Remembering) -> None:
        self._net = net
        self._key: object = None
        self._seen = 0
        self._failed = False
        self._replay: Replay | None = None
        self._terms: list[Array] = []
        self._told: set[str] = set()

    def run(self, passes: Passes, backend: Backend) -> list[Array]:
        """Run all layers.

        Args:
            passes: The net's.
            backend: Of the device that the net is on.

        Returns:
            Weighted sums of the loss tops, each a 0-d device array; the next run may overwrite
            them.
        """
        recorder = backend.recorder
        if recorder is None or settings.get_often("graph") == "off" or transfer_mode() != "allow":
            self._forget(None)
            return passes.forward(0, passes.last)
        key = (passes.changes, passes.plan, settings.get_often("tf32"), backend)
        fresh = key != self._key or passes.launched_by is not self
        if fresh or passes.obstacle() or not self._intact():
            self._forget(key)
            terms = passes.forward(0, passes.last)
        else:
            terms = passes.whole(lambda: self._after_sources(passes, backend, recorder))
        self._seen += 1
        passes.launched_by = self
        return terms

    def _forget(self, key: object) -> None:
        self._key, self._seen, self._failed = key, 0, False
        self._replay, self._terms = None, []

    def _intact(self) -> bool:
        return self._replay is None or self._replay.intact()

    def _after_sources(self, passes: Passes, backend: Backend, recorder: Recorder) -> list[Array]:
        """Let the layers at the beginning bring data in, then run the others as is best."""
        count, changes = passes.sources, passes.changes
        brought = passes.forward(0, count - 1) if count else []

        def rest() -> None:
            self._terms = passes.forward(count, passes.last)

        if changes != passes.changes:  # a batch of another size
            self._forget(None)
        if self._key is None or self._failed or self._seen < WARM - 1:
            rest()
        elif self._seen == WARM - 1:
            self._rehearse(recorder, rest)
        else:
            self._play(backend, rest)
        return [*brought, *self._terms]

    def _rehearse(self, recorder: Recorder, rest: Callable[[], None]) -> None:
        take_back = self._net.remember()
        try:
            with recorder.aside():
                rest()
        except DeviceError as why:  # memory for another stream is perhaps not to be had
            take_back()
            self._give_up(str(why))
            rest()

    def _play(self, backend: Backend, rest: Callable[[], None]) -> None:
        if self._replay is None:
            take_back = self._net.remember()
            try:
                self._replay = Replay(self._net.memories(), backend, rest)
            except NotRecorded as why:
                take_back()
                self._give_up(str(why))
                rest()
                return
            log.debug("From now on forward passes are launched as one.")
        self._replay.play()

    def _give_up(self, why: str) -> None:
        self._failed = True
        if why not in self._told:
            log.info("Forward passes are queued kernel by kernel, not launched as one: %s.", why)
            self._told.add(why)
