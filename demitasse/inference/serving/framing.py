"""Messages of HTTP/1.1: strict parsing of heads and of chunks, and heads of responses.

A proxy in front of the server and the server itself must agree on where each request ends, or a
client smuggles a request past the proxy. What RFC 9112 lets a server repair is therefore refused.

Source: R. Fielding et al., *HTTP Semantics* (RFC 9110) and *HTTP/1.1* (RFC 9112), 2022.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

MAX_HEAD = 1 << 14
"""Largest request line and header fields, in bytes."""

MAX_FIELDS = 100
"""Largest number of header fields."""

MAX_CHUNK_LINE = 256
"""Longest line with the size of a chunk, in bytes."""

MAX_OVERHEAD = 1 << 18
"""Bytes of chunk sizes and extensions that may exceed twice the data."""

KEEP_ALIVE = 5.0
"""Seconds that a connection may be idle after a response."""

FAILED = "internal error; see the server's log"
"""Message to clients about errors whose cause only the log contains."""

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
NAME, VALUE = re.compile(TOKEN), re.compile(rb"[\t -~\x80-\xff]*")
REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") ([!-~]+) HTTP/([0-9])\.([0-9])")
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
NO_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
"""Bytes that occur in no head, so that the rest of it need not come."""

CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t -~\x80-\xff]*)?")


@dataclass
class Response:
    """A response."""

    status: int
    headers: Mapping[str, str]  # without the length of the body
    body: Sequence[bytes | memoryview]  # in parts

    def __len__(self) -> int:
        """Return the number of bytes of the body."""
        return sum(map(len, self.body))


def json_response(status: int, content: object, **headers: str) -> Response:
    """Return a response in JSON; ``Retry_After`` is the header field ``Retry-After``."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(content).encode()
    return Response(status, {"Content-Type": "application/json", **fields}, [body])


class HTTPError(Exception):
    """Ends a request with an error response.

    Attributes:
        status: Status of the response.
        response: The response, with the message in JSON.
    """

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST, **headers: str) -> None:
        super().__init__(message)
        self.status = int(status)
        self.response = json_response(self.status, {"error": message}, **headers)


def refuse(message: str, status: int = HTTPStatus.BAD_REQUEST, **headers: str) -> NoReturn:
    """End a request with an error response."""
    raise HTTPError(message, status, **headers)


class Head(NamedTuple):
    """Request line and header fields."""

    method: str
    target: str  # in origin form
    path: str  # of the target, decoded
    headers: Mapping[bytes, bytes]  # values by name, in lower case
    length: int | None  # of the body; None for chunks
    closes: bool  # the client uses the connection for no other request
    expects_continue: bool  # the client waits for ``100 Continue`` before it sends the body


