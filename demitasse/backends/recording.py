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
        """Queue the work with the present numbers of the host."""


class PreparedUpdate(Protocol):
    """An update of arrays that stay where they are."""

    def write(self, updates: Sequence[Update], /) -> None:
        """Copy an iteration's numbers to the device, for each piece in order."""

    def queue(self) -> None:
        """Queue the update, by the numbers that are on the device when it is done."""


class RecordedUpdates(UpdateKernels, Protocol):
    """Fast updates that can be recorded."""

    def prepare(self, pieces: Sequence[Piece], /) -> PreparedUpdate:
        """Return the update of these arrays, for numbers that are given later."""

    def clip_scale(self, total: Array, limit: float, /) -> Array:
        """Return the factor that clips the norm of the gradients to ``limit``.

        Shapes: ``total``, the sum of their squares, () -> ().
        """


class Recorder(Protocol):
    """Interface of a backend's recorder.

    Work is recorded that the device can do by itself: Steps, clearing memories, prepared updates.
    The work must not copy between host and device, or read numbers of the host except those that
    Steps and updates write before each replay.
    """

    @property
    def updates(self) -> RecordedUpdates:
        """The backend's updates."""

    def aside(self) -> AbstractContextManager[None]:
        """Run work inside the block on the capture stream, as a warm-up.

        The work runs after work queued before, and before work queued later.
        """

    def record(self, work: Callable[[], None], /) -> Recording:
        """Run ``work`` and capture the queued work; the device computes nothing yet.

        Raises:
            NotRecorded: It cannot be recorded.
        """


class CapturedCalls(Protocol):
    """Captured calls of compiled code."""

    @property
    def whole(self) -> bool:
        """True if the calls were the whole computation."""

    @property
    def compiled(self) -> bool:
        """True if the calls have been replayed and can run outside a pass."""

    def play(self) -> None:
        """Replay the calls with the same arguments."""
