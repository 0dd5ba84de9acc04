"""Connections that no client can keep, and that share the event loop fairly.

Each connection has time limits for every state, and parses a small part of its input at a time. It
takes the place of uvicorn's protocols. These wait without limit for headers, for a client to
receive its response, and for the rest of an answered body.

Source: R. Fielding et al., *HTTP/1.1* (RFC 9112), 2022; ASGI 3.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from demitasse.core.log import get_logger
from demitasse.inference.serving.framing import (
    MAX_HEAD,
    NO_HEAD,
    ChunkDecoder,
    FramingError,
    Head,
    parse_head,
)

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

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

KEEP_ALIVE = 5.0
"""Seconds that a connection may be idle after a response."""

MAX_RESPONSE_TIMEOUTS = 20
"""Timeouts within which a client must have received a response."""


NO_CONTENT = [(b"content-length", b"0"), (b"connection", b"close")]


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


Message = MutableMapping[str, Any]
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class _Exchange:
    """A request and its response, as the application sees them.

    Attributes:
        body: Parsed part of the request's body that the application has not received.
        more_body: True until the whole body is parsed.
        complete: True once the response is written.
        disconnected: True once the client has left, or sent a wrong body.
    """

    def __init__(self, connection: Connection, head: Head) -> None:
        self._connection, self._head = connection, head
        self.body, self.more_body = bytearray(), head.length != 0
        self.complete = self.disconnected = self._received = False
        self._expects_continue = head.expects_continue and self.more_body
        self._changed = asyncio.Event()
        self._start: bytes | None = None  # of the response; empty once it is written
        self._left = 0.0  # bytes of the response's body

    async def run(self, app: Callable[..., Any], scope: Message) -> None:
        """Run the application; answer with 500 if it does not."""
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            log.exception("The application failed")
        if self.disconnected or self.complete:
            return
        if self._start is None:
            await self.send({"type": "http.response.start", "status": 500, "headers": NO_CONTENT})
            await self.send({"type": "http.response.body"})
        else:
            self._connection.drop()

    @property
    def started(self) -> bool:
        """True once a part of the response is written."""
        return self._start == b""

    def add(self, part: bytes, *, more: bool) -> None:
        """Add a part of the request's body."""
        self.body += part
        self.more_body = more
        self._changed.set()

    def disconnect(self) -> None:
        """End the request for the application."""
        self.disconnected = True
        self._changed.set()

    async def receive(self) -> Message:
        """Return the next event of ASGI."""
        if self._expects_continue:
            self._expects_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while (
            (self._received or (self.more_body and not self.body))
            and not self.disconnected
            and not self.complete
        ):
            self._changed.clear()
            await self._changed.wait()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        self._received = not self.more_body
        if self.more_body:
            self._connection.resume()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Write a part of the response; its head is written with the first part of its body."""
        await self._connection.writable.wait()
        if self.disconnected:
            return
        if self._start is None:
            self._start = self._response_head(message["status"], message.get("headers", ()))
            return
        more = message.get("more_body", False)
        body = b"" if self._head.method == "HEAD" else message.get("body", b"")
        self._left -= len(body)
        if self.complete or self._left < 0 or (not more and 0 < self._left < math.inf):
            text = "the response has another length than its head says"
            raise ValueError(text)
        self._connection.transport.write(self._start + body)
        self._start = b""
        if not more:
            self.complete = True
            self._changed.set()
            self._connection.finish_response()

    def _response_head(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
        fields = [*self._connection.server_state.default_headers, *fields]
        known = {name.lower(): value for name, value in fields}
        length = known.get(b"content-length")
        self._left = math.inf if length is None else int(length)
        if self._head.method == "HEAD":
            self._left = 0
        if self._head.closes or length is None or known.get(b"connection", b"").lower() == b"close":
            self._connection.keep_alive = False
        if not self._connection.keep_alive and b"connection" not in known:
            fields.append((b"connection", b"close"))
        lines = [b"HTTP/1.1 %d %b" % (status, PHRASES[status])]
        lines += [b"%b: %b" % one for one in fields]
        if any(b"\r" in line or b"\n" in line for line in lines):  # it would begin another
            text = "a header field of the response has a line break"
            raise ValueError(text)
        return b"\r\n".join([*lines, b"", b""])


class Connection(asyncio.Protocol):
    """A client's connection.

    Args:
        timeout: Seconds to receive the headers of a request, from the connection's start or their
            first byte; and to receive some of the response.
        turns: Decides which connection parses next; None for this connection alone.
        config: uvicorn's configuration, with the application.
        server_state: uvicorn's connections, tasks and headers of all responses.
        app_state: State of the application.
        _loop: Not used.

    Attributes:
        transport: The transport.
        server_state: As given.
        waiting: True while the connection is to parse its input.
        keep_alive: True if another request may follow the present one.
        writable: Set while the transport accepts output.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        *,
        timeout: float,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        turns: Turns | None = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        del _loop
        self._timeout, self._turns = timeout, turns or Turns()
        self._app, self._app_state, self.server_state = config.loaded_app, app_state, server_state
        self.loop = asyncio.get_running_loop()
        self.waiting, self.keep_alive, self.writable = False, True, asyncio.Event()
        self.writable.set()
        self._exchange: _Exchange | None = None  # the present request, or the one before
        self._incoming = bytearray()
        self._body: int | ChunkDecoder = 0  # bytes left
        self._closing = self._waits_for_request = False
        # one timer, which is set again if it ends before the deadline
        self._action: Callable[[], None] = self.close
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._response_deadline: asyncio.TimerHandle | None = None

    # -- events --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timeout for a request."""
        self.transport = cast("asyncio.Transport", transport)
        self._server, self._client = (
            address[:2] if isinstance(address, tuple) else None
            for address in map(transport.get_extra_info, ("sockname", "peername"))
        )
        self.server_state.connections.add(self)  # type: ignore[arg-type]  # no class of uvicorn's
        self._turns.opened(self)
        self._set_deadline(self._timeout, self.close)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request, which is parsed in a later round of the event loop."""
        if self._closing:
            return
        if self._waits_for_request:
            self._waits_for_request = False
            self._set_deadline(self._timeout, self.close)
        self._incoming += data
        if len(self._incoming) > HIGH_WATER:
            self.transport.pause_reading()
        self._turns.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts, and tell the application."""
        del exc
        self._closing = True
        for timer in (self._timer, self._progress, self._response_deadline):
            if timer is not None:
                timer.cancel()
        self._turns.closed(self)
        self.server_state.connections.discard(self)
        self._incoming.clear()
        if self._exchange is not None and not self._exchange.complete:
            self._exchange.disconnect()
        self.writable.set()

    def pause_writing(self) -> None:
        """Start the timeouts for a client that receives slowly."""
        self.writable.clear()
        self._watch_progress(self.transport.get_write_buffer_size())
        if self._response_deadline is None:
            limit = MAX_RESPONSE_TIMEOUTS * self._timeout
            self._response_deadline = self.loop.call_later(limit, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout: the system has buffered the rest of the response."""
        if self._progress is not None:
            self._progress.cancel()
        self.writable.set()

    # -- parsing -------------------------------------------------------------------------------

    def parse(self) -> bool:
        """Parse a part of the input; return True if a request has started."""
        try:
            return not self._closing and bool(self._incoming) and self._parse()
        except FramingError as error:
            self._refuse(error)
            return False

    def resume(self) -> None:
        """Parse on, once the application has taken what was parsed."""
        if self._incoming:
            self._turns.add(self)
        else:
            self._more()

    @property
    def _in_body(self) -> bool:
        return self._exchange is not None and self._exchange.more_body

    @property
    def _idle(self) -> bool:
        """True between two requests."""
        return self._exchange is None or (self._exchange.complete and not self._exchange.more_body)

    def _parse(self) -> bool:
        if self._idle:
            return self._parse_head()
        if self._in_body:
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
        self._set_deadline(math.inf, self.close)
        self._body = ChunkDecoder() if head.length is None else head.length
        self._exchange = _Exchange(self, head)
        if self._in_body and self._incoming:
            self._parse_body()
        else:
            self._more()
        task = self.loop.create_task(self._exchange.run(self._app, self._scope(head)))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)
        return True

    def _scope(self, head: Head) -> Message:
        path, _, query = head.target.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "method": head.method,
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": head.fields,
            "state": self._app_state.copy(),
        }

    def _parse_body(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        if len(exchange.body) > HIGH_WATER and not exchange.complete:
            return  # until the application has received it
        if isinstance(self._body, int):
            part = bytes(self._incoming[: min(self._body, PART)])
            del self._incoming[: len(part)]
            self._body -= len(part)
            done = not self._body
        else:
            part = self._body.decode(self._incoming, CHUNKS_PART)
            done = self._body.done
            if not part and not done:
                self._more()  # the rest of a line has not come
                return
        if exchange.complete:
            exchange.more_body = not done
            if done:
                self._next_request()
        else:
            exchange.add(part, more=not done)
        self._more()
        if self._incoming:
            self._turns.add(self)

    def _more(self) -> None:
        """Receive more input, unless there is much to parse first."""
        if len(self._incoming) <= HIGH_WATER and not self._closing:
            self.transport.resume_reading()

    # -- responses -----------------------------------------------------------------------------

    def finish_response(self) -> None:
        """Continue with the next request, or close if the rest of this one does not come soon."""
        self.server_state.total_requests += 1
        self._turns.used(self)
        if not self.keep_alive:
            self.close()
        elif not self._in_body:
            self._next_request()
        elif isinstance(self._body, int) and self._body <= HIGH_WATER:
            self._set_deadline(LINGER, self.close)
            self.resume()
        else:
            self.close()

    def _next_request(self) -> None:
        self._waits_for_request = not self._incoming
        self._set_deadline(self._timeout if self._incoming else KEEP_ALIVE, self.close)
        self.resume()

    def _refuse(self, error: FramingError) -> None:
        """Respond to a request whose framing is wrong, and close the connection."""
        exchange = self._exchange
        if exchange is not None and not exchange.complete:
            exchange.disconnect()  # the application gets no more of the body
            if exchange.started:
                self.drop()
                return
        content = json.dumps({"error": str(error)}).encode()
        head = (
            f"HTTP/1.1 {error.status.value} {error.status.phrase}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self._close(unread=True)

    # -- ends ----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True while the server waits for the client."""
        one = self._exchange
        return one is None or one.complete or one.more_body or not self.writable.is_set()

    def shutdown(self) -> None:
        """Close the connection after the present request."""
        if self._exchange is None or self._exchange.complete:
            self.close()
        else:
            self.keep_alive = False

    def drop(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self._turns.closed(self)
        self.transport.abort()

    def close(self) -> None:
        """Close the connection, after the client had time to receive the response."""
        self._close(unread=bool(self._incoming) or self._in_body)

    def _close(self, *, unread: bool) -> None:
        if self._closing:
            return
        self._closing = True
        self._incoming.clear()
        self._set_deadline(min(LINGER, self._timeout) if unread else self._timeout, self.drop)
        if not unread:
            self.transport.close()
            return
        try:  # what the client still sends is discarded: a reset would discard the response
            self.transport.write_eof()
        except OSError:  # the client has left
            self.transport.abort()
        self.transport.resume_reading()

    # -- timeouts ------------------------------------------------------------------------------

    def _set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        """Call a function after some seconds, unless another deadline is set before."""
        self._due, self._action = self.loop.time() + seconds, action
        if self._timer is not None and self._due < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._due < math.inf:
            self._timer = self.loop.call_at(self._due, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._due <= self.loop.time():
            self._action()
        elif self._due < math.inf:
            self._timer = self.loop.call_at(self._due, self._check_deadline)

    def _watch_progress(self, left: int) -> None:
        self._progress = self.loop.call_later(self._timeout, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_progress(left)
        else:
            self.transport.abort()  # closing would wait for the client
