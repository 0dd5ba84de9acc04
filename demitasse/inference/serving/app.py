"""The server as an ASGI application: KServe's paths, and limits of requests.

Source: KServe, *Open Inference Protocol*, version 2, with extensions of Triton; ASGI 3.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from demitasse.core.log import get_logger
from demitasse.errors import DataError
from demitasse.inference.serving.batching import BusyError, Queue, RunError
from demitasse.inference.serving.codec import CodecError, Codecs, shared_codecs
from demitasse.inference.serving.gate import State
from demitasse.inference.serving.messages import (
    LENGTH_HEADER,
    InferResponse,
    Tensor,
    write_response,
    write_response_parts,
)
from demitasse.inference.serving.metrics import METRICS_TYPE, Metrics
from demitasse.inference.serving.page import drop_page
from demitasse.inference.serving.parsing import read_request
from demitasse.version import __version__

log = get_logger(__name__)

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SMALL = 1 << 14
"""Bytes of JSON up to which a body is parsed in the event loop, and others in a codec process."""

FEW = 1 << 10
"""Numbers up to which JSON is written in the event loop."""

PIECE = 1 << 18
"""Bytes of a response that are sent at once."""

MAX_SILENT = 30.0
"""Seconds without a sign of life from the event loop after which the server is not live."""

FAILED = "internal error; see the server's log"


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        max_bytes: Largest body of a request, in bytes.
        timeout: Seconds to receive a request, and again to respond.
        held: Largest total of all bodies and responses in memory, in bytes, beyond which requests
            are refused; 0 for eight times ``max_bytes``.
    """

    max_bytes: int = 1 << 25
    timeout: float = 60.0
    held: int = 0


@dataclass(frozen=True)
class Response:
    """A response of HTTP."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    binary: Sequence[memoryview] = ()
    """Further parts of the body."""

    def __len__(self) -> int:
        """Return the number of bytes of the body."""
        return len(self.body) + sum(part.nbytes for part in self.binary)


class HTTPError(Exception):
    """Ends a request with an error response."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers

    def response(self) -> Response:
        """Return the protocol's error response."""
        plain = _json(self.status, {"error": self.message})
        return Response(plain.status, plain.body, {**plain.headers, **self.headers})


