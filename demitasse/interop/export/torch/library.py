"""The source of the functions that modules bring with them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Helper", "helpers", "needed"]


@dataclass(frozen=True)
class Helper:
    """A function.

    Attributes:
        source: Its lines.
        uses: Other functions that it calls.
    """

    source: str
    uses: tuple[str, ...]


@cache
def helpers() -> dict[str, Helper]:
    """Return all functions by their names; those that are called come first."""
    sources: dict[str, str] = {}
    called: dict[str, set[str]] = {}
    folder = files("demitasse.interop.export.torch") / "helpers"
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if not file.name.endswith(".py"):
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                sources[node.name] = ast.get_source_segment(text, node) or ""
                called[node.name] = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return {
        name: Helper(source, tuple(one for one in sources if one in called[name] - {name}))
        for name, source in sources.items()
    }


def needed(names: Iterable[str]) -> list[str]:
    """Return the sources of some functions and of those that they call, these first."""
    every, found = helpers(), dict[str, str]()

    def add(name: str) -> None:
        if name not in found:
            for other in every[name].uses:
                add(other)
            found[name] = every[name].source

    for name in names:
        add(name)
    return list(found.values())
