"""Near names, for errors about names that there are not."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest", "suggestion"]

LONGEST = 200
"""Letters of a name that has near ones: to compare texts of megabytes takes minutes."""


def nearest(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.7) -> list[str]:
    """Return the names most like ``name``, the nearest first; capitals make no difference."""
    if len(name) > LONGEST:
        return []
    from difflib import get_close_matches  # for an error only

    folded = {one.casefold(): one for one in known}
    return [folded[near] for near in get_close_matches(name.casefold(), folded, count, cutoff)]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest name, or nothing where none is near."""
    near = nearest(name, known)
    return f"; did you mean {near[0]!r}?" if near else ""
