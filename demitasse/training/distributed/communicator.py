"""What processes that train together need of the library that connects them."""

from __future__ import annotations

from typing import Protocol, TypeVar

from demitasse.backends.collective import Collective

__all__ = ["Communicator", "Value"]

Value = TypeVar("Value")


class Communicator(Collective, Protocol):
    """A group of processes, numbered from 0, which all call the same methods in the same order.

    Arrays are on the host. Every method may raise ParallelError: another process is lost, or too
    late.

    Attributes:
        in_threads: Whether another thread than the first may call them, one at a time.
        local_rank: The number of this process among those of its machine.
        timeout: Seconds that one waits for the others in an iteration.
    """

    in_threads: bool
    local_rank: int
    timeout: float

    def agree(self, note: bytes, patience: float = 1.0) -> list[bytes]:
        """Return everybody's note, by rank, once all have come here.

        Args:
            note: At most 256 bytes.
            patience: How many times the usual time others may take.
        """

    def share(self, value: Value, patience: float = 1.0) -> Value:
        """Return what process 0 gives, which is made of plain Python values and arrays."""

    def abort(self, code: int) -> None:
        """End all processes at once, this one too, where that can be done."""
