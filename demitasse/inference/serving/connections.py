"""Connections that no client can keep, and that share the event loop fairly.

Each connection has time limits for every state, and parses a small part of its input at a time.

Source: R. Fielding et al., *HTTP/1.1* (RFC 9112), 2022.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from demitasse.core.log import get_logger
from demitasse.inference.serving.framing import (
    FAILED,
    KEEP_ALIVE,
    MAX_HEAD,
    NO_HEAD,
    ChunkDecoder,
    Head,
    HTTPError,
    Response,
    parse_head,
    refuse,
    response_head,
)

if TYPE_CHECKING:
    from demitasse.inference.serving.app import App, Call

log = get_logger(__name__)

HIGH_WATER = 1 << 16
"""Bytes received but not parsed from which on the client must wait."""

PART = 1 << 18
"""Bytes of a body that are parsed at once, and of a response that are sent at once."""

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


class Scheduler:
    """Decides which connection parses next."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most  # connections from which on a new one closes another, which is idle
        self._waiting: deque[Connection] = deque()
        self.connections: dict[Connection, None] = {}  # the oldest complete request first
        self._scheduled = False
        self.ending = False  # each connection closes after its next response

    def opened(self, connection: Connection) -> None:
        """Count a connection; if there are too many, close the one that is idle for longest."""
        if len(self.connections) >= self.most:
            idle = next((one for one in self.connections if one.idle), None)
            if idle is not None:
                idle.drop()
        self.connections[connection] = None

    def used(self, connection: Connection) -> None:
        """Note a complete request."""
        if connection in self.connections:
            del self.connections[connection]
            self.connections[connection] = None

    def received(self, connection: Connection) -> None:
        """Have a connection parse new input: the first of a round at once, others in the next."""
        if self._scheduled:
            self.add(connection)
        else:
            self._schedule(connection.loop)
            self._parse(connection)

    def add(self, connection: Connection) -> None:
        """Have a connection parse its input in a later round."""
        if not connection.waiting:
            connection.waiting = True
            self._waiting.append(connection)
        if not self._scheduled:
            self._schedule(connection.loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._run)

    def _parse(self, connection: Connection) -> bool:
        try:
            return connection.parse()
        except Exception:  # the other connections must go on
            log.exception("A connection failed")
            connection.drop()
            return False

    def _run(self) -> None:
        """Let connections parse for a short time, in turn."""
        heads, end = 0, time.perf_counter() + ROUND
        while self._waiting and heads < MAX_HEADS:
            connection = self._waiting.popleft()
            connection.waiting = False
            heads += self._parse(connection)
            if time.perf_counter() >= end:
                break
        self._scheduled = False
        if self._waiting:
            self._schedule(self._waiting[0].loop)


