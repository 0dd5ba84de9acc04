"""Lines of Python as formatters lay them out: what is too long is broken at its last bracket."""

from __future__ import annotations

from itertools import pairwise

__all__ = ["laid_out"]

WIDTH = 88
"""Characters of a line."""

STEP = 4
"""Spaces by which what is inside a bracket is moved."""

CLOSING = {"(": ")", "[": "]", "{": "}"}


def laid_out(text: str, indent: int) -> list[str]:
    """Return the lines of a statement or of an element of a list.

    Args:
        text: It, on one line.
        indent: Spaces before it.
    """
    line = " " * indent + text
    if len(line) <= WIDTH:
        return [line]
    target, equals, value = text.partition(" = ")
    operands = _operands(value) if equals and target.isidentifier() else []
    if len(operands) > 1:
        return _in_brackets(f"{' ' * indent}{target} = (", operands, indent)
    opening, end = _last_bracket(text)
    if opening is None:
        return [line]
    head, inside, tail = text[: opening + 1], text[opening + 1 : end], text[end:]
    if equals and indent + len(head) > WIDTH:
        spaces = " " * indent
        return [f"{spaces}{target} = (", *laid_out(value, indent + STEP), f"{spaces})"]
    elements = _elements(inside)
    if not elements:
        return [line]
    inner = indent + STEP
    together = " " * inner + inside
    if len(together) <= WIDTH and text[opening] == "(" and not inside.endswith(","):
        return [" " * indent + head, together, " " * indent + tail]
    lines = [" " * indent + head]
    for element in elements:
        broken = laid_out(element, inner)
        broken[-1] += ","
        if len(broken) == 1 and len(broken[0]) > WIDTH:
            broken = laid_out(element + ",", inner)
        lines += broken
    return [*lines, " " * indent + tail]


def _in_brackets(head: str, operands: list[str], indent: int) -> list[str]:
    """Lay out a sum or a product in brackets of its own, on one line if it fits."""
    inner = " " * (indent + STEP)
    together = inner + " ".join(operands)
    lines = [together] if len(together) <= WIDTH else [inner + one for one in operands]
    return [head, *lines, " " * indent + ")"]


def _operands(text: str) -> list[str]:
    """Split at the operators outside brackets that bind least; each part begins with its own."""
    depth, places = 0, dict[str, list[int]]()
    for place in _outside_strings(text):
        if text[place] in CLOSING:
            depth += 1
        elif text[place] in CLOSING.values():
            depth -= 1
        elif text[place] in "+-*/" and not depth and text[place - 1 : place + 2 : 2] == "  ":
            places.setdefault("sum" if text[place] in "+-" else "product", []).append(place)
    cuts = [0, *places.get("sum", places.get("product", [])), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts)]


def _last_bracket(text: str) -> tuple[int | None, int]:
    """Return where the last outermost bracket opens and closes."""
    open_at: list[int] = []
    found: tuple[int | None, int] = (None, 0)
    for place in _outside_strings(text):
        if text[place] in CLOSING:
            open_at.append(place)
        elif text[place] in CLOSING.values():
            first = open_at.pop()
            if not open_at:
                found = first, place
    return found


def _elements(inside: str) -> list[str]:
    """Split at commas that lie in no bracket and no string."""
    depth, start, found = 0, 0, []
    for place in _outside_strings(inside):
        if inside[place] in CLOSING:
            depth += 1
        elif inside[place] in CLOSING.values():
            depth -= 1
        elif inside[place] == "," and not depth:
            found.append(inside[start:place].strip())
            start = place + 1
    return [one for one in (*found, inside[start:].strip()) if one]


def _outside_strings(text: str) -> list[int]:
    """Return the places of the characters that are in no string."""
    found, quote, skip = [], "", False
    for place, character in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            found.append(place)
    return found
