"""Connections that no client can keep, and that share the event loop fairly.

uvicorn waits without limit for the headers of a request, for a client to receive its response, and
for the rest of a body that has been answered. It parses all that has arrived at once. Here each
connection has time limits, and parses a small part of its input at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from demitasse.core.log import get_logger
from demitasse.inference.serving.framing import (
    MAX_HEAD,
    NO_HEAD,
    ChunkDecoder,
    FramingError,
    parse_head,
)

log = get_logger(__name__)

HIGH_WATER = 1 << 16
"""Bytes received but not parsed from which on the client must wait."""

PART = 1 << 18
"""Bytes of a body that are parsed at once."""

CHUNKS_PART = 1 << 14
"""Bytes of a chunked body that are parsed at once."""

MAX_HEADS = 32
"""Requests that start in one round of the event loop."""

ROUND = 0.01
"""Seconds that parsing takes in one round of the event loop."""

LINGER = 2.0
"""Seconds in which input is discarded before a connection closes, so that the client reads the
response first."""

MAX_RESPONSE_TIMEOUTS = 20
"""Timeouts within which a client must have received a response."""


class Turns:
    """Decides which connection parses next.

    Args:
        most: Number of connections from which on a new one closes another, which is idle.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._waiting: deque[Connection] = deque()
        self._open: dict[Connection, None] = {}  # by the last complete request, the oldest first
        self._scheduled = False

    def opened(self, connection: Connection) -> None:
        """Count a connection; if there are too many, close the one that is idle for longest."""
        if len(self._open) >= self._most:
            idle = next((one for one in self._open if one.idle), None)
            if idle is not None:
                idle.drop()
        self._open[connection] = None

    def used(self, connection: Connection) -> None:
        """Note a complete request."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    def add(self, connection: Connection) -> None:
        """Have a connection parse its input in a later round."""
        if not connection.waiting:
            connection.waiting = True
            self._waiting.append(connection)
        if not self._scheduled:
            self._scheduled = True
            connection.loop.call_soon(self._run)

    def _run(self) -> None:
        """Let connections parse for a short time, in turn."""
        heads, end = 0, time.perf_counter() + ROUND
        while self._waiting and heads < MAX_HEADS:
            connection = self._waiting.popleft()
            connection.waiting = False
            try:
                heads += connection.parse()
            except Exception:  # the other connections must go on
                log.exception("A connection failed")
                connection.drop()
            if time.perf_counter() >= end:
                break
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            self._waiting[0].loop.call_soon(self._run)


class _Transport:
    """A transport that discards input for a while before it closes, and never waits for long."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection, self._transport = connection, transport
        self.closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.closing or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self.closing = True
            self._connection.linger(self._transport)


class _Flow(FlowControl):
    """Flow control that lets the connection parse on."""

    def __init__(self, connection: Connection, transport: Any) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        super().resume_reading()
        self._connection.resume()


