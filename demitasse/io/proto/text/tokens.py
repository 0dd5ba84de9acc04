"""Tokens of prototxt.

Source: protobuf, "Text Format Language Specification".
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["END", "NAME", "NUMBER", "OTHER", "STRING", "SYMBOL", "Places", "Token", "tokens"]

NAME, NUMBER, STRING, SYMBOL, OTHER, END = "name", "number", "string", "symbol", "other", "end"

# A string ends on its line; an unterminated string and stray characters match `other`.
# Possessive quantifiers store no backtracking positions, which would take hundreds of bytes per
# character.
TOKEN = re.compile(
    r"""
    (?P<skip>   (?: [ \t\r\n\f\v]++ | \#[^\n]*+ )++ )
  | (?P<name>   [A-Za-z_][A-Za-z_0-9]* )
  | (?P<number> \.?[0-9] (?: [eE][+-](?=[0-9]) | [0-9A-Za-z_.] )*+ )
  | (?P<string> "[^"\\\n]*+(?:\\.[^"\\\n]*+)*+" | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+' )
  | (?P<symbol> [{}<>\[\]:;,-] )
  | (?P<other>  ["'][^\n]* | . )
    """,
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """A token.

    Attributes:
        kind: ``NAME``, ``NUMBER``, ``STRING``, ``SYMBOL``, ``OTHER`` (illegal) or ``END``.
        text: The characters, quotes included.
        offset: Start, in characters.
    """

    kind: str
    text: str
    offset: int


def tokens(text: str) -> Iterator[Token]:
    """Yield every token without spaces and comments, and ``END`` last."""
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is not None and kind != "skip":
            yield Token(kind, match[0], match.start())
    yield Token(END, "", len(text))


class Places:
    """Lines and columns, from 1, of offsets into a text."""

    def __init__(self, text: str) -> None:
        # a list of numbers would take five times the memory, perhaps the largest part of all
        self._starts = array("q", [0])
        self._starts.extend(match.end() for match in re.finditer("\n", text))

    def line(self, offset: int) -> int:
        """Return the line of an offset."""
        return bisect_right(self._starts, offset)

    def column(self, offset: int) -> int:
        """Return the column of an offset; a tab counts as one."""
        return offset - self._starts[self.line(offset) - 1] + 1
