"""Tokens of a text, and its faults."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal, NamedTuple

from demitasse.errors import ErrorCode, PrototxtError

FaultKind = Literal["syntax", "unknown-field", "foreign-field"]
"""A foreign field is known to a fork of Caffe only."""

CODES = {
    "syntax": ErrorCode.UNREADABLE,
    "unknown-field": ErrorCode.UNKNOWN,
    "foreign-field": ErrorCode.UNSUPPORTED,
}

MOST = 20  # faults in one error message


class Fault(NamedTuple):
    """A fault or warning: line and column from 1, and the message with the correction."""

    line: int
    column: int
    message: str
    kind: FaultKind = "syntax"


def grouped(faults: list[Fault]) -> list[Fault]:
    """Return the faults in the order of the text, equal ones grouped with their lines."""
    places: dict[str, list[Fault]] = {}
    for fault in sorted(faults):
        places.setdefault(fault.message, []).append(fault)
    merged = []
    for fault, *again in places.values():
        lines = ", ".join(str(one.line) for one in again[:5])
        more = " and others" if len(again) > 5 else ""
        also = f" (again on line {lines}{more})" if again else ""
        merged.append(fault._replace(message=fault.message + also))
    return merged


def error_of(faults: list[Fault], source: str | None) -> PrototxtError:
    """Return one exception for all faults."""
    first, *rest = grouped(faults)
    where = f"{source}:" if source else ""
    lines = [first.message]
    lines += [f"{where}{one.line}:{one.column}: {one.message}" for one in rest[: MOST - 1]]
    if len(rest) >= MOST:
        lines.append(f"... and {len(rest) - MOST + 1} more")
    code = CODES[first.kind]
    message = "\n".join(lines)
    return PrototxtError(message, source, first.line, first.column, code=code, faults=len(faults))


def short(text: str) -> str:
    """Shorten a text for messages."""
    return text if len(text) <= 40 else f"{text[:37]}..."


NAME, NUMBER, STRING, SYMBOL, OTHER, END = "name", "number", "string", "symbol", "other", "end"

# A string ends on its line; an unterminated string and stray characters match `other`.
# Possessive quantifiers store no backtracking positions, which would take hundreds of bytes per
# character.
TOKEN = re.compile(
    r"""
    (?P<skip>   \A\ufeff | (?: [ \t\r\n\f\v]++ | \#[^\n]*+ )++ )
  | (?P<name>   [A-Za-z_][A-Za-z_0-9]* )
  | (?P<number> \.?[0-9] (?: [eE][+-](?=[0-9]) | [0-9A-Za-z_.] )*+ )
  | (?P<string> "[^"\\\n]*+(?:\\.[^"\\\n]*+)*+" | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+' )
  | (?P<symbol> [{}<>\[\]:;,-] )
  | (?P<other>  ["'][^\n]* | . )
    """,
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """A token: kind, characters (quotes included), and start in characters."""

    kind: str
    text: str
    offset: int

    def __str__(self) -> str:
        """Return the token as text, for messages."""
        shown = self.text if self.text.isprintable() else repr(self.text)  # e.g. odd spaces
        return "the end of the text" if self.kind == END else short(shown)


def tokens(text: str) -> Iterator[Token]:
    """Yield every token without spaces and comments, and ``END`` last."""
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind is not None and kind != "skip":
            yield Token(kind, match[0], match.start())
    yield Token(END, "", len(text))


class LineMap:
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


OPENERS, CLOSERS = frozenset("{<["), frozenset("}>]")


class Skip(Exception):  # noqa: N818 - it never leaves the parser
    """Abandon the current field because of a fault at a token."""

    def __init__(self, token: Token, message: str, kind: FaultKind = "syntax") -> None:
        super().__init__(message)
        self.token, self.message, self.kind = token, message, kind


class Cursor:
    """Stream of the tokens of a text, of which ``next`` is the next."""

    def __init__(self, text: str) -> None:
        self._rest = tokens(text)  # lazily: a token takes a hundred bytes
        self._places = LineMap(text)
        self.next = next(self._rest)
        self._after = next(self._rest, self.next)

    def advance(self) -> Token:
        """Consume and return the next token; never passes the end."""
        token = self.next
        if token.kind != END:
            self.next = self._after
            self._after = next(self._rest, self._after)
        return token

    def take(self, symbol: str) -> Token | None:
        """Consume the next token if it is this symbol."""
        if self.next.text == symbol:
            return self.advance()
        return None

    def begins_field(self) -> bool:
        """Return True if the next token looks like a field name rather than a value."""
        if self.next.kind != NAME:
            return False
        return self._after.text in {":", "{", "<"}

    def begins_list(self) -> bool:
        """Return True if a list in brackets follows a field name that was just consumed."""
        return (self.next.text, self._after.text) == (":", "[")

    def line(self, token: Token) -> int:
        """Return the line of a token, from 1."""
        return self._places.line(token.offset)

    def fault(self, token: Token, message: str, kind: FaultKind = "syntax") -> Fault:
        """Return a fault at a token."""
        return Fault(self.line(token), self._places.column(token.offset), message, kind)

    # -- error recovery ------------------------------------------------------------------------

    def skip_value(self, name: Token) -> Token | None:
        """Skip the value of an unknown field; return the value if it is a single token."""
        if not self.take(":") and self.next.text not in {"{", "<"}:
            expected = f"expected ':' or '{{' after {short(name.text)!r}"
            raise Skip(name, f"{expected}, found {self.next}")
        if self.next.text in OPENERS:
            self.skip_rest_of(self.advance())
            return None
        minus = self.take("-")
        if self.begins_field() or self.next.kind not in {NAME, NUMBER, STRING}:
            raise Skip(self.next, f"{short(name.text)} has no value")
        value = self.advance()
        several = minus is not None
        while value.kind == STRING == self.next.kind:  # parts of one string
            self.advance()
            several = True
        return None if several else value

    def skip_rest_of(self, opener: Token) -> None:
        """Skip to the closing bracket of an opening bracket that was just consumed."""
        depth = 1
        while depth:
            token = self.advance()
            if token.kind == END:
                message = f"missing closing bracket of {opener.text!r} on line {self.line(opener)}"
                raise Skip(opener, message)
            depth += (token.text in OPENERS) - (token.text in CLOSERS)

    def recover(self) -> bool:
        """Skip to the next probable field; return True if the message ended instead."""
        while not self.begins_field():
            token = self.advance()
            if token.kind == END or token.text in {"}", ">"}:
                return True
            if token.text in OPENERS:
                try:
                    self.skip_rest_of(token)
                except Skip:
                    return True
        return False
