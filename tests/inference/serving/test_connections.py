"""Clients that keep a connection without saying or taking anything, on real sockets."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from demitasse.inference.serving.app import Limits
from demitasse.inference.serving.connections import Connection, Scheduler
from demitasse.inference.serving.framing import Response

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 1 << 26
"""Bytes of an answer that no system keeps for a client."""
SOON = 20.0
"""Seconds within which a test ends that would wait for ever otherwise."""


class Answering:
    """An application with one answer; ``ended`` is set when it has gone, or its client."""

    def __init__(self, size, headers=(), timeout=SOON):
        self.response = Response(200, dict(headers), [bytes(size)])
        self.limits, self.ended = Limits(timeout=timeout), asyncio.Event()

    def accept(self, head):
        return self.response

    def hold(self, count):
        if count < 0:
            self.ended.set()


@asynccontextmanager
async def connected(app):
    """Serve an application, and connect a client to it."""
    made = partial(Connection, app)
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        async with asyncio.timeout(SOON):
            yield reader, writer
    finally:
        writer.close()
        server.close()


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHo", REQUEST[:-1]])
def test_who_does_not_end_the_headers_is_cut_off(begun):
    async def client():
        async with connected(Answering(3, timeout=0.1)) as (reader, writer):
            writer.write(begun)

            return await reader.read()

    assert asyncio.run(client()) == b""


def test_a_header_field_with_a_line_break_is_not_sent():
    async def client():
        app = Answering(0, {"X-Name": "a\r\nset-cookie: b"})
        async with connected(app) as (reader, writer):
            writer.write(REQUEST.replace(b"Host", b"Connection: close\r\nHost"))

            return await reader.read()

    answer = asyncio.run(client())

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in answer


def test_so_is_who_has_been_answered_before():
    async def client():
        async with connected(Answering(3, timeout=0.1)) as (reader, writer):
            writer.write(REQUEST)
            answer = await reader.readexactly(len(b"HTTP/1.1 200 OK"))
            writer.write(REQUEST[:-4])

            return answer, await reader.read()

    answer, rest = asyncio.run(client())

    assert answer == b"HTTP/1.1 200 OK"
    assert rest.endswith(b"\0\0\0")


def test_who_does_not_take_an_answer_is_cut_off():
    async def client():
        app = Answering(LARGE, timeout=0.1)
        async with connected(app) as (_, writer):
            writer.write(REQUEST)

            await app.ended.wait()

    asyncio.run(client())


def test_who_takes_an_answer_slowly_has_it_whole():
    async def client():
        app = Answering(LARGE, timeout=5.0)
        async with connected(app) as (reader, writer):
            writer.write(REQUEST)
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(8):
                await reader.readexactly(LARGE // 8)
                await asyncio.sleep(0.01)
            await app.ended.wait()

    asyncio.run(client())


class Transport:
    """Takes note of what is asked of it.

    Args:
        left: Bytes of an answer that the client has not taken yet, each time it is asked.
    """

    def __init__(self, left):
        self.left, self.aborted = left, False

    def get_write_buffer_size(self):
        return self.left.pop(0)

    def get_extra_info(self, name):
        return None

    def is_closing(self):
        return False

    def close(self):
        pass

    def abort(self):
        self.aborted = True


@pytest.mark.parametrize(("left", "cut_off"), [([9, 5, 2], False), ([9, 9], True)])
def test_it_counts_that_some_of_an_answer_is_taken(left, cut_off):
    async def waited():
        transport = Transport(list(left))
        connection = Connection(Answering(3))
        connection.connection_made(transport)
        connection.pause_writing()
        for before in left[:-1]:
            connection._check_progress(before)
        connection.connection_lost(OSError("it was cut off"))
        return transport.aborted

    assert asyncio.run(waited()) == cut_off


class Broken(Connection):
    """A connection whose parser fails on a word."""

    def parse(self):
        if b"BROKEN" in self._incoming:
            message = "a fault of ours"
            raise ValueError(message)
        return super().parse()


def test_a_connection_that_fails_leaves_the_others():
    async def clients():
        made = partial(Broken, Answering(3), Scheduler())
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        found = []
        async with asyncio.timeout(SOON):
            for content in (b"BROKEN", REQUEST, b"BROKEN", REQUEST):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
                writer.write(content)
                try:
                    found.append(await reader.read(12))
                except ConnectionResetError:
                    found.append(b"")
                writer.close()
        server.close()
        return found

    assert asyncio.run(clients()) == [b"", b"HTTP/1.1 200", b"", b"HTTP/1.1 200"]


def test_a_client_that_left_before_its_refusal_is_forgotten():
    async def clients():
        left = []
        for _ in range(20):
            async with connected(Answering(3)) as (reader, writer):
                del reader
                writer.write(b"no HTTP\r\n\r\n" + b"x" * 100_000)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                writer.transport.abort()
                await asyncio.sleep(0.02)
                left.append(len(asyncio.all_tasks()))
        return left

    assert max(asyncio.run(clients())) == 1


def test_a_new_connection_takes_the_place_of_the_one_idle_for_longest():
    async def clients():
        made = partial(Connection, Answering(3), Scheduler(3))
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()[:2]
        async with asyncio.timeout(SOON):
            opened = [await asyncio.open_connection(*address) for _ in range(3)]
            reader, writer = opened[0]
            writer.write(REQUEST)
            await reader.readuntil(b"\0\0\0")
            opened.append(await asyncio.open_connection(*address))
            with suppress(ConnectionResetError):
                assert await opened[1][0].read(1) == b""
            for reader, writer in (opened[0], opened[2], opened[3]):
                writer.write(REQUEST)
                assert await reader.readuntil(b"\0\0\0")
        for _, writer in opened:
            writer.close()
        server.close()

    asyncio.run(clients())
