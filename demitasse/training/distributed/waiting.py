"""How long the processes of a run wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Waiting", "note"]


@dataclass(frozen=True)
class Waiting:
    """Seconds of a run that its processes did not compute, by process.

    Attributes:
        others: Until all others were ready, too.
        adding: Until gradients were added up.
    """

    others: tuple[float, ...] = ()
    adding: tuple[float, ...] = ()

    @classmethod
    def read(cls, notes: Sequence[bytes]) -> Waiting:
        """Return what each process has noted (``note``)."""
        pairs = [tuple(map(float, note.split())) for note in notes]
        return cls(tuple(one for one, _ in pairs), tuple(other for _, other in pairs))

    def since(self, before: Waiting) -> Waiting:
        """Return what has come to an earlier one."""
        if not before.others:
            return self
        return Waiting(
            tuple(now - then for now, then in zip(self.others, before.others, strict=True)),
            tuple(now - then for now, then in zip(self.adding, before.adding, strict=True)),
        )

    @property
    def slowest(self) -> int:
        """The process that all others wait for: it waits least."""
        return min(range(len(self.others)), key=self.others.__getitem__)


def note(others: float, adding: float) -> bytes:
    """Return the seconds of one process as it tells them to the others."""
    return f"{others:.6f} {adding:.6f}".encode()
