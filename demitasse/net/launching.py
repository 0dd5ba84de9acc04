"""Work that is queued piece by piece at first, and launched as one later, where the device can."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from demitasse.backends.recording import NotRecorded, Recorder
from demitasse.core.config import settings
from demitasse.core.device import Device
from demitasse.core.log import get_logger
from demitasse.core.threads import Uninterrupted
from demitasse.errors import DeviceError
from demitasse.memory import SyncedMemory
from demitasse.memory.guard import transfer_mode
from demitasse.net.replay import Replay
from demitasse.net.states import Copies, States
from demitasse.plan import Plan, Ran

__all__ = ["Launching", "Work", "Working"]

log = get_logger(__name__)

WARM = 2
"""How often work is queued piece by piece before it is recorded: the first time prepares Steps and
compiles kernels, and after the second, which is rehearsed where the recording will be, all memories
are where they stay."""


class Working(Protocol):
    """A net (``demitasse.net.Net``), as far as it is needed here."""

    device: Device

    @property
    def plan(self) -> Plan:
        """How its layers run."""

    @property
    def changes(self) -> int:
        """The number of the last change of a blob's shape or memory."""

    @property
    def states(self) -> States:
        """What forward passes leave for later ones, to be taken back."""

    @property
    def launched_by(self) -> object:
        """Who ran the last forward pass, where it was launched as one; may be set."""

    @launched_by.setter
    def launched_by(self, value: object) -> None: ...

    def obstacle(self) -> str:
        """Say why passes that were run once cannot be recorded; "" where they can."""

    def remember(self) -> Callable[[], None]:
        """Return a function that takes back the forward passes made from now on."""


def _nothing() -> None:
    """Stand for work where there is none."""


@dataclass(frozen=True)
class Work:
    """Work on a net that may be launched as one.

    Attributes:
        queue: Queues it piece by piece.
        record: Queues it where it is recorded.
        memories: Returns all memories that it may touch.
        renew: Brings numbers of the host to the device before it is launched.
        clear: Makes ready to queue it once more, where the device could not do all of it.
    """

    queue: Callable[[], None]
    record: Callable[[Recorder], None]
    memories: Callable[[], Sequence[SyncedMemory]]
    renew: Callable[[], None] = _nothing
    clear: Callable[[], None] = _nothing


@dataclass(frozen=True)
class _Recorded:
    """Work that was recorded.

    Attributes:
        replay: Plays it.
        copies: What it begins with: copies of what it changes of the net's states.
        steps: What runs the layers in it, for a backward pass that follows.
    """

    replay: Replay
    copies: Copies
    steps: Ran


class Launching:
    """How one kind of work on a net is done: how often it was queued, its recording, its obstacles.

    As long as no blob changes its shape or its memory and no layer works on the host, the work is
    recorded, and from then on launched as one.

    Args:
        net: The net.
        what: The work in messages, in the plural.
    """

    def __init__(self, net: Working, what: str) -> None:
        self._net, self._what = net, what
        self._key: Hashable = None
        self._changes = -1
        self._seen = 0
        self._failed = False
        self._recorded: _Recorded | None = None
        self._told: set[str] = set()

    def begin(self, *more: Hashable) -> bool:
        """Whether the work may be recorded this time, or has been; otherwise it is to be queued.

        What only brings data in is then to be done first, and the rest by ``run``.

        Args:
            more: What the recorded work depends on besides the net, its shapes and memories.
        """
        net = self._net
        backend = net.device.backend
        off = settings.get_often("cuda_graphs") == "off" or transfer_mode() != "allow"
        if off or backend.recorder is None:
            self._forget(None)
            return False
        key = (net.changes, net.plan, settings.get_often("tf32"), backend, *more)
        if key != self._key or not self._intact():
            self._forget(key)
        elif self._seen and (why := net.obstacle()):
            self._tell(why)
            self._forget(key)
        self._seen += 1
        return self._seen >= WARM and not self._failed

    def run(self, work: Work) -> None:
        """Do the work as is best this time."""
        with self._net.device.backend.enter():
            self._run(work)

    def _run(self, work: Work) -> None:
        recorder = self._net.device.backend.recorder
        if recorder is None or self._changes != self._net.changes:  # data of another size
            self._forget(None)
            work.queue()
            return
        try:
            if self._seen == WARM:
                self._rehearse(work, recorder)
                return
            self._recorded = self._recorded or self._record(work, recorder)
        except (NotRecorded, DeviceError) as why:
            self._failed = True
            self._tell(str(why))
            work.clear()
            work.queue()
            return
        self._play(work, self._recorded)

    def _intact(self) -> bool:
        return self._recorded is None or self._recorded.replay.intact()

    def _forget(self, key: Hashable) -> None:
        self._key, self._changes = key, self._net.changes
        self._seen, self._failed, self._recorded = 0, False, None

    def _rehearse(self, work: Work, recorder: Recorder) -> None:
        take_back = self._net.remember()
        try:
            with recorder.aside():
                work.queue()
        except DeviceError:  # memory for another stream is perhaps not to be had
            take_back()
            raise

    def _record(self, work: Work, recorder: Recorder) -> _Recorded:
        net = self._net
        take_back, copies = net.remember(), net.states.reserve()

        def record() -> None:
            copies.make()
            work.record(recorder)

        try:
            replay = Replay(work.memories(), net.device.backend, recorder, record)
        except NotRecorded:
            take_back()
            raise
        net.plan.recorded.add(replay)
        log.debug("From now on %s are launched as one.", self._what)
        return _Recorded(replay, copies, net.plan.ran())

    def _play(self, work: Work, recorded: _Recorded) -> None:
        net = self._net
        if net.launched_by is not self:
            net.plan.follow(recorded.steps)
        work.renew()
        net.states.leave(recorded.copies)
        with Uninterrupted():
            recorded.replay.play()
            net.states.saved(recorded.copies)
        net.launched_by = self

    def _tell(self, why: str) -> None:
        if why not in self._told:
            text = "%s are queued kernel by kernel, not launched as one: %s."
            log.info(text, self._what.capitalize(), why)
            self._told.add(why)
