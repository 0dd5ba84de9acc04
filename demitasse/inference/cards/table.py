"""Tables of a TOML file, whose values are taken one by one; what nobody takes is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from demitasse.core.text import suggestion
from demitasse.errors import ConfigError

__all__ = ["Table"]

LONGEST_TEXT = 2000
"""Characters of a text."""

LARGEST = 1e30
"""Of numbers."""


class Table:
    """A table of a card.

    Args:
        values: What it holds.
        place: What messages call it.
    """

    def __init__(self, values: Mapping[str, object], place: str) -> None:
        self._values, self._place = values, place
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        """Whether a value is there; it is not taken."""
        return key in self._values

    def holds_text(self, key: str) -> bool:
        """Whether a value is a text; it is not taken."""
        return isinstance(self._values.get(key), str)

    def text(self, key: str, default: str = "") -> str:
        """Take a text."""
        value = self._take(key, default)
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise self._error(key, f"must be a text of at most {LONGEST_TEXT} characters", value)
        return value

    def choice(self, key: str, choices: Sequence[str], default: str = "") -> str:
        """Take one of some words; without a default it must be there."""
        value = self._take(key, default)
        if value not in choices:
            near = suggestion(value, choices) if isinstance(value, str) else ""
            if not value:
                message = f"is missing; it is one of {_quoted(choices)}"
                raise ConfigError(f"{key} {message}").at(self._place)
            raise self._error(key, f"must be one of {_quoted(choices)}", value, near)
        return str(value)

    def names(self, key: str, most: int) -> tuple[str, ...]:
        """Take one text, or a list of at most so many."""
        value = self._take(key, ())
        some = [value] if isinstance(value, str) else value
        if (
            not isinstance(some, Sequence)
            or len(some) > most
            or not all(isinstance(one, str) and len(one) <= LONGEST_TEXT for one in some)
        ):
            raise self._error(key, f"must be a text or a list of at most {most} texts", value)
        return tuple(str(one) for one in some)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Take true or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._error(key, "must be true or false", value)
        return value

    def whole(self, key: str, low: int, high: int, default: int) -> int:
        """Take a whole number within limits."""
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._error(key, f"must be a whole number from {low} to {high}", value)
        return value

    def sides(self, key: str, most: int) -> tuple[int, ...]:
        """Take one length, or height and width, in pixels; nothing where there is none."""
        value = self._take(key, ())
        some = [value] if isinstance(value, int) else value
        if (
            not isinstance(some, Sequence)
            or isinstance(some, str)
            or len(some) > 2
            or not all(type(one) is int and 1 <= one <= most for one in some)
        ):
            message = f"must be one number of pixels or [height, width], from 1 to {most}"
            raise self._error(key, message, value)
        return tuple(int(one) for one in some)

    def number(self, key: str, low: float, high: float, default: float) -> float:
        """Take a number within limits."""
        value = self._take(key, default)
        if not _is_number(value) or not low <= float(str(value)) <= high:
            raise self._error(key, f"must be a number from {low:g} to {high:g}", value)
        return float(str(value))

    def numbers(
        self, key: str, counts: Collection[int], default: Sequence[float] = ()
    ) -> tuple[float, ...]:
        """Take a number, or a list of as many as ``counts`` allows."""
        value = self._take(key, default)
        some = [value] if _is_number(value) else value
        if (
            not isinstance(some, Sequence)
            or len(some) not in {*counts, len(default)}
            or not all(_is_number(one) for one in some)
        ):
            allowed = " or ".join(map(str, sorted(counts)))
            raise self._error(key, f"must be {allowed} numbers", value)
        return tuple(float(str(one)) for one in some)

    def lists(self, key: str, most: int) -> tuple[tuple[float, ...], ...]:
        """Take a list of lists of numbers."""
        value = self._take(key, ())
        if (
            not isinstance(value, Sequence)
            or not 0 < len(value) <= most
            or not all(isinstance(row, Sequence) and 0 < len(row) <= most for row in value)
            or not all(_is_number(one) for row in value for one in row)
        ):
            raise self._error(key, f"must be a list of at most {most} lists of numbers", value)
        return tuple(tuple(float(one) for one in row) for row in value)

    def table(self, key: str) -> Table:
        """Take a table; an empty one where there is none."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            raise self._error(key, f"must be a table, [{key}]", value)
        return Table(value, f"{self._place} [{key}]")

    def close(self) -> None:
        """Refuse what nobody took."""
        for key in self._values:
            if key not in self._asked:
                message = (
                    f"there is no {key!r} here{suggestion(key, self._asked)}; "
                    f"known are {', '.join(self._asked)}"
                )
                raise ConfigError(message).at(self._place)

    def refuse(self, message: str) -> ConfigError:
        """Return an error about this table."""
        return ConfigError(message).at(self._place)

    def _take(self, key: str, default: object) -> object:
        self._asked.append(key)
        return self._values.get(key, default)

    def _error(self, key: str, needed: str, value: object, near: str = "") -> ConfigError:
        shown = repr(value)
        shown = shown if len(shown) < 80 else f"{shown[:80]}..."
        return ConfigError(f"{key} {needed}, it is {shown}{near}").at(self._place)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -LARGEST <= value <= LARGEST
    )


def _quoted(choices: Sequence[str]) -> str:
    return ", ".join(f'"{choice}"' for choice in choices)
