"""The server as an ASGI application: KServe's paths, limits of requests, and metrics.

Source: KServe, *Open Inference Protocol*, version 2; ASGI 3; Prometheus, *Text-based format*.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from demitasse.core.log import get_logger
from demitasse.errors import DataError
from demitasse.inference.serving.batching import BusyError, Queue, RunError
from demitasse.inference.serving.messages import (
    LENGTH_HEADER,
    InferRequest,
    InferResponse,
    write_response,
)
from demitasse.inference.serving.parsing import read_request
from demitasse.version import __version__

log = get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SMALL = 1 << 16
"""Bytes up to which a body is parsed in the event loop; larger bodies are parsed in a thread."""

FAILED = "internal error; see the server's log"

READERS = 4
"""Threads that parse large bodies and decode images."""


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of durations, in seconds."""


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Attributes:
        max_bytes: Largest body of a request, in bytes.
        timeout: Seconds to receive a request, and again to respond.
        held: Largest total of all bodies in memory, in bytes; 0 for eight times ``max_bytes``.
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
        # large bodies one at a time: parsing takes several times their size
        self._parsing = Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Respond to a request, or to the server's start and shutdown."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                response = await self._respond(scope, receive)
            except HTTPError as error:
                response = error.response()
            await _send(response, send, head=scope["method"] == "HEAD")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._readers.shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Message, receive: Receive) -> Response:
        match scope["path"].strip("/").split("/"):
            case ["v2", "models", name, "versions", "1", *rest] | ["v2", "models", name, *rest]:
                return await self._model_response(name, rest, scope, receive)
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
                return Response(200, text, {"Content-Type": METRICS_TYPE})
            case _:
                raise HTTPError(404, "unknown path; the server's paths begin with /v2")
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
            case ["ready"]:
                content = {"name": name, "ready": True}
            case _:
                raise HTTPError(404, "a model has /infer, /ready, /versions/1 and nothing else")
        _need_method(scope, "GET", "HEAD")
        return _json(200, content)

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
                return await self._run(queue, body, length)
        except TimeoutError:
            message = f"no result within {self._limits.timeout:g} seconds"
            raise HTTPError(504, message) from None
        except BusyError as busy:
            raise HTTPError(503, str(busy), **{"Retry-After": "1"}) from None
        except RunError:
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
            raise HTTPError(408, message_) from None

    def _need_room(self, size: int, *, more: int) -> None:
        """Refuse a body of ``size`` bytes, ``more`` of them not received yet, beyond the limits."""
        largest = self._limits.max_bytes
        if size > largest:
            raise HTTPError(413, f"a request has at most {largest} bytes", Connection="close")
        if self._held + more > self._most_held:
            message = f"requests with {self._held} bytes are in progress already"
            raise HTTPError(503, message, **{"Retry-After": "1", "Connection": "close"})

    async def _run(self, queue: Queue, body: bytearray, json_length: int | None) -> Response:
        model, loop = queue.model, asyncio.get_running_loop()
        if len(body) <= SMALL:
            request = read_request(bytes(body), json_length)
        else:
            request = await loop.run_in_executor(self._readers, self._read, body, json_length)
        if any(tensor.datatype == "BYTES" for tensor in request.inputs):
            prepared = await loop.run_in_executor(self._readers, model.prepare, request)
        else:
            prepared = model.prepare(request)
        outputs = await asyncio.wrap_future(queue.put(prepared))
        tensors = model.tensors(request, outputs)
        wanted = request.outputs or {one.name: request.binary for one in tensors}
        headers, content = write_response(InferResponse(model.name, tensors, request.id), wanted)
        return Response(200, content, headers)

    def _read(self, body: bytearray, json_length: int | None) -> InferRequest:
        with self._parsing:
            return read_request(bytes(body), json_length)


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
    headers = {**response.headers, "Content-Length": str(len(response.body))}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    await send({"type": "http.response.body", "body": b"" if head else response.body})


@dataclass
class _Counters:
    """Counters of one model."""

    responses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0
    batches: int = 0
    requests: int = 0
    items: int = 0
    run_seconds: float = 0.0


class Metrics:
    """Counters of the server; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, _Counters] = defaultdict(_Counters)

    def add_response(self, model: str, status: int, seconds: float) -> None:
        """Count a response to an inference request, and its duration."""
        with self._lock:
            counts = self._models[model]
            counts.responses[status] += 1
            counts.buckets[bisect_left(BUCKETS, seconds)] += 1
            counts.seconds += seconds

    def add_batch(self, model: str, requests: int, items: int, seconds: float) -> None:
        """Count a batch that a net ran."""
        with self._lock:
            counts = self._models[model]
            counts.batches += 1
            counts.requests += requests
            counts.items += items
            counts.run_seconds += seconds

    def text(self, waiting: Mapping[str, int]) -> str:
        """Return all counters in Prometheus' text format.

        Args:
            waiting: Number of queued requests by model.
        """
        with self._lock:
            lines = [line for family in self._families(waiting) for line in family]
        return "\n".join(lines) + "\n"

    def _families(self, waiting: Mapping[str, int]) -> Iterator[list[str]]:
        models = sorted(self._models.items())
        responses = {
            f'model="{name}",status="{status}"': count
            for name, one in models
            for status, count in sorted(one.responses.items())
        }
        yield _family("requests_total", "counter", "Answers to requests for inference.", responses)
        yield _durations(models)
        for name, text, values in (
            ("batches_total", "Batches that nets have run.", [one.batches for _, one in models]),
            ("batched_requests_total", "Requests in these.", [one.requests for _, one in models]),
            ("batched_items_total", "Items in these.", [one.items for _, one in models]),
            (
                "batch_seconds_total",
                "Time in which nets ran.",
                [one.run_seconds for _, one in models],
            ),
        ):
            pairs = zip(models, values, strict=True)
            samples = {f'model="{model}"': value for (model, _), value in pairs}
            yield _family(name, "counter", text, samples)
        lengths = {f'model="{model}"': count for model, count in waiting.items()}
        yield _family("queue_length", "gauge", "Requests that wait.", lengths)


def _family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> list[str]:
    name = f"demitasse_{name}"
    values = [f"{name}{{{labels}}} {value}" for labels, value in samples.items()]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *values]


def _durations(models: list[tuple[str, _Counters]]) -> list[str]:
    name = "request_duration_seconds"
    lines = _family(name, "histogram", "From a request to its answer.", {})
    name = f"demitasse_{name}"
    for model, one in models:
        count = 0
        for bound, more in zip((*BUCKETS, "+Inf"), one.buckets, strict=True):
            count += more
            lines.append(f'{name}_bucket{{model="{model}",le="{bound}"}} {count}')
        lines += [f'{name}_sum{{model="{model}"}} {one.seconds}']
        lines += [f'{name}_count{{model="{model}"}} {count}']
    return lines
