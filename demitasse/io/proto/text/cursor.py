"""A place in a run of tokens, and ways to get over a part that cannot be read."""

from demitasse.io.proto.text.faults import Fault, FaultKind, short, shown
from demitasse.io.proto.text.tokens import END, NAME, NUMBER, STRING, Places, Token, tokens

__all__ = ["Cursor", "Skip"]

OPENERS, CLOSERS = frozenset("{<["), frozenset("}>]")


class Skip(Exception):  # noqa: N818 - it never leaves the parser
    """Give up the current field because of a token.

    Attributes:
        token: Where the fault is.
        message: What it is.
        kind: What kind of fault it is.
    """

    def __init__(self, token: Token, message: str, kind: FaultKind = "syntax") -> None:
        super().__init__(message)
        self.token, self.message, self.kind = token, message, kind


class Cursor:
    """The tokens of a text and how far they have been read.

    Attributes:
        next: The first token not read yet.
    """

    def __init__(self, text: str) -> None:
        self._rest = tokens(text)  # one at a time: a list would take a hundred bytes for each
        self._places = Places(text)
        self.next = next(self._rest)
        self._after = next(self._rest, self.next)

    def advance(self) -> Token:
        """Step over the next token and return it; the end is never passed."""
        token = self.next
        if token.kind != END:
            self.next = self._after
            self._after = next(self._rest, self._after)
        return token

    def take(self, symbol: str) -> Token | None:
        """Step over the next token if it is this symbol."""
        if self.next.text == symbol:
            return self.advance()
        return None

    def begins_field(self) -> bool:
        """Whether the next token looks like the name of a field rather than a value."""
        if self.next.kind != NAME:
            return False
        return self._after.text in {":", "{", "<"}

    def line(self, token: Token) -> int:
        """The line of a token, from 1."""
        return self._places.line(token.offset)

    def shown(self) -> str:
        """The next token as a message names it."""
        return shown(self.next.kind, self.next.text)

    def fault(self, token: Token, message: str, kind: FaultKind = "syntax") -> Fault:
        """A fault at a token."""
        return Fault(self.line(token), self._places.column(token.offset), message, kind)

    # -- getting over what cannot be read ------------------------------------------------------

    def skip_value(self, name: Token) -> Token | None:
        """Step over the value of an unknown field; return it if it is a single token."""
        if not self.take(":") and self.next.text not in {"{", "<"}:
            raise Skip(
                name, f"expected ':' or '{{' after {short(name.text)!r}, found {self.shown()}"
            )
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
        """Step over what an opening bracket, just read, encloses, and its closing bracket."""
        depth = 1
        while depth:
            token = self.advance()
            if token.kind == END:
                message = f"nothing closes the {opener.text!r} on line {self.line(opener)}"
                raise Skip(opener, message)
            depth += (token.text in OPENERS) - (token.text in CLOSERS)

    def recover(self) -> bool:
        """Step to where a next field seems to begin; whether the message has ended instead."""
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
