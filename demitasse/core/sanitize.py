"""Text of others, such as names in a file, made safe to show on a terminal and in a log."""

from __future__ import annotations

import re

__all__ = ["escaped"]

# Controls, among them the sequences that terminals obey; marks that turn the direction of writing;
# further ends of lines; halves of characters, which no file can hold.
SPECIAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str, *, one_line: bool = False) -> str:
    r"""Return text with special characters as Python writes them, e.g. ``\x1b``.

    Args:
        text: The text; what is escaped already stays as it is.
        one_line: Whether ends of lines are special, too.
    """
    if text.isascii() and text.isprintable():
        return text
    text = SPECIAL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return text.replace("\n", "\\n") if one_line else text
