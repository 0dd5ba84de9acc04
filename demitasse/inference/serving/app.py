"""The server as an ASGI application: KServe's paths, and limits to what a client may ask for.

Source: KServe, *Open Inference Protocol*, version 2; ASGI 3.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from demitasse.core.log import get_logger
from demitasse.errors import DataError
from demitasse.inference.serving.batching import BusyError, FailedError, Queue
from demitasse.inference.serving.messages import LENGTH_HEADER, InferRequest, InferResponse
from demitasse.inference.serving.metrics import CONTENT_TYPE, Metrics
from demitasse.inference.serving.reading import read_request
from demitasse.inference.serving.writing import write_response
from demitasse.version import __version__

__all__ = ["App", "Limits"]

log = get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SMALL = 1 << 16
"""Bytes of a body that is read at once; larger ones are read beside the answering of others."""

FAILED = "the server failed; its log says why"

READERS = 4
"""Threads that read large bodies and decode images."""


@dataclass(frozen=True)
class Limits:
    """What a client may ask for.

    Attributes:
        max_bytes: The most bytes of a request's body.
        timeout: Seconds in which a request must have come, and in which it must be answered then.
        held: The most bytes of all bodies together that are held at once; 0 for eight times
            ``max_bytes``.
    """

    max_bytes: int = 1 << 25
    timeout: float = 60.0
    held: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Refused(Exception):  # noqa: N818 - it is an answer as well
    """Ends a request with an answer that says why."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers

    def answer(self) -> Answer:
        """Return it as the protocol has it."""
        found = _json(self.status, {"error": self.message})
        return Answer(found.status, found.body, {**found.headers, **self.headers})


