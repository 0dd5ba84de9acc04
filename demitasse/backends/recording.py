"""Recordings: work that runs once under a recorder, and is replayed as a whole.

To prepare a call on the host, or to queue a kernel on a device, takes a few microseconds of Python;
a small net has hundreds of both in an iteration, each shorter than that. If nothing but numbers
changes from one iteration to the next, a recording repeats all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol


class NotRecorded(Exception):  # noqa: N818 - not an error: the work is done without
    """Work cannot be recorded; the message is the reason."""


class Recording(Protocol):
    """Recorded work."""

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the work needs besides its arrays."""

    @property
    def compiled(self) -> bool:
        """True if a replay issues nothing but compiled calls, which need no preparations."""

    def play(self) -> None:
        """Repeat the work, on the same arrays and with the present numbers of the host."""


class Recorder(Protocol):
    """Interface of a backend's recorder.

    Attributes:
        computes: True if the work is done while it is recorded, as on a host; False on a device
            that computes nothing until the recording is played. There the work may consist of
            Steps, clearing of memories and prepared updates. It must not copy between host and
            device, or read numbers of the host except those that are written before each replay.
    """

    computes: ClassVar[bool]

    def key(self) -> Hashable:
        """Return the environment of recordings, which are valid while it is unchanged."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Run the block on the stream that records.

        The block runs after work queued before, and before work queued later.
        """

    def record(self, work: Callable[[], object], /) -> Recording:
        """Run ``work`` and record it.

        Raises:
            NotRecorded: The work cannot be recorded. A recorder that computes has done it
                nevertheless.
        """
