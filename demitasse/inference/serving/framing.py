"""Framing of requests in HTTP/1.1: strict parsing of heads and of chunks.

A proxy in front of the server and the server itself must agree on where each request ends, or a
client smuggles a request past the proxy. What RFC 9112 lets a server repair is therefore refused.

Source: R. Fielding et al., *HTTP Semantics* (RFC 9110) and *HTTP/1.1* (RFC 9112), 2022.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD = 1 << 14
"""Largest request line and header fields, in bytes."""

MAX_FIELDS = 100
"""Largest number of header fields."""

MAX_CHUNK_LINE = 256
"""Longest line with the size of a chunk, in bytes."""

MAX_OVERHEAD = 1 << 18
"""Bytes of chunk sizes and extensions that may exceed twice the data."""

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
NAME, VALUE = re.compile(TOKEN), re.compile(rb"[\t -~\x80-\xff]*")
REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") ([!-~]+) HTTP/([0-9])\.([0-9])")
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
NO_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
"""Bytes that occur in no head, so that the rest of it need not come."""

CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t -~\x80-\xff]*)?")


class FramingError(Exception):
    """A request whose end is not certain, or which is too large to find out.

    Attributes:
        status: Status of the response.
    """

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Head:
    """Request line and header fields.

    Attributes:
        method: Method.
        target: Target in origin form.
        version: ``1.0`` or ``1.1``.
        fields: Names, in lower case, and values of the header fields.
        length: Length of the body; None for chunks.
        closes: True if the client uses the connection for no other request.
        expects_continue: True if the client waits for ``100 Continue`` before it sends the body.
    """

    method: str
    target: str
    version: str
    fields: list[tuple[bytes, bytes]]
    length: int | None
    closes: bool
    expects_continue: bool


def parse_head(content: bytes) -> Head:
    """Check a request line and header fields, up to and including the empty line.

    Raises:
        FramingError: They break a rule of RFC 9112, or are too many.
    """
    first, *lines = content[:-4].split(b"\r\n")
    if len(lines) > MAX_FIELDS:
        message = f"{len(lines)} header fields; at most {MAX_FIELDS} are accepted"
        raise FramingError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    line = REQUEST_LINE.fullmatch(first)
    if line is None:
        message = "the request line is not METHOD TARGET HTTP/1.1"
        raise FramingError(message)
    method, target, major, minor = line.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        message = "the server speaks HTTP/1.0 and HTTP/1.1"
        raise FramingError(message)
    every = [_field(one) for one in lines]
    fields: dict[bytes, list[bytes]] = {}
    for name, value in every:
        fields.setdefault(name, []).append(value)
    _check_host(fields.get(b"host", []), required=minor == b"1")
    if fields.get(b"expect", [b"100-continue"])[0].lower() != b"100-continue":
        message = "the server meets no expectation but 100-continue"
        raise FramingError(message, HTTPStatus.EXPECTATION_FAILED)
    http10 = minor == b"0"
    options = b",".join(fields.get(b"connection", ())).lower().split(b",")
    return Head(
        method=method.decode(),
        target=_origin_form(method, target).decode(),
        version="1.0" if http10 else "1.1",
        fields=every,
        length=_body_length(fields, http10=http10),
        closes=http10 or b"close" in [one.strip(b" \t") for one in options],
        expects_continue=b"expect" in fields and not http10,
    )


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Return the name of a field, in lower case, and the value."""
    name, colon, value = line.partition(b":")
    if not colon or NAME.fullmatch(name) is None or VALUE.fullmatch(value) is None:
        message = "a field of the header or trailer is not NAME: VALUE on one line"
        raise FramingError(message)
    return name.lower(), value.strip(b" \t")


def _check_host(hosts: list[bytes], *, required: bool) -> None:
    if len(hosts) > 1 or (required and not hosts):
        message = f"the header field Host must occur once; it occurs {len(hosts)} times"
        raise FramingError(message)
    if hosts and HOST.fullmatch(hosts[0]) is None:
        message = "the header field Host is not HOST or HOST:PORT"
        raise FramingError(message)


