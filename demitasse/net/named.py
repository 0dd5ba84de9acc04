"""The blobs and parameters of a net by name, to be looked up and not replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

from demitasse.core.html_repr import html_of

__all__ = ["Named"]

V = TypeVar("V")


class Named(Mapping[str, V]):
    """What a net holds, by name, in order; assigning to a name is refused.

    A net would go on with what it was made with, and the assignment would do nothing.

    Args:
        items: Names and what they stand for; of one name twice the last counts.
        what: What messages call the mapping.
        instead: What to do where something is assigned.
    """

    def __init__(self, items: Iterable[tuple[str, V]], what: str, instead: str) -> None:
        self._items, self._what, self._instead = dict(items), what, instead

    def __getitem__(self, name: str) -> V:
        """Return what has this name."""
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names, in order."""
        return iter(self._items)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._items)

    def __setitem__(self, name: str, value: object) -> NoReturn:
        """Refuse, and say what to do."""
        del value
        message = f"{self._what}[{name!r}] cannot be replaced; {self._instead.format(name)}"
        raise TypeError(message)

    def __delitem__(self, name: str) -> NoReturn:
        """Refuse."""
        message = f"{self._what}[{name!r}] cannot be removed from its net"
        raise TypeError(message)

    def __repr__(self) -> str:
        """Show the names and what they stand for."""
        return f"{self._what} {self._items!r}"

    def _repr_html_(self) -> str:
        return html_of(self)
