"""Fields and layer types of Caffe forks, from a table.

Source: ``caffe.proto`` of these forks, and files written for them.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from google.protobuf.message import Message

from demitasse.io.proto.text.schema import schema
from demitasse.io.proto.text.tokens import Token

LISTED_IN = frozenset({"PoolingParameter"})  # messages with entries in the table's ``lists``

TABLE = Path(__file__).with_name("dialects.toml")


class Entry(NamedTuple):
    """A field that Caffe does not have.

    Attributes:
        harmless: True if a net computes the same without the field.
        target: The equivalent field of Caffe, or an empty string.
        values: Text of the target for each text of this field; empty if equal.
    """

    forks: str
    harmless: bool = False
    target: str = ""
    values: Mapping[str, str] = {}

    def apply(self, message: Message, value: Token | None) -> str:
        """Skip the field if harmless, or set its target; return a description, empty if impossible.

        ``value`` is the value of the field if it is a single token.
        """
        if self.harmless:
            return "skipped, it does not change results"
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
    """Return the entry of a field that Caffe does not have."""
    return _entries().get(f"{message}.{field}")


def list_of(message: str, field: str) -> str:
    """Return the repeated field that takes several values of a field, or an empty string."""
    if message not in LISTED_IN:
        return ""
    return str(_table()["lists"].get(f"{message}.{field}", ""))


def value_of(field: str, value: str) -> str:
    """Return the name here of a fork's enum value, or an empty string."""
    return str(_table()["enum_values"].get(f"{field}.{value}", ""))


def forks_of_field(message: str, field: str) -> str:
    """Return the forks with a field that Caffe does not have, or an empty string."""
    entry = lookup(message, field)
    return entry.forks if entry else ""


def fork_of_type(name: str, table: Literal["types", "v1_types"] = "types") -> str:
    """Return the forks with a layer type that Caffe does not have, or an empty string."""
    return _fork_names(_owners(table).get(name, []))


@cache
def _table() -> dict[str, Any]:
    import tomllib  # most files need none of this

    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


@cache
def _entries() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for part in ("harmless", "fields"):  # "fields" overrides: one fork may depend on the value
        owners: dict[str, list[str]] = {}
        for fork, messages in _table()[part].items():
            for message, names in messages.items():
                for name in names.split():
                    owners.setdefault(f"{message}.{name}", []).append(fork)
        for key, forks in owners.items():
            entries[key] = Entry(_fork_names(forks), harmless=part == "harmless")
    for key, same in _table()["same"].items():
        entries[key] = Entry(_fork_names([same["fork"]]), False, same["to"], same.get("values", {}))
    return entries


@cache
def _owners(part: str) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for fork, names in _table()[part].items():
        for name in names.split():
            owners.setdefault(name, []).append(fork)
    return owners


def _fork_names(forks: list[str]) -> str:
    names = [_table()["forks"][fork] for fork in forks]
    if len(names) <= 1:
        return "".join(names)
    *most, last = [name.partition(" (")[0] for name in names]  # without their addresses
    return f"{', '.join(most)} and {last}"