class Connection(asyncio.Protocol):
    """A client's connection.

    A client has the application's ``timeout`` to send the headers of a request, from the
    connection's start or their first byte. The same limit holds for the body, and for the receipt
    of some of the response.
    While ``waiting`` is True, the connection is to parse its input.
    """

    transport: asyncio.Transport

    def __init__(self, app: App, scheduler: Scheduler | None = None) -> None:
        self._app, self._timeout = app, app.limits.timeout
        self._scheduler = scheduler or Scheduler()
        self.loop = asyncio.get_running_loop()
        self.waiting, self._writable = False, asyncio.Event()
        self._writable.set()
        self._incoming = bytearray()
        self._last: tuple[bytes, Head | None] = b"", None  # a head, which the next may repeat
        self._head: Head | None = None  # of the present request, until its response is written
        self._call: Call | None = None  # which has the body
        self._left: int | ChunkDecoder = 0  # of the body
        self._in_body = False
        self._task: asyncio.Task[None] | None = None
        self._keep_alive, self._closing, self._waits_for_request = True, False, False
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
        self._scheduler.opened(self)
        self._set_deadline(self._timeout, self.close)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        if self._closing:
            return
        if self._waits_for_request:
            self._waits_for_request = False
            self._set_deadline(self._timeout, self.close)
        self._incoming += data
        if len(self._incoming) > HIGH_WATER:
            self.transport.pause_reading()
        self._scheduler.received(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        del exc
        self._closing = True
        for timer in (self._timer, self._progress, self._response_deadline):
            if timer is not None:
                timer.cancel()
        self._scheduler.connections.pop(self, None)
        self._incoming.clear()
        if self._in_body:
            self._end_call(HTTPStatus.BAD_REQUEST)
        self._writable.set()

    def pause_writing(self) -> None:
        """Start the timeouts for a client that receives slowly."""
        self._writable.clear()
        self._watch_progress(self.transport.get_write_buffer_size())
        if self._response_deadline is None:
            limit = MAX_RESPONSE_TIMEOUTS * self._timeout
            self._response_deadline = self.loop.call_later(limit, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout: the system has buffered the rest of the response."""
        if self._progress is not None:
            self._progress.cancel()
        self._writable.set()

    # -- requests ------------------------------------------------------------------------------

    def parse(self) -> bool:
        """Parse a part of the input; return True if a request has started."""
        if self._closing or not self._incoming:
            return False
        try:
            if self._in_body:
                self._parse_body()
            elif self._head is None:
                return self._parse_head()
        except HTTPError as error:
            self._refuse(error)
        return False

    def _parse_head(self) -> bool:
        incoming = self._incoming
        while incoming.startswith(b"\r\n"):  # RFC 9112 2.2
            del incoming[:2]
        raw, head = self._last
        repeated = bool(raw) and incoming.startswith(raw)
        end = len(raw) if repeated else incoming.find(b"\r\n\r\n", 0, MAX_HEAD) + 4
        if end < 4:
            if NO_HEAD.search(incoming, 0, MAX_HEAD) is not None:
                refuse("the headers have control characters, or lines that end without CRLF")
            if len(incoming) >= MAX_HEAD:
                message = f"the headers take more than {MAX_HEAD} bytes"
                raise HTTPError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            self._more()
            return False
        if head is None or not repeated:
            raw = bytes(incoming[:end])
            head = parse_head(raw)
            self._last = raw, head
        del incoming[:end]
        self._head, self._keep_alive = head, not head.closes
        self._left = ChunkDecoder() if head.length is None else head.length
        self._in_body = head.length != 0
        self._set_deadline(math.inf, self.close)
        try:
            accepted = self._app.accept(head)
        except Exception as error:
            accepted = _error_response(error)
        if isinstance(accepted, Response):
            self._respond(accepted)
            return True
        self._call = accepted
        if head.expects_continue and self._in_body:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._in_body:
            self._run(accepted)
            return True
        self._set_deadline(self._timeout, self._refuse_late_body)
        if incoming:
            self._parse_body()
        else:
            self._more()
        return True

    def _parse_body(self) -> None:
        if isinstance(self._left, int):
            part = bytes(self._incoming[: min(self._left, PART)])
            del self._incoming[: len(part)]
            self._left -= len(part)
            done = not self._left
        else:
            part = self._left.decode(self._incoming, CHUNKS_PART)
            done = self._left.done
            if not part and not done:
                self._more()  # the rest of a line has not come
                return
        call = self._call
        if call is not None:
            self._app.add_to_body(call, part)
        self._in_body = not done
        if done and call is not None:
            self._run(call)
        elif done and self._head is None:
            self._next_request()
        else:
            self._resume()

    def _resume(self) -> None:
        """Parse the rest of the input, or receive more."""
        if self._incoming:
            self._scheduler.add(self)
        self._more()

    def _more(self) -> None:
        """Receive more input, unless there is much to parse first."""
        if len(self._incoming) <= HIGH_WATER and not self._closing:
            self.transport.resume_reading()

    # -- responses -----------------------------------------------------------------------------

    def _run(self, call: Call) -> None:
        self._set_deadline(self._timeout, self._give_up)
        self._task = self.loop.create_task(self._answer(call))

    async def _answer(self, call: Call) -> None:
        try:
            response = await call.respond(call.body)
        except Exception as error:
            response = _error_response(error)
        self._respond(response)

    def _give_up(self) -> None:
        """Respond to a call that has no result in time."""
        if self._task is not None:
            self._task.cancel()
        message = f"no result within {self._timeout:g} seconds"
        self._respond(HTTPError(message, HTTPStatus.GATEWAY_TIMEOUT).response)

    def _respond(self, response: Response) -> None:
        """Write a response, at once if it is small and the client receives."""
        self._set_deadline(math.inf, self.close)
        if response.headers.get("Connection") == "close" or self._scheduler.ending:
            self._keep_alive = False
        try:
            head = response_head(response, close=not self._keep_alive)
        except ValueError as error:
            self._respond(_error_response(error))
            return
        body = [] if self._head is not None and self._head.method == "HEAD" else response.body
        if self._closing:
            self._end_call(response.status)
        elif len(response) <= PART and self._writable.is_set():
            self.transport.write(b"".join([head, *body]))
            self._finish(response.status)
        else:
            parts = [part[i : i + PART] for part in body for i in range(0, len(part), PART)]
            work = self._write(response, [head, *parts])
            self._task = self.loop.create_task(work)

    async def _write(self, response: Response, parts: list[bytes | memoryview]) -> None:
        """Write the parts of a response as the client receives them."""
        self._app.hold(len(response))
        try:
            for part in parts:
                await self._writable.wait()
                if self._closing:
                    break
                self.transport.write(part)
                await asyncio.sleep(0)  # other connections come in between
        finally:
            self._app.hold(-len(response))
        self._finish(response.status)

    def _finish(self, status: int) -> None:
        """Continue with the next request, or close if the rest of this one does not come soon."""
        self._end_call(status)
        self._head = self._task = None
        if self._closing:
            return
        self._scheduler.used(self)
        if not self._keep_alive:
            self.close()
        elif not self._in_body:
            self._next_request()
        elif isinstance(self._left, int) and self._left <= HIGH_WATER:
            self._set_deadline(LINGER, self.close)
            self._resume()
        else:
            self.close()

    def _end_call(self, status: int) -> None:
        call, self._call = self._call, None
        if call is not None:
            self._app.end(call, status)

    def _next_request(self) -> None:
        self._waits_for_request = not self._incoming
        self._set_deadline(self._timeout if self._incoming else KEEP_ALIVE, self.close)
        self._resume()

    def _refuse_late_body(self) -> None:
        message = f"no complete body within {self._timeout:g} seconds"
        self._refuse(HTTPError(message, HTTPStatus.REQUEST_TIMEOUT))

    def _refuse(self, error: HTTPError) -> None:
        """Respond to a request whose end is not certain or does not come, and close."""
        self._end_call(error.status)
        if self._task is not None:  # a response is in progress
            self.drop()
            return
        head = response_head(error.response, close=True)
        self.transport.write(b"".join([head, *error.response.body]))
        self._close(unread=True)

    # -- ends ----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True while the server waits for the client."""
        return self._head is None or self._in_body or not self._writable.is_set()

    def shutdown(self) -> None:
        """Close the connection unless it has a request; ``ending`` closes it after the response."""
        if self._head is None and not self.waiting:
            self.close()

    def drop(self) -> None:
        """Close the connection at once."""
        self._closing = True
        self._scheduler.connections.pop(self, None)
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


def _error_response(error: Exception) -> Response:
    """Return the response to a request that raised an exception."""
    if isinstance(error, HTTPError):
        return error.response
    log.error("A request failed", exc_info=error)
    return HTTPError(FAILED, HTTPStatus.INTERNAL_SERVER_ERROR).response
