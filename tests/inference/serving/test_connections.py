"""Clients that keep a connection without saying or taking anything, on real sockets."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest

pytest.importorskip("uvicorn")

from uvicorn import Config
from uvicorn.server import ServerState

from demitasse.inference.serving.connections import Connection

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 1 << 26
"""Bytes of an answer that no system keeps for a client."""
SOON = 20.0
"""Seconds within which a test ends that would wait for ever otherwise."""


class Answering:
    """An application; ``ended`` is set when an answer has gone, or its client."""

    def __init__(self, size: int) -> None:
        self.size, self.ended = size, asyncio.Event()

    async def __call__(self, scope, receive, send):
        length = [(b"content-length", str(self.size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": bytes(self.size)})
        self.ended.set()


@asynccontextmanager
async def connected(app, timeout):
    """Serve an application, and connect a client to it."""
    config = Config(app, log_config=None, lifespan="off", http="h11", ws="none")
    config.load()
    made = partial(
        Connection, timeout=timeout, config=config, server_state=ServerState(), app_state={}
    )
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
        async with connected(Answering(3), timeout=0.1) as (reader, writer):
            writer.write(begun)

            return await reader.read()

    assert asyncio.run(client()) == b""


def test_so_is_who_has_been_answered_before():
    async def client():
        async with connected(Answering(3), timeout=0.1) as (reader, writer):
            writer.write(REQUEST)
            answer = await reader.readexactly(len(b"HTTP/1.1 200 OK"))
            writer.write(REQUEST[:-4])

            return answer, await reader.read()

    answer, rest = asyncio.run(client())

    assert answer == b"HTTP/1.1 200 OK"
    assert rest.endswith(b"\0\0\0")


def test_who_does_not_take_an_answer_is_cut_off():
    async def client():
        app = Answering(LARGE)
        async with connected(app, timeout=0.1) as (_, writer):
            writer.write(REQUEST)

            await app.ended.wait()

    asyncio.run(client())


def test_who_takes_an_answer_slowly_has_it_whole():
    async def client():
        app = Answering(LARGE)
        async with connected(app, timeout=5.0) as (reader, writer):
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
        config = Config(Answering(3), log_config=None, http="h11", ws="none")
        config.load()
        state = ServerState()
        connection = Connection(timeout=100, config=config, server_state=state, app_state={})
        connection.connection_made(transport)
        connection.pause_writing()
        for before in left[:-1]:
            connection._check_progress(before)
        connection.connection_lost(OSError("it was cut off"))
        return transport.aborted

    assert asyncio.run(waited()) == cut_off