class Connection(H11Protocol):
    """A client's connection.

    Args:
        timeout: Seconds to receive the headers of a request, from the connection's start or their
            first byte; and to receive some of the response.
        turns: Decides which connection parses next; None for this connection alone.
        options: Arguments of uvicorn's connections.

    Attributes:
        waiting: True while the connection is to parse its input.
    """

    def __init__(self, *, timeout: float, turns: Turns | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._timeout, self._turns = timeout, turns or Turns()
        self._incoming = bytearray()
        self._body: int | ChunkDecoder = 0  # bytes left
        self._headers: asyncio.TimerHandle | None = None
        self._response: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.waiting = False

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        """Start the timeout for a request."""
        super().connection_made(transport)
        self.transport = wrapped = _Transport(self, transport)  # type: ignore[assignment]
        self.flow = _Flow(self, wrapped)
        self._turns.opened(self)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request, which is parsed in a later round of the event loop."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._incoming += data
        if len(self._incoming) > HIGH_WATER:
            self.transport.pause_reading()
        self._wait_for_headers()
        self._turns.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        for timer in (self._headers, self._response, self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        self._turns.closed(self)
        self._incoming.clear()
        super().connection_lost(exc)

    # -- parsing -------------------------------------------------------------------------------

    def parse(self) -> bool:
        """Parse a part of the input; return True if a request has started."""
        try:
            return not self.transport.is_closing() and bool(self._incoming) and self._parse()
        except FramingError as error:
            self._refuse(error)
            return False

    def resume(self) -> None:
        """Parse on, once the application has taken what was parsed."""
        if self._incoming and not self.transport.is_closing():
            self._turns.add(self)

    def on_response_complete(self) -> None:
        """Continue with the next request, or close if the rest of this one does not come soon."""
        super().on_response_complete()
        self._turns.used(self)
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            if isinstance(self._body, int) and self._body <= HIGH_WATER:
                self._unread = self.loop.call_later(LINGER, self.transport.close)
            else:
                self.transport.close()
        self._wait_for_headers()
        self.resume()

    def _parse(self) -> bool:
        if self.conn.their_state is h11.IDLE:
            return self._parse_head()
        if self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused:
            self._parse_body()
        return False

    def _parse_head(self) -> bool:
        while self._incoming.startswith(b"\r\n"):  # RFC 9112 2.2
            del self._incoming[:2]
        end = self._incoming.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0:
            if NO_HEAD.search(self._incoming, 0, MAX_HEAD) is not None:
                message = "the headers have control characters, or lines that end without CRLF"
                raise FramingError(message)
            if len(self._incoming) >= MAX_HEAD:
                message = f"the headers take more than {MAX_HEAD} bytes"
                raise FramingError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._more()
            return False
        head = parse_head(bytes(self._incoming[: end + 4]))
        del self._incoming[: end + 4]
        self._body = ChunkDecoder() if head.length is None else head.length
        super().data_received(head.content)
        self._wait_for_headers()
        if self._incoming and self.conn.their_state is h11.SEND_BODY:
            self._parse_body()
        else:
            self._more()
            self.resume()
        return True

    def _parse_body(self) -> None:
        if isinstance(self._body, int):
            part = bytes(self._incoming[: min(self._body, PART)])
            del self._incoming[: len(part)]
            self._body -= len(part)
            super().data_received(part)
        else:
            data = self._body.decode(self._incoming, CHUNKS_PART)
            framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if self._body.done:
                framed += b"0\r\n\r\n"
            if framed:
                super().data_received(framed)
            if not framed:
                self._more()  # the rest of a line has not come
                return
        if self._unread is not None and self.conn.their_state is not h11.SEND_BODY:
            self._unread.cancel()
        self._wait_for_headers()
        self._more()
        self.resume()

    def _more(self) -> None:
        """Receive more input, unless the application must take what there is first."""
        if len(self._incoming) <= HIGH_WATER and not self.flow.read_paused:
            self.transport.resume_reading()

    # -- ends ----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True while the server waits for the client."""
        cycle = self.cycle
        waits = cycle is None or cycle.response_complete or cycle.more_body
        return waits or self.flow.write_paused

    def drop(self) -> None:
        """Close the connection at once."""
        self._turns.closed(self)
        self.transport.abort()

    def linger(self, transport: asyncio.Transport) -> None:
        """Close a connection, after the client had time to receive the response."""
        unread = self._incoming or self.conn.their_state is h11.SEND_BODY
        self._incoming.clear()
        limit = self._timeout
        if unread or self.conn.our_state is h11.ERROR:
            limit = min(LINGER, limit)
            try:
                transport.write_eof()
            except OSError:  # the client has left
                transport.abort()
            transport.resume_reading()
        else:
            transport.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(limit, transport.abort)

    def _refuse(self, error: FramingError) -> None:
        """Respond to a request whose framing is wrong, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application gets no more of the body
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        content = json.dumps({"error": str(error)}).encode()
        head = (
            f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.conn.send_failed()
        self.transport.close()

    # -- timeouts ------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the timeouts for a client that receives slowly."""
        super().pause_writing()
        self._watch_progress(self.transport.get_write_buffer_size())
        if self._deadline is None:
            limit = MAX_RESPONSE_TIMEOUTS * self._timeout
            self._deadline = self.loop.call_later(limit, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout: the system has buffered the rest of the response."""
        if self._response is not None:
            self._response.cancel()
        super().resume_writing()

    def _wait_for_headers(self) -> None:
        """Start the timeout for headers, or stop it once they are complete."""
        if self.conn.their_state is not h11.IDLE:
            if self._headers is not None:
                self._headers.cancel()
                self._headers = None
        elif self._headers is None:
            self._headers = self.loop.call_later(self._timeout, self.transport.close)

    def _watch_progress(self, left: int) -> None:
        self._response = self.loop.call_later(self._timeout, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_progress(left)
        else:
            self.transport.abort()  # closing would wait for the client
