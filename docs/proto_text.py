"""What the comments of ``caffe.proto`` say about its messages, which descriptors do not keep.

A comment above a message is about it, one above a field or on its line about the field, and one
with an empty line below it about the fields that follow.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

FIELD = re.compile(r"(?:optional|repeated|required)\s+[\w.]+\s+(\w+)\s*=[^;]*;(?:\s*//\s*(.*))?$")
VALUE = re.compile(r"(\w+)\s*=\s*-?\d+[^;]*;(?:\s*//\s*(.*))?$")
OPENING = re.compile(r"(message|enum)\s+(\w+)\s*\{")


@dataclass
class Group:
    """Fields that stand together under one comment, which may be empty; each with its own."""

    comment: str = ""
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class Text:
    """The comments of one message, or of one enum, whose values are its only group's fields."""

    comment: str = ""
    groups: list[Group] = field(default_factory=list)

    def add(self, name: str, meaning: str, *, apart: bool) -> None:
        """Note a field; one that stands ``apart``, after an empty line, ends a commented group."""
        if not self.groups or (apart and self.groups[-1].comment and self.groups[-1].fields):
            self.groups.append(Group())
        self.groups[-1].fields[name] = meaning


@cache
def proto_text() -> dict[str, Text]:
    """Return the comments of every message and enum by name, e.g. "PoolingParameter.RoundMode"."""
    source = files("demitasse.io.proto").joinpath("caffe.proto").read_text(encoding="utf-8")
    found: dict[str, Text] = {}
    inside: list[str] = []
    pending: list[str] = []
    apart = True
    for line in map(str.strip, source.splitlines()):
        if line.startswith("//"):
            pending.append(line.removeprefix("//").strip())
            continue
        before, pending = " ".join(pending), []
        if opening := OPENING.match(line):
            inside.append(opening[2])
            found[".".join(inside)] = Text(before)
        elif line == "}":
            inside.pop()
        elif inside and before and not line:
            found[".".join(inside)].groups.append(Group(before))
        elif inside and (named := FIELD.match(line) or VALUE.match(line)):
            meaning = " ".join(part for part in (before, named[2] or "") if part)
            found[".".join(inside)].add(named[1], meaning, apart=apart)
        apart = not line
    return found
