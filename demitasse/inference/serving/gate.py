"""A process that accepts connections, answers probes, and hands all other connections over.

An event loop that many clients keep busy answers each of them late, and a probe with them. A probe
that is late has the server restarted. This process does so little for each connection that no
client can occupy it: it looks at what has arrived, and answers it or sends the socket on. The
answers to probes come from a thread of the server, which has the interpreter's lock in turn with
the event loop.
"""

import asyncio
import json
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from demitasse.core.log import get_logger
from demitasse.inference.serving.codec import module_command
from demitasse.inference.serving.framing import KEEP_ALIVE, HTTPError, parse_head

log = get_logger(__name__)

MAX_PROBE = 4096
"""Longest request for a probe, in bytes; longer ones are handed over."""

MAX_ACCEPTED = 32
"""Connections that are accepted in one round."""

STATE_TIMEOUT = 0.05
"""Seconds that an answer waits for the server's present state; then the last one is used."""

SWEEP = 0.5
"""Seconds between checks for idle connections."""

HEARTBEAT = 1.0
"""Seconds between signs of life of the server's event loop."""

State = dict[str, tuple[int, str, str]]
"""Status, content type and text of each probe, by path."""


class Gate:
    """Start and end the process, and serve what it hands over; ``main`` has timeout and most.

    ``state`` returns the answers to probes, and is called in a thread of its own.
    """

    def __init__(
        self, listener: socket.socket, state: Callable[[float], State], *, timeout: float, most: int
    ) -> None:
        self._listener, self._state, self._timeout, self._most = listener, state, timeout, most
        self._process: subprocess.Popen[bytes] | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._beat = time.monotonic()
        self._closed = False

    def start(self) -> None:
        """Start the process, which answers probes from now on."""
        handed, theirs = socket.socketpair()
        asked, answers = socket.socketpair()
        self._sockets = [handed, asked]
        handed.setblocking(False)
        numbers = [one.fileno() for one in (self._listener, theirs, answers)]
        self._process = subprocess.Popen(
            module_command(__name__, *numbers, self._timeout, self._most),
            stdin=subprocess.DEVNULL,
            pass_fds=numbers,
        )
        theirs.close()
        answers.close()
        threading.Thread(target=self._answer, args=(asked,), daemon=True, name="probes").start()

    def open(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Serve the connections that the process hands over, each by a protocol."""
        self._protocol = protocol
        self._watch()
        self._live()

    def close(self) -> None:
        """End the process, so that no more connections are accepted."""
        self._closed = True
        self._end()

    def _watch(self) -> None:
        handed = self._sockets[0]
        asyncio.get_running_loop().add_reader(handed, self._receive, handed)

    def _receive(self, handed: socket.socket) -> None:
        """Serve connections that were handed over; start the process again if it has ended."""
        for _ in range(MAX_ACCEPTED):
            try:
                content, numbers, _, _ = socket.recv_fds(handed, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                content, numbers = b"", []
            if not content:
                self._end()
                if not self._closed:
                    log.error("The process that accepts connections ended, and is started again")
                    self.start()
                    self._watch()
                return
            loop = asyncio.get_running_loop()
            for number in numbers:
                client = socket.socket(fileno=number)
                client.setblocking(False)
                task = loop.create_task(loop.connect_accepted_socket(self._protocol, client))
                self._tasks.add(task)
                task.add_done_callback(self._accepted)

    def _accepted(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client has left

    def _answer(self, asked: socket.socket) -> None:
        """Send the server's state as often as the process asks."""
        with suppress(OSError):
            while asked.recv(1):
                content = json.dumps(self._state(time.monotonic() - self._beat)).encode()
                asked.sendall(len(content).to_bytes(4, "little") + content)

    def _live(self) -> None:
        self._beat = time.monotonic()
        if not self._closed:
            asyncio.get_running_loop().call_later(HEARTBEAT, self._live)

    def _end(self) -> None:
        for one in self._sockets:
            with suppress(OSError, RuntimeError, ValueError):
                asyncio.get_running_loop().remove_reader(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # also ends the thread
            one.close()
        self._sockets = []
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class _Client:
    """A connection of which nothing is known yet, or that has only sent probes."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection, self.until = connection, until
        self.path, self.is_head, self.keep = "", False, False


class _AcceptLoop:
    """Event loop of the process; see ``main`` for the arguments."""

    def __init__(self, sockets: Sequence[socket.socket], timeout: float, most: int) -> None:
        self._listener, self._handed, self._answers = sockets
        self._timeout, self._most = timeout, most
        self._selector = selectors.DefaultSelector()
        self._clients: dict[_Client, None] = {}  # the oldest first
        self._probes: list[_Client] = []
        self._leaving: deque[socket.socket] = deque()
        self._state: State = {}
        self._partial = bytearray()
        self._asked = 0.0
        for one in sockets:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)

    def run(self) -> None:
        """Accept connections until the server closes its sockets."""
        self._ask()
        swept = time.monotonic()
        while True:
            ready = self._selector.select(STATE_TIMEOUT if self._probes else SWEEP)
            for key, events in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._handed:
                    if events & selectors.EVENT_READ:  # its end
                        return
                    self._send_leaving()
                elif key.fileobj is self._answers:
                    if not self._read_state():
                        return
                elif key.data in self._clients:
                    self._serve(key.data)
            now = time.monotonic()
            if self._probes and now > self._asked + STATE_TIMEOUT and self._state:
                self._respond()
            if now > swept + SWEEP:
                swept = now
                self._send_leaving()
                for client in [one for one in self._clients if one.until < now]:
                    self._close(client)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none, or too many files
                if len(self._clients) < self._most:
                    return
                connection = None
            if len(self._clients) >= self._most:
                self._close(next(iter(self._clients)))
            if connection is None:
                return
            connection.setblocking(False)
            client = _Client(connection, time.monotonic() + self._timeout)
            self._clients[client] = None
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        """Answer a probe; hand any other connection over."""
        try:
            content = client.connection.recv(MAX_PROBE, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self._close(client)
            return
        end = content.find(b"\r\n\r\n") + 4
        path = _probe(content[:end]) if end >= 4 else ""
        if path and self._state and path not in self._state:
            path = ""
        if not path:
            self._hand_over(client)
            return
        client.connection.recv(end)
        client.path, client.is_head = path, content.startswith(b"HEAD")
        client.keep = b" HTTP/1.1\r\n" in content[:end] and b"close" not in content[:end].lower()
        self._selector.unregister(client.connection)  # one probe at a time
        self._probes.append(client)
        if len(self._probes) == 1:
            self._ask()

    def _hand_over(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        del self._clients[client]
        self._leaving.append(client.connection)
        while len(self._leaving) > self._most:
            self._leaving.popleft().close()
        self._send_leaving()

    def _send_leaving(self) -> None:
        """Send sockets to the server, as many as the system takes now."""
        wanted = selectors.EVENT_READ
        while self._leaving:
            try:
                socket.send_fds(self._handed, [b"\0"], [self._leaving[0].fileno()])
            except BlockingIOError:
                wanted |= selectors.EVENT_WRITE
                break
            except OSError:  # too many on the way, or the server ends
                break
            self._leaving.popleft().close()
        self._selector.modify(self._handed, wanted)

    def _ask(self) -> None:
        self._asked = time.monotonic()
        with suppress(BlockingIOError):
            self._answers.send(b"?")

    def _read_state(self) -> bool:
        """Read a part of the server's state; return False if the server has ended."""
        try:
            content = self._answers.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._partial += content
        while len(self._partial) >= 4:
            end = 4 + int.from_bytes(self._partial[:4], "little")
            if len(self._partial) < end:
                break
            self._state = json.loads(self._partial[4:end])
            del self._partial[:end]
            self._respond()
        return bool(content)

    def _respond(self) -> None:
        """Answer all probes by the present state."""
        probes, self._probes = self._probes, []
        for client in probes:
            status, kind, text = self._state.get(client.path, (404, "application/json", "{}"))
            body = text.encode()
            ends = "" if client.keep else "Connection: close\r\n"
            phrase = "OK" if status == 200 else "Service Unavailable"
            head = (
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {kind}\r\n"
                f"content-length: {len(body)}\r\n{ends}\r\n"
            ).encode()
            sent, content = 0, head if client.is_head else head + body
            with suppress(OSError):
                sent = client.connection.send(content)
            if sent < len(content) or not client.keep:
                self._close(client, registered=False)
                continue
            client.until = time.monotonic() + KEEP_ALIVE
            self._selector.register(client.connection, selectors.EVENT_READ, client)
            del self._clients[client]
            self._clients[client] = None

    def _close(self, client: _Client, *, registered: bool = True) -> None:
        del self._clients[client]
        if client in self._probes:
            self._probes.remove(client)
        elif registered:
            self._selector.unregister(client.connection)
        client.connection.close()


def _probe(head: bytes) -> str:
    """Return the path of a request that may be a probe; "" for any other."""
    if not head.startswith((b"GET ", b"HEAD ")):
        return ""
    try:
        parsed = parse_head(head)
    except HTTPError:  # the server says what is wrong
        return ""
    if parsed.length != 0:
        return ""
    path = parsed.target.partition("?")[0].rstrip("/")
    return path if path == "/metrics" or path.endswith(("/ready", "/live")) else ""


def main(listener: float, handed: float, answers: float, timeout: float, most: float) -> None:
    """Accept connections until the server ends.

    Args:
        listener: Number of the listening socket.
        handed: Number of the socket that takes connections.
        answers: Number of the socket that gives the server's state.
        timeout: Seconds that a connection may be idle at first.
        most: Number of connections from which on a new one closes the oldest.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when to end
        signal.signal(number, signal.SIG_IGN)
    sockets = [socket.socket(fileno=int(number)) for number in (listener, handed, answers)]
    _AcceptLoop(sockets, timeout, int(most)).run()