def _body_length(fields: dict[bytes, list[bytes]], *, http10: bool) -> int | None:
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if codings and (lengths or http10):
        reason = "HTTP/1.0" if http10 else "Content-Length"
        message = f"Transfer-Encoding and {reason} contradict each other"
        raise FramingError(message)
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            message = "Transfer-Encoding must be chunked"
            known = len(codings) == 1 and codings[0].lower().endswith(b"chunked")
            raise FramingError(
                message, HTTPStatus.NOT_IMPLEMENTED if known else HTTPStatus.BAD_REQUEST
            )
        return None
    if len(lengths) > 1 or (lengths and re.fullmatch(rb"[0-9]{1,18}", lengths[0]) is None):
        message = "Content-Length must be one number of bytes"
        raise FramingError(message)
    return int(lengths[0]) if lengths else 0


def _origin_form(method: bytes, target: bytes) -> bytes:
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if not absolute[1] or HOST.fullmatch(absolute[1]) is None:
            message = "the target has no valid host"
            raise FramingError(message)
        path = absolute[2]
        return path if path.startswith(b"/") else b"/" + path
    if (target.startswith(b"/") and b"#" not in target) or (target, method) == (b"*", b"OPTIONS"):
        return target
    message = "the target must be a path that begins with /"
    raise FramingError(message)


class ChunkDecoder:
    """Decodes a chunked body, strictly.

    Attributes:
        done: True once the last chunk and the trailer are read.
    """

    def __init__(self) -> None:
        self.done = False
        self._left, self._ends_chunk, self._in_trailer = 0, False, False
        self._overhead = self._trailer = self._count = 0

    def decode(self, incoming: bytearray, most: int) -> bytes:
        """Remove up to about ``most`` bytes of ``incoming``; return the data among them.

        Raises:
            FramingError: The chunks break a rule, or have too much beside the data.
        """
        parts: list[bytes] = []
        at = 0
        while at < min(len(incoming), most) and not self.done:
            if self._left:
                part = bytes(incoming[at : min(at + self._left, most)])
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._ends_chunk = not self._left
                continue
            end = self._line_end(incoming, at)
            if end is None:
                break
            line, at = bytes(incoming[at:end]), end + 2
            self._read_line(line)
        del incoming[:at]
        data = b"".join(parts)
        self._count += len(data)
        if self._overhead > MAX_OVERHEAD + 2 * self._count:
            message = "the chunks have far more bytes beside the data than data"
            raise FramingError(message)
        return data

    def _line_end(self, incoming: bytearray, at: int) -> int | None:
        if self._ends_chunk:
            if not b"\r\n".startswith(bytes(incoming[at : at + 2])):
                message = "a chunk does not end with CRLF after its data"
                raise FramingError(message)
            return at if len(incoming) >= at + 2 else None
        most = MAX_HEAD if self._in_trailer else MAX_CHUNK_LINE
        end = incoming.find(b"\r\n", at, at + most + 2)
        if end >= 0:
            return end
        if len(incoming) - at >= most + 2 or incoming.find(b"\n", at) >= 0:
            message = f"a line between chunks is longer than {most} bytes, or ends without CRLF"
            raise FramingError(message)
        return None

    def _read_line(self, line: bytes) -> None:
        self._overhead += len(line) + 2
        if self._ends_chunk:
            self._ends_chunk = False
        elif not self._in_trailer:
            size = CHUNK.fullmatch(line)
            if size is None:
                message = "a chunk does not begin with its size, hexadecimal"
                raise FramingError(message)
            self._left = int(size[1], 16)
            self._in_trailer = not self._left
        elif line:
            _field(line)
            self._trailer += len(line)
            if self._trailer > MAX_HEAD:
                message = f"the trailer is longer than {MAX_HEAD} bytes"
                raise FramingError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.done = True