class App:
    """The application.

    Args:
        queues: Queue of each model, by name.
        limits: Limits of requests.
        metrics: Counters; None for new ones.
        codecs: Processes for large messages; None for those that all applications share.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        codecs: Codecs | None = None,
    ) -> None:
        self._queues = queues
        self._limits = limits or Limits()
        self._metrics = metrics or Metrics()
        self._held = 0
        self._most_held = self._limits.held or 8 * self._limits.max_bytes
        self._codecs = codecs or shared_codecs()
        self._results: _Results | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Respond to a request, or to the server's start and shutdown."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                response = await self._respond(scope, receive)
            except HTTPError as error:
                response = error.response()
            self._held += len(response)
            try:
                await _send(response, send, head=scope["method"] == "HEAD")
            finally:
                self._held -= len(response)

    def probes(self, silent: float = 0.0) -> State:
        """Return the answers to probes, in any thread.

        Args:
            silent: Seconds since the event loop has last given a sign of life.
        """
        live, json_type = silent < MAX_SILENT, "application/json"
        ready = {name: live and queue.ready for name, queue in self._queues.items()}
        every = all(ready.values())
        waiting = {name: len(queue) for name, queue in self._queues.items()}
        answers = {
            "/v2/health/live": (200 if live else 503, json_type, json.dumps({"live": live})),
            "/v2/health/ready": (200 if every else 503, json_type, json.dumps({"ready": every})),
            "/metrics": (200, METRICS_TYPE, self._metrics.text(waiting)),
        }
        for name, one in ready.items():
            answer = 200 if one else 503, json_type, json.dumps({"name": name, "ready": one})
            answers[f"/v2/models/{name}/ready"] = answer
            answers[f"/v2/models/{name}/versions/1/ready"] = answer
        return answers

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Message, receive: Receive) -> Response:
        content: dict[str, object]
        match scope["path"].strip("/").split("/"):
            case [""]:
                _need_method(scope, "GET", "HEAD")
                return Response(200, *drop_page())
            case ["v2", "models", "stats"] if "stats" not in self._queues:
                content = {"model_stats": [self._metrics.statistics(one) for one in self._queues]}
            case ["v2", "models", name, "versions", "1", *rest] | ["v2", "models", name, *rest]:
                return await self._model_response(name, rest, scope, receive)
            case ["v2"]:
                content = {
                    "name": "demitasse",
                    "version": __version__,
                    "extensions": ["binary_tensor_data", "statistics", "model_configuration"],
                }
            case ["v2", "health", "live" | "ready"] | ["metrics"]:
                _need_method(scope, "GET", "HEAD")
                status, kind, text = self.probes()[f"/{scope['path'].strip('/')}"]
                return Response(status, text.encode(), {"Content-Type": kind})
            case ["v2", "models"]:
                content = {"models": list(self._queues)}
            case ["v2", "repository", "index"]:
                _need_method(scope, "POST")
                return _json(200, await self._index(receive))
            case _:
                raise HTTPError(404, "unknown path; the server's paths are / and begin with /v2")
        _need_method(scope, "GET", "HEAD")
        return _json(200, content)

    async def _model_response(
        self, name: str, rest: Sequence[str], scope: Message, receive: Receive
    ) -> Response:
        queue = self._queues.get(name)
        if queue is None:
            known = ", ".join(self._queues)
            raise HTTPError(404, f"unknown model {name[:100]!r} of version 1; models are {known}")
        match list(rest):
            case ["infer"]:
                _need_method(scope, "POST")
                return await self._measured(queue, scope, receive)
            case []:
                content: object = queue.model.metadata()
            case ["stats"]:
                content = {"model_stats": [self._metrics.statistics(name)]}
            case ["config"]:
                content = queue.config()
            case ["ready"]:
                _need_method(scope, "GET", "HEAD")
                status = 200 if queue.ready else 503
                return _json(status, {"name": name, "ready": queue.ready})
            case _:
                message = "a model has /infer, /ready, /config, /stats, /versions/1, nothing else"
                raise HTTPError(404, message)
        _need_method(scope, "GET", "HEAD")
        return _json(200, content)

    async def _index(self, receive: Receive) -> list[dict[str, str]]:
        """Return Triton's index of the models; the body may limit it to those that are ready."""
        body = bytearray()
        try:
            await self._receive(body, receive)
            if len(body) > SMALL:
                raise HTTPError(413, f"a request for the index has at most {SMALL} bytes")
            asked = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            asked = None
        finally:
            self._held -= len(body)
        if not isinstance(asked, dict) or not isinstance(asked.get("ready", False), bool):
            raise HTTPError(400, 'a request for the index is {}, or {"ready": true}')
        states = {name: queue.ready for name, queue in self._queues.items()}
        return [
            {"name": name, "version": "1", "state": "READY" if ready else "UNAVAILABLE",
             "reason": "" if ready else "the net fails on zeros"}
            for name, ready in states.items()
            if ready or not asked.get("ready")
        ]  # fmt: skip

    async def _measured(self, queue: Queue, scope: Message, receive: Receive) -> Response:
        start = time.perf_counter()
        status = 500
        try:
            response = await self._infer(queue, scope, receive)
            status = response.status
        except HTTPError as error:
            status = error.status
            raise
        except Exception:
            log.exception("A request failed")
            raise HTTPError(500, FAILED) from None
        else:
            return response
        finally:
            self._metrics.add_response(queue.model.name, status, time.perf_counter() - start)

    async def _infer(self, queue: Queue, scope: Message, receive: Receive) -> Response:
        headers = {key.lower(): value for key, value in scope["headers"]}
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise HTTPError(415, "bodies must not be compressed")
        length = _length(headers, LENGTH_HEADER)
        announced = _length(headers, "Content-Length") or 0
        self._need_room(announced, more=announced)
        body = bytearray()
        try:
            await self._receive(body, receive)
            async with asyncio.timeout(self._limits.timeout):
                is_image = bool(queue.model.reader.images) and _is_image(body, length, headers)
                return await self._run(queue, body, length, is_image=is_image)
        except TimeoutError:
            message = f"no result within {self._limits.timeout:g} seconds"
            raise HTTPError(504, message) from None
        except BusyError as busy:
            raise HTTPError(503, str(busy), **{"Retry-After": "1"}) from None
        except (RunError, CodecError):
            raise HTTPError(500, FAILED) from None
        except DataError as error:
            raise HTTPError(400, error.message) from None
        finally:
            self._held -= len(body)

    async def _receive(self, body: bytearray, receive: Receive) -> None:
        """Receive a body, and count its bytes as they arrive."""
        try:
            async with asyncio.timeout(self._limits.timeout):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPError(400, "the client disconnected")
                    part = message.get("body", b"")
                    self._need_room(len(body) + len(part), more=len(part))
                    body += part
                    self._held += len(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            message_ = f"no complete body within {self._limits.timeout:g} seconds"
            raise HTTPError(408, message_, Connection="close") from None

    def _need_room(self, size: int, *, more: int) -> None:
        """Refuse a body of ``size`` bytes, ``more`` of them not received yet, beyond the limits."""
        largest = self._limits.max_bytes
        if size > largest:
            raise HTTPError(413, f"a request has at most {largest} bytes", Connection="close")
        if self._held + more > self._most_held:
            message = f"requests with {self._held} bytes are in progress already"
            raise HTTPError(503, message, **{"Retry-After": "1", "Connection": "close"})

    async def _run(
        self, queue: Queue, body: bytearray, json_length: int | None, *, is_image: bool
    ) -> Response:
        model, images = queue.model, None
        if is_image:
            request, images = await self._codecs.call(model.reader.image, bytes(body))
        elif not _is_light(body, json_length):
            request, images = await self._codecs.call(model.reader, body, json_length)
        else:
            request = read_request(memoryview(body), json_length)
            if any(tensor.datatype == "BYTES" for tensor in request.inputs):
                request, images = await self._codecs.call(model.reader.decode, request)
        loop = asyncio.get_running_loop()
        if self._results is None or self._results.loop is not loop:
            self._results = _Results(loop)
        outputs = await self._results.wait(queue.put(model.prepare(request, images)))
        tensors = model.tensors(request, outputs)
        wanted = request.outputs or {one.name: request.binary for one in tensors}
        return await self._written(InferResponse(model.name, tensors, request.id), wanted)

    async def _written(self, response: InferResponse, binary: Mapping[str, bool]) -> Response:
        """Write a response: binary values without a copy, and many numbers in a codec process."""
        texts = [one for one in response.outputs if not binary[one.name]]
        if sum(_weight(one) for one in texts) > FEW:
            headers, content = await self._codecs.call(write_response, response, binary)
            return Response(200, content, headers)
        headers, content, parts = write_response_parts(response, binary)
        return Response(200, content, headers, parts)


class _Results:
    """Results of other threads, many of which wake an event loop once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._scheduled = False

    async def wait(self, source: Future[T]) -> T:
        """Return a result; if the caller is cancelled, cancel what has not begun."""
        target: asyncio.Future[T] = self.loop.create_future()
        source.add_done_callback(lambda done: self._put(done, target))
        try:
            return await target
        finally:
            source.cancel()

    def _put(self, source: Future[T], target: asyncio.Future[T]) -> None:
        self._done.append((source, target))
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False  # first: what is put from now on schedules again
        while self._done:
            source, target = self._done.popleft()
            if target.done() or source.cancelled():
                continue
            error = source.exception()
            if error is not None:
                target.set_exception(error)
            else:
                target.set_result(source.result())


def _is_light(body: bytearray, json_length: int | None) -> bool:
    """Return whether a body is parsed in no time: little JSON, and perhaps binary numbers."""
    if len(body) <= SMALL:
        return True
    if json_length is None or not 0 <= json_length <= SMALL:
        return False
    head = body[:json_length]
    return b"BYTES" not in head and b"\\" not in head  # texts are read one by one


def _is_image(body: bytearray, json_length: int | None, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body is an image file: the client says so, or it is no JSON object."""
    if json_length is not None:
        return json_length == 0  # Triton's "raw binary request"
    kind = headers.get(b"content-type", b"").lower()
    if kind.startswith(b"image/"):
        return True
    first = bytes(body[:64]).lstrip()[:1]
    return not kind.startswith(b"application/json") and first not in {b"{", b""}


def _weight(tensor: Tensor) -> int:
    """Return about how many numbers a tensor takes as long as in JSON."""
    if tensor.datatype == "BYTES":
        return sum(len(text) for text in tensor.values.ravel()) // 4
    return tensor.values.size


def _length(headers: Mapping[bytes, bytes], name: str) -> int | None:
    value = headers.get(name.lower().encode())
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise HTTPError(400, f"the header {name} must be a number of bytes")
    return int(value)


def _need_method(scope: Message, *methods: str) -> None:
    if scope["method"] not in methods:
        message = f"this path accepts {' and '.join(methods)}, not {scope['method'][:20]}"
        raise HTTPError(405, message, Allow=", ".join(methods))


def _json(status: int, content: object) -> Response:
    return Response(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


async def _send(response: Response, send: Send, *, head: bool) -> None:
    headers = {**response.headers, "Content-Length": str(len(response))}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    if head or len(response) <= PIECE:
        body = b"" if head else b"".join([response.body, *response.binary])
        await send({"type": "http.response.body", "body": body})
        return
    for part in (memoryview(response.body), *response.binary):
        for start in range(0, part.nbytes, PIECE):
            body = bytes(part[start : start + PIECE])
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)  # other connections come in between
    await send({"type": "http.response.body", "body": b""})
