"""What is known of the fields and layer types that other Caffes added; the data is in a table.

Source: the ``caffe.proto`` files of those Caffes, and files written for them.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from demitasse.io.proto.text.schema import schema
from demitasse.io.proto.text.tokens import Token

__all__ = ["Entry", "fork_of_type", "fork_of_v1_type", "forks_of_field", "lookup"]

TABLE = Path(__file__).with_name("dialects.toml")


class Entry(NamedTuple):
    """A field that Caffe does not have.

    Attributes:
        forks: Who has it, as messages show it.
        harmless: Whether a net computes the same without it.
        target: The field of Caffe's that means the same, or an empty string.
        values: That field's text for each text of this one; empty where they are the same.
    """

    forks: str
    harmless: bool = False
    target: str = ""
    values: Mapping[str, str] = {}

    def apply(self, message: Message, value: Token | None) -> str:
        """Do what can be done about the field.

        Args:
            message: The message it stands in.
            value: Its value if that is a single token.

        Returns:
            What was done, or an empty string where nothing could be.
        """
        if self.harmless:
            return "left out, it does not change what is computed"
        if not self.target or value is None:
            return ""
        field = schema(message.DESCRIPTOR).fields[self.target]
        text = self.values.get(value.text, "") if self.values else value.text
        try:
            number = field.values[text] if field.values else int(text)
            if field.repeated:
                getattr(message, self.target).append(number)
            else:
                setattr(message, self.target, number)
        except (KeyError, ValueError):
            return ""
        return f"read as {self.target}: {text}"


def lookup(message: str, field: str) -> Entry | None:
    """What is known of a field of a message that Caffe does not have there."""
    return _entries().get(f"{message}.{field}")


def forks_of_field(message: str, field: str) -> str:
    """Who has a field that Caffe does not have; an empty string where nobody is known."""
    entry = lookup(message, field)
    return entry.forks if entry else ""


def fork_of_type(name: str) -> str:
    """Who has a layer type that Caffe does not have; an empty string where nobody is known."""
    return _named(_owners("types").get(name, []))


def fork_of_v1_type(name: str) -> str:
    """Who has a layer type of the old format that Caffe does not have."""
    return _named(_owners("v1_types").get(name, []))


@cache
def _table() -> dict[str, Any]:
    import tomllib  # most files need none of this

    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@cache
def _entries() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for part in ("harmless", "fields"):  # what matters to one of two forks matters
        owners: dict[str, list[str]] = {}
        for fork, messages in _table()[part].items():
            for message, names in messages.items():
                for name in names.split():
                    owners.setdefault(f"{message}.{name}", []).append(fork)
        for key, forks in owners.items():
            entries[key] = Entry(_named(forks), harmless=part == "harmless")
    for key, same in _table()["same"].items():
        entries[key] = Entry(_named([same["fork"]]), False, same["to"], same.get("values", {}))
    return entries


@cache
def _owners(part: str) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for fork, names in _table()[part].items():
        for name in names.split():
            owners.setdefault(name, []).append(fork)
    return owners


def _named(forks: list[str]) -> str:
    names = [_table()["forks"][fork] for fork in forks]
    if len(names) <= 1:
        return "".join(names)
    *most, last = [name.partition(" (")[0] for name in names]  # without their addresses
    return f"{', '.join(most)} and {last}"
