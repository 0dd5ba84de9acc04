"""Work of a device that is recorded once and then launched as a whole.

To queue a kernel costs the host a few microseconds; a small net has hundreds in an iteration, each
shorter than that. Where nothing but numbers changes from one iteration to the next, a backend may
record what an iteration queues, and queue all of it again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from demitasse.backends.arrays import Array
from demitasse.backends.updates import Piece, Update, UpdateKernels

__all__ = [
    "CapturedCalls",
    "NotRecorded",
    "PreparedUpdate",
    "RecordedUpdates",
    "Recorder",
    "Recording",
]


class NotRecorded(Exception):  # noqa: N818 - not an error: the work is done without
    """Work could not be recorded; the message says why. The device has done none of it."""


class Recording(Protocol):
    """Work that was recorded."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its own that the work needs on the device."""

    def play(self) -> None:
        """Queue the work, with what numbers of the host are now."""


class PreparedUpdate(Protocol):
    """An update of arrays that stay where they are."""

    def write(self, updates: Sequence[Update], /) -> None:
        """Bring an iteration's numbers to the device: those of every piece, in order."""

    def queue(self) -> None:
        """Queue the update, by the numbers that are on the device when it is done."""


class RecordedUpdates(UpdateKernels, Protocol):
    """Fast updates that can be recorded."""

    def prepare(self, pieces: Sequence[Piece], /) -> PreparedUpdate:
        """Return the update of these arrays, for numbers that are given later."""

    def clip_scale(self, total: Array, limit: float, /) -> Array:
        """Return what gradients are multiplied with so that their norm is at most ``limit``.

        Shapes: ``total``, the sum of their squares, () -> ().
        """


class Recorder(Protocol):
    """Interface of a backend's recorder.

    Work is recorded that the device can do by itself: Steps, clearing memories, prepared updates.
    Nothing in it may copy between host and device or depend on numbers of the host, but those that
    Steps and updates say they read anew.
    """

    @property
    def updates(self) -> RecordedUpdates:
        """The backend's updates."""

    def aside(self) -> AbstractContextManager[None]:
        """Let work inside the block be done where it is recorded; it is rehearsed there.

        It begins after what was queued before, and what is queued later begins after it.
        """

    def record(self, work: Callable[[], None], /) -> Recording:
        """Run ``work`` and keep what it queues; the device does none of it yet.

        Raises:
            NotRecorded: It cannot be recorded.
        """


class CapturedCalls(Protocol):
    """Calls of compiled code that were noted while they were made."""

    @property
    def whole(self) -> bool:
        """True if they are all that was done: nothing was computed but by them."""

    @property
    def compiled(self) -> bool:
        """True if they have been made again, and need nothing of what surrounds a pass."""

    def play(self) -> None:
        """Make them again, with the same arguments."""
