"""Recorded work on memories, and what it does to them as far as the host can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from demitasse.backends.base import Backend
from demitasse.backends.recording import Recorder
from demitasse.memory import DEVICE_HEADS, Head, SyncedMemory

__all__ = ["Replay"]


class Replay:
    """Work that was recorded once and is played again and again.

    The work finds every memory as it found it when it was recorded: what is newest on the host is
    copied to the device before it is played. Afterwards the memories say what the device holds.

    Args:
        memories: All that the work may touch; it has run on the device before.
        backend: Where it is done.
        recorder: Records it.
        work: What queues it.

    Raises:
        NotRecorded: It cannot be recorded.
    """

    def __init__(
        self,
        memories: Sequence[SyncedMemory],
        backend: Backend,
        recorder: Recorder,
        work: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._where: object = None
        used = [memory for memory in memories if memory.device_array is not None]
        for memory in used:
            if memory.head is Head.HEAD_AT_CPU:
                memory.gpu_data()
        before = [(memory, memory.head, memory.version) for memory in used]
        with recorder.aside():
            where = backend.follow(None)
            for memory in used:
                memory.used(where)
        self._recording = recorder.record(work)
        self._arrays = [(memory, memory.device_array) for memory in used]
        self._needed = [memory for memory, head, _ in before if head in DEVICE_HEADS]
        self._cleared = [
            memory
            for memory, head, version in before
            if head is Head.UNINITIALIZED and (memory.head, memory.version) != (head, version)
        ]
        self._written = [
            (memory, memory.head) for memory, _, version in before if memory.version != version
        ]
        self._read = [m for m, head, version in before if m.version == version and m.head != head]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its own that the work needs on the device."""
        with self._backend.enter():
            return self._recording.nbytes

    def intact(self) -> bool:
        """Whether the memories are where they were, and those are empty that were."""
        return all(memory.device_array is array for memory, array in self._arrays) and all(
            memory.cleared for memory in self._cleared
        )

    def play(self) -> None:
        """Queue the work."""
        for memory in self._needed:
            if memory.head not in DEVICE_HEADS:
                memory.gpu_data()
        self._where = where = self._backend.follow(self._where)
        for memory, _ in self._arrays:
            memory.used(where)
        self._recording.play()
        for memory, head in self._written:
            memory.written(head)
        for memory in self._read:  # empty before, and read as zeros
            memory.written(Head.HEAD_AT_GPU)
