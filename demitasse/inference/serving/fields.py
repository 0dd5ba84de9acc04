"""Fields of a JSON object, taken one by one; what is wrong is told by the field's name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

from demitasse.errors import DataError

__all__ = ["Fields", "json_object"]

LONGEST_SHOWN = 60
"""Characters of a value that a message shows."""

LONGEST_NAME = 1000
"""Characters of a name."""


def json_object(content: bytes | memoryview) -> Fields:
    """Read a JSON object.

    Raises:
        DataError: The bytes are no JSON, or no object; NaN and Infinity, which Python reads, are
            no JSON.
    """
    try:
        value = json.loads(bytes(content), parse_constant=_no_constant)
    except RecursionError:
        message = "the JSON is nested too deeply"
        raise DataError(message) from None
    except ValueError as error:  # of bytes that are no UTF-8 and of numbers too long, too
        message = f"the body is no JSON: {error}"
        raise DataError(message) from None
    return Fields(value, "the body")


class Fields:
    """A JSON object.

    Args:
        value: What was read.
        place: What messages call it.

    Raises:
        DataError: It is no object.
    """

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            message = f"{place} must be an object {{...}}, it is {_shown(value)}"
            raise DataError(message)
        self._values, self.place = value, place

    def has(self, key: str) -> bool:
        """Whether a field is there."""
        return key in self._values

    def get(self, key: str) -> object:
        """Return a field that must be there, whatever it is."""
        if key not in self._values:
            message = f"{self._name(key)} is missing"
            raise DataError(message)
        return self._values[key]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; without a default it must be there and not be empty."""
        value = self.get(key) if default is None else self._values.get(key, default)
        if (
            not isinstance(value, str)
            or len(value) > LONGEST_NAME
            or (default is None and not value)
        ):
            self.refuse(key, f"must be a text of 1 to {LONGEST_NAME} characters")
        return value

    def flag(self, key: str) -> bool | None:
        """Return true or false; None where it is not there."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def length(self, key: str) -> int | None:
        """Return a number of bytes; None where it is not there."""
        value = self._values.get(key)
        if value is not None and (type(value) is not int or value < 0):
            self.refuse(key, "must be a whole number from 0 on")
        return value if isinstance(value, int) else None

    def items(self, key: str) -> Sequence[object]:
        """Return a list that must be there."""
        value = self.get(key)
        if not isinstance(value, list):
            self.refuse(key, "must be a list")
        return value

    def objects(self, key: str) -> list[Fields]:
        """Return a list of objects that must be there."""
        name = self._name(key)
        return [Fields(one, f"{name}[{i}]") for i, one in enumerate(self.items(key))]

    def table(self, key: str) -> Fields:
        """Return an object; an empty one where there is none."""
        return Fields(self._values.get(key, {}), self._name(key))

    def as_dict(self) -> dict[str, object]:
        """Return all of it."""
        return dict(self._values)

    def refuse(self, key: str, needed: str, near: str = "") -> NoReturn:
        """Refuse the value of a field; ``near`` says what may have been meant."""
        message = f"{self._name(key)} {needed}, it is {_shown(self._values.get(key))}{near}"
        raise DataError(message)

    def _name(self, key: str) -> str:
        return key if self.place == "the body" else f"{self.place}.{key}"


def _no_constant(name: str) -> NoReturn:
    message = f"{name} is no number in JSON; send such values in binary"
    raise ValueError(message)


def _shown(value: object) -> str:
    match value:
        case list():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object with {len(value)} fields"
        case str():
            text = json.dumps(value[:LONGEST_SHOWN])
            return text if len(value) <= LONGEST_SHOWN else f"{text}... ({len(value)} characters)"
        case int() if not isinstance(value, bool) and value.bit_length() > 128:
            return "a number of more than 128 bits"
    return json.dumps(value)