class App:
    """The application.

    Args:
        queues: The models, by their names, each with what runs it.
        limits: What a client may ask for.
        metrics: What counts; None makes one.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        limits: Limits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._queues = queues
        self._limits = limits or Limits()
        self._metrics = metrics or Metrics()
        self._held = 0
        self._most_held = self._limits.held or 8 * self._limits.max_bytes
        self._readers = ThreadPoolExecutor(READERS, "reader")
        # large bodies one at a time: what is read takes several times their size
        self._parsing = Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or take note of the server's beginning and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                answer = await self._answer(scope, receive)
            except Refused as refused:
                answer = refused.answer()
            await _send(answer, send, head=scope["method"] == "HEAD")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._readers.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        match scope["path"].strip("/").split("/"):
            case ["v2", "models", name, "versions", "1", *rest] | ["v2", "models", name, *rest]:
                return await self._of_model(name, rest, scope, receive)
            case ["v2"]:
                content: object = {
                    "name": "demitasse",
                    "version": __version__,
                    "extensions": ["binary_tensor_data"],
                }
            case ["v2", "health", "live"]:
                content = {"live": True}
            case ["v2", "health", "ready"]:
                content = {"ready": True}
            case ["v2", "models"]:
                content = {"models": list(self._queues)}
            case ["metrics"]:
                _need_method(scope, "GET", "HEAD")
                waiting = {name: len(queue) for name, queue in self._queues.items()}
                text = self._metrics.text(waiting).encode()
                return Answer(200, text, {"Content-Type": CONTENT_TYPE})
            case _:
                raise Refused(404, "there is nothing of this name; the server's paths begin at /v2")
        _need_method(scope, "GET", "HEAD")
        return _json(200, content)

    async def _of_model(
        self, name: str, rest: Sequence[str], scope: Message, receive: Receive
    ) -> Answer:
        queue = self._queues.get(name)
        if queue is None:
            known = ", ".join(self._queues)
            raise Refused(404, f"there is no model {name[:100]!r} of version 1; models are {known}")
        match list(rest):
            case ["infer"]:
                _need_method(scope, "POST")
                return await self._counted(queue, scope, receive)
            case []:
                content: object = queue.model.metadata()
            case ["ready"]:
                content = {"name": name, "ready": True}
            case _:
                raise Refused(404, "a model has /infer, /ready, /versions/1 and nothing else")
        _need_method(scope, "GET", "HEAD")
        return _json(200, content)

    async def _counted(self, queue: Queue, scope: Message, receive: Receive) -> Answer:
        begun = time.perf_counter()
        status = 500
        try:
            answer = await self._infer(queue, scope, receive)
            status = answer.status
        except Refused as refused:
            status = refused.status
            raise
        except Exception:
            log.exception("A request failed")
            raise Refused(500, FAILED) from None
        else:
            return answer
        finally:
            self._metrics.answered(queue.model.name, status, time.perf_counter() - begun)

    async def _infer(self, queue: Queue, scope: Message, receive: Receive) -> Answer:
        headers = {key.lower(): value for key, value in scope["headers"]}
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refused(415, "bodies must not be compressed")
        length = _length(headers, LENGTH_HEADER)
        announced = _length(headers, "Content-Length") or 0
        self._need_room(announced, more=announced)
        body = bytearray()
        try:
            await self._receive(body, receive)
            async with asyncio.timeout(self._limits.timeout):
                return await self._run(queue, body, length)
        except TimeoutError:
            message = f"there was no answer within {self._limits.timeout:g} seconds"
            raise Refused(504, message) from None
        except BusyError as busy:
            raise Refused(503, str(busy), **{"Retry-After": "1"}) from None
        except FailedError:
            raise Refused(500, FAILED) from None
        except DataError as error:
            raise Refused(400, error.message) from None
        finally:
            self._held -= len(body)

    async def _receive(self, body: bytearray, receive: Receive) -> None:
        """Receive a body, which counts as held as it grows."""
        try:
            async with asyncio.timeout(self._limits.timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client has left")
                    part = message.get("body", b"")
                    self._need_room(len(body) + len(part), more=len(part))
                    body += part
                    self._held += len(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            message_ = f"the body did not come within {self._limits.timeout:g} seconds"
            raise Refused(408, message_) from None

    def _need_room(self, size: int, *, more: int) -> None:
        """Refuse a body of so many bytes, of which some are not held yet."""
        most = self._limits.max_bytes
        if size > most:
            raise Refused(413, f"a request has at most {most} bytes", Connection="close")
        if self._held + more > self._most_held:
            message = f"requests with {self._held} bytes are under way already"
            raise Refused(503, message, **{"Retry-After": "1", "Connection": "close"})

    async def _run(self, queue: Queue, body: bytearray, json_length: int | None) -> Answer:
        model, loop = queue.model, asyncio.get_running_loop()
        if len(body) <= SMALL:
            request = read_request(bytes(body), json_length)
        else:
            request = await loop.run_in_executor(self._readers, self._read, body, json_length)
        if any(tensor.datatype == "BYTES" for tensor in request.inputs):
            work = await loop.run_in_executor(self._readers, model.work, request)
        else:
            work = model.work(request)
        outputs = await asyncio.wrap_future(queue.put(work))
        tensors = model.tensors(request, outputs)
        wanted = request.outputs or {one.name: request.binary for one in tensors}
        headers, content = write_response(InferResponse(model.name, tensors, request.id), wanted)
        return Answer(200, content, headers)

    def _read(self, body: bytearray, json_length: int | None) -> InferRequest:
        with self._parsing:
            return read_request(bytes(body), json_length)


def _length(headers: Mapping[bytes, bytes], name: str) -> int | None:
    value = headers.get(name.lower().encode())
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise Refused(400, f"the header {name} must be a number of bytes")
    return int(value)


def _need_method(scope: Message, *methods: str) -> None:
    if scope["method"] not in methods:
        message = f"this path takes {' and '.join(methods)}, not {scope['method'][:20]}"
        raise Refused(405, message, Allow=", ".join(methods))


def _json(status: int, content: object) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


async def _send(answer: Answer, send: Send, *, head: bool) -> None:
    headers = {**answer.headers, "Content-Length": str(len(answer.body))}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
