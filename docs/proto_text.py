"""What ``caffe.proto`` says about its messages, for people: comments, which descriptors lack."""

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

    def add(self, name: str, before: str, after: str, *, apart: bool) -> None:
        """Note a field with the comments before and behind it; ``apart``: after an empty line."""
        if not self.groups or (apart and (before or self.groups[-1].comment)):
            self.groups.append(Group(before))
            before = ""
        self.groups[-1].fields[name] = " ".join(part for part in (before, after) if part)


@cache
def proto_text() -> dict[str, Text]:
    """Return the comments of every message and enum by name, e.g. "PoolingParameter.RoundMode"."""
    source = files("demitasse.proto").joinpath("caffe.proto").read_text(encoding="utf-8")
    found: dict[str, Text] = {}
    inside: list[str] = []
    pending: list[str] = []
    apart = True
    for line in map(str.strip, source.splitlines()):
        if line.startswith("//"):
            if not pending:
                comment_apart = apart
            pending.append(line.removeprefix("//").strip())
            continue
        before, pending = " ".join(pending), []
        if opening := OPENING.match(line):
            inside.append(opening[2])
            found[".".join(inside)] = Text(before)
            apart = True
        elif line == "}":
            inside.pop()
        elif inside and (named := FIELD.match(line) or VALUE.match(line)):
            text = found[".".join(inside)]
            text.add(named[1], before, named[2] or "", apart=comment_apart if before else apart)
        apart = not line or bool(opening)
    return found
