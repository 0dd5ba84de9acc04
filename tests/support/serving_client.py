"""A client of a serving application without a network."""

import asyncio
import json
import re
from dataclasses import dataclass

from demitasse.inference.serving.app import App
from demitasse.inference.serving.connections import Connection


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


class Transport(asyncio.Transport):
    """Collects what a connection writes, until a response is whole or the connection ends."""

    def __init__(self):
        super().__init__()
        self.content, self.ended = b"", asyncio.Event()

    def write(self, data):
        self.content += data
        head, end, body = self.content.partition(b"\r\n\r\n")
        length = re.search(rb"\ncontent-length: (\d+)", head.lower())
        if end and len(body) >= int(length[1]):
            self.ended.set()

    def abort(self):
        self.ended.set()

    close = write_eof = abort

    def pause_reading(self):
        pass

    resume_reading = pause_reading

    def reply(self):
        head, _, body = self.content.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        return Reply(int(first.split()[1]), headers, body)


@dataclass
class Client:
    """Asks an application over a connection without a network."""

    app: App

    async def ask(self, method, path, body=b"", headers=None, *, pieces=None, end=True):
        """Return the reply; a body in pieces has chunks, and without an end is incomplete."""
        lines = [f"{method} {path} HTTP/1.1", "Host: a"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if pieces is not None:
            lines += ["Transfer-Encoding: chunked"]
        elif "Content-Length" not in (headers or {}):
            lines += [f"Content-Length: {len(body) if end else len(body) + 1}"]
        chunks = [b"%x\r\n%b\r\n" % (len(one), one) for one in pieces or ()]
        connection, transport = Connection(self.app), Transport()
        connection.connection_made(transport)
        connection.data_received("\r\n".join([*lines, "", ""]).encode())
        for one in chunks or [body]:
            connection.data_received(one)
        await transport.ended.wait()
        connection.connection_lost(None)
        return transport.reply()

    def get(self, path):
        return asyncio.run(self.ask("GET", path))

    def post(self, path, body=b"", headers=None, **how):
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        return asyncio.run(self.ask("POST", path, body, headers, **how))
