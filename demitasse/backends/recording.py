"""Recordings: work that runs once under a recorder, and is replayed as a whole.

To prepare a call on the host, or to queue a kernel on a device, takes a few microseconds of Python;
a small net has hundreds of both in an iteration, each shorter than that. If nothing but numbers
changes from one iteration to the next, a recording repeats all of them at once.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Protocol

from demitasse.backends.arrays import ArrayHolder
from demitasse.errors import DemitasseError


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

    def record(self, work: Callable[[], object], /) -> Recording:
        """Run ``work`` and record it.

        Raises:
            NotRecorded: The work cannot be recorded. A recorder that computes has done it
                nevertheless.
        """


class Program:
    """Compiled work on immutable arrays: a function of the sides' arrays and of numbers.

    Args:
        sides: The sides of the memories, whose arrays are arguments.
        changed: Those sides whose arrays are replaced by results.
        run: The compiled function.
    """

    nbytes = 0
    compiled = False

    def __init__(
        self, sides: Sequence[ArrayHolder], changed: Sequence[ArrayHolder], run: Callable[..., Any]
    ) -> None:
        self._sides, self._changed, self._run = sides, changed, run

    def play(self, *numbers: Any) -> Any:
        """Run the program on the present arrays; return the result of the work."""
        result, arrays = self._run([side.array for side in self._sides], numbers)
        for side, array in zip(self._changed, arrays, strict=True):
            side.array = array
        return result


class TracingRecorder:
    """Recorder of a library that traces functions of immutable arrays and compiles them.

    Args:
        trace: Traces a function for some arguments; ``lower().compile()`` of the result returns it.
    """

    computes: ClassVar = False

    def __init__(self, trace: Callable[..., Any]) -> None:
        self._trace = trace

    def key(self) -> Hashable:
        return None

    def record(
        self,
        work: Callable[..., object],
        sides: Sequence[ArrayHolder] = (),
        numbers: Sequence[Any] = (),
        *,
        rehearsal: bool = False,
    ) -> Program:
        """Trace and compile ``work``, which computes nothing yet.

        Args:
            work: Called with numbers that are traced; returns an array or None.
            sides: The sides of all memories that the work uses; their arrays stay as they are.
            numbers: Example of the numbers.
            rehearsal: True for a trace that is not compiled.

        Raises:
            NotRecorded: The work reads values on the host, or the library does not compile it.
        """
        before = [side.array for side in sides]
        used = [side for side in sides if side.array is not None]
        changed: list[ArrayHolder] = []

        def traced(arrays: Sequence[Any], numbers: Sequence[Any]) -> tuple[object, list[Any]]:
            for side, array in zip(used, arrays, strict=True):
                side.array = array
            pairs = [(side, side.array) for side in sides]
            result = work(*numbers)
            changed[:] = [side for side, array in pairs if side.array is not array]
            return result, [side.array for side in changed]

        try:
            run = self._trace(traced, [side.array for side in used], tuple(numbers))
            run = run if rehearsal else run.lower().compile()
        except (DemitasseError, RuntimeError, TypeError, ValueError) as error:
            raise NotRecorded(str(error).partition("\n")[0]) from error
        finally:
            for side, array in zip(sides, before, strict=True):
                side.array = array
        return Program(used, changed, run)
