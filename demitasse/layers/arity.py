"""How many bottoms or tops a layer takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Arity", "AtLeast", "Between", "Exactly"]


@dataclass(frozen=True)
class Arity:
    """From ``low`` to ``high`` blobs; ``high`` None has no limit."""

    low: int
    high: int | None

    def __contains__(self, count: int) -> bool:
        return count >= self.low and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"at least {self.low}" if self.low else "any number of"
        if self.low == self.high:
            return f"exactly {self.low}" if self.low else "no"
        return f"{self.low} to {self.high}"


def Exactly(count: int) -> Arity:  # noqa: N802 - reads as a type where it is used
    """``count`` blobs, no more and no fewer."""
    return Arity(count, count)


def AtLeast(low: int) -> Arity:  # noqa: N802
    """``low`` blobs or more."""
    return Arity(low, None)


def Between(low: int, high: int) -> Arity:  # noqa: N802
    """``low`` to ``high`` blobs."""
    return Arity(low, high)