def parse_head(content: bytes) -> Head:
    """Check a request line and header fields, up to and including the empty line.

    Raises:
        HTTPError: They break a rule of RFC 9112, or are too many.
    """
    first, *lines = content[:-4].split(b"\r\n")
    if len(lines) > MAX_FIELDS:
        message = f"{len(lines)} header fields; at most {MAX_FIELDS} are accepted"
        raise HTTPError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    line = REQUEST_LINE.fullmatch(first)
    if line is None:
        refuse("the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        refuse("the server speaks HTTP/1.0 and HTTP/1.1")
    fields: dict[bytes, list[bytes]] = {}
    for name, value in map(_field, lines):
        fields.setdefault(name, []).append(value)
    _check_host(fields.get(b"host", []), required=minor == b"1")
    if fields.get(b"expect", [b"100-continue"])[0].lower() != b"100-continue":
        refuse("the server meets no expectation but 100-continue", HTTPStatus.EXPECTATION_FAILED)
    http10 = minor == b"0"
    options = b",".join(fields.get(b"connection", ())).lower().split(b",")
    origin = _origin_form(method, target).decode()
    return Head(
        method=method.decode(),
        target=origin,
        path=unquote(origin.partition("?")[0]),
        headers={name: b", ".join(values) for name, values in fields.items()},
        length=_body_length(fields, http10=http10),
        closes=http10 or b"close" in [one.strip(b" \t") for one in options],
        expects_continue=b"expect" in fields and not http10,
    )


def response_head(response: Response, *, close: bool) -> bytes:
    """Return the status line and the header fields of a response."""
    status = response.status
    fields = {"Date": _date(int(time.time())), **response.headers, "Content-Length": len(response)}
    if close:
        fields["Connection"] = "close"
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{''.join(lines)}\r\n"
    if head.count("\r") + head.count("\n") != 2 * (len(lines) + 2):
        message = "a header field of the response has a line break"  # another would begin there
        raise ValueError(message)
    return head.encode()


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Return the name of a field, in lower case, and the value."""
    name, colon, value = line.partition(b":")
    if not colon or NAME.fullmatch(name) is None or VALUE.fullmatch(value) is None:
        refuse("a field of the header or trailer is not NAME: VALUE on one line")
    return name.lower(), value.strip(b" \t")


def _check_host(hosts: list[bytes], *, required: bool) -> None:
    if len(hosts) > 1 or (required and not hosts):
        refuse(f"the header field Host must occur once; it occurs {len(hosts)} times")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        refuse("the header field Host is not HOST or HOST:PORT")


def _body_length(fields: dict[bytes, list[bytes]], *, http10: bool) -> int | None:
    lengths, codings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if codings and (lengths or http10):
        reason = "HTTP/1.0" if http10 else "Content-Length"
        refuse(f"Transfer-Encoding and {reason} contradict each other")
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            known = len(codings) == 1 and codings[0].lower().endswith(b"chunked")
            status = HTTPStatus.NOT_IMPLEMENTED if known else HTTPStatus.BAD_REQUEST
            refuse("Transfer-Encoding must be chunked", status)
        return None
    if len(lengths) > 1 or (lengths and re.fullmatch(rb"[0-9]{1,18}", lengths[0]) is None):
        refuse("Content-Length must be one number of bytes")
    return int(lengths[0]) if lengths else 0


def _origin_form(method: bytes, target: bytes) -> bytes:
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if not absolute[1] or HOST.fullmatch(absolute[1]) is None:
            refuse("the target has no valid host")
        path = absolute[2]
        return path if path.startswith(b"/") else b"/" + path
    if (target.startswith(b"/") and b"#" not in target) or (target, method) == (b"*", b"OPTIONS"):
        return target
    refuse("the target must be a path that begins with /")


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
            HTTPError: The chunks break a rule, or have too much beside the data.
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
            refuse("the chunks have far more bytes beside the data than data")
        return data

    def _line_end(self, incoming: bytearray, at: int) -> int | None:
        if self._ends_chunk:
            if not b"\r\n".startswith(bytes(incoming[at : at + 2])):
                refuse("a chunk does not end with CRLF after its data")
            return at if len(incoming) >= at + 2 else None
        most = MAX_HEAD if self._in_trailer else MAX_CHUNK_LINE
        end = incoming.find(b"\r\n", at, at + most + 2)
        if end >= 0:
            return end
        if len(incoming) - at >= most + 2 or incoming.find(b"\n", at) >= 0:
            refuse(f"a line between chunks is longer than {most} bytes, or ends without CRLF")
        return None

    def _read_line(self, line: bytes) -> None:
        self._overhead += len(line) + 2
        if self._ends_chunk:
            self._ends_chunk = False
        elif not self._in_trailer:
            size = CHUNK.fullmatch(line)
            if size is None:
                refuse("a chunk does not begin with its size, hexadecimal")
            self._left = int(size[1], 16)
            self._in_trailer = not self._left
        elif line:
            _field(line)
            self._trailer += len(line)
            if self._trailer > MAX_HEAD:
                message = f"the trailer is longer than {MAX_HEAD} bytes"
                raise HTTPError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.done = True
