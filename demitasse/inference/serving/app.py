"""The server's paths: KServe's protocol over HTTP, and limits of requests.

Source: KServe, *Open Inference Protocol*, version 2, with extensions of Triton.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from demitasse.errors import DataError
from demitasse.inference.serving.batching import BusyError, Queue, RunError
from demitasse.inference.serving.codec import CodecError, Codecs
from demitasse.inference.serving.framing import (
    FAILED,
    Head,
    HTTPError,
    Response,
    json_response,
    refuse,
)
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

SMALL = 1 << 14
"""Bytes of JSON up to which a body is parsed in the event loop, and others in a codec process."""

FEW = 1 << 10
"""Numbers up to which JSON is written in the event loop."""

MAX_SILENT = 30.0
"""Seconds without a sign of life from the event loop after which the server is not live."""


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


@dataclass(eq=False)
class Call:
    """A request with a body."""

    respond: Callable[[bytearray], Awaitable[Response]]  # given the whole body
    model: str = ""  # whose responses are counted; "" for none
    body: bytearray = field(default_factory=bytearray)  # received part
    start: float = field(default_factory=time.perf_counter)  # time of the request's head


class App:
    """The application.

    Args:
        queues: Queue of each model, by name.
        limits: Limits of requests.
        metrics: Counters.
        codecs: Processes for large messages.
    """

    def __init__(
        self, queues: Mapping[str, Queue], limits: Limits, metrics: Metrics, codecs: Codecs
    ) -> None:
        self._queues, self.limits, self._metrics, self._codecs = queues, limits, metrics, codecs
        self._held = 0
        self._calls = 0  # in progress
        self._most_held = self.limits.held or 8 * self.limits.max_bytes

    def accept(self, head: Head) -> Response | Call:
        """Return the response to a request, or what responds to it with its body.

        Raises:
            HTTPError: The request is refused before its body is received.
        """
        content: object
        match head.path.strip("/").split("/"):
            case ["v2", "models", "stats"] if "stats" not in self._queues:
                content = {"model_stats": [self._metrics.statistics(one) for one in self._queues]}
            case ["v2", "models", name, "versions", "1", *rest] | ["v2", "models", name, *rest]:
                return self._accept_for_model(name, rest, head)
            case [""]:
                _need_method(head, "GET", "HEAD")
                return drop_page()
            case ["v2"]:
                content = {
                    "name": "demitasse",
                    "version": __version__,
                    "extensions": ["binary_tensor_data", "statistics", "model_configuration"],
                }
            case ["v2", "health", "live" | "ready"] | ["metrics"]:
                return self._probe(head)
            case ["v2", "models"]:
                content = {"models": list(self._queues)}
            case ["v2", "repository", "index"]:
                _need_method(head, "POST")
                self._need_room(head.length or 0, more=head.length or 0)
                return self._begin(Call(self._index))
            case _:
                message = "unknown path; the server's paths are / and begin with /v2"
                raise HTTPError(message, HTTPStatus.NOT_FOUND)
        _need_method(head, "GET", "HEAD")
        return json_response(200, content)

    def add_to_body(self, call: Call, part: bytes) -> None:
        """Add a received part to the body of a call.

        Raises:
            HTTPError: The body, or all bodies and responses, are too large.
        """
        self._need_room(len(call.body) + len(part), more=len(part))
        call.body += part
        self._held += len(part)

    def _begin(self, call: Call) -> Call:
        self._calls += 1
        return call

    def hold(self, count: int) -> None:
        """Count bytes of a response in memory; a negative number of released bytes."""
        self._held += count

    def end(self, call: Call, status: int) -> None:
        """Count the response to a call, and release the body."""
        self._calls -= 1
        self._held -= len(call.body)
        call.body = bytearray()
        if call.model:
            self._metrics.add_response(call.model, status, time.perf_counter() - call.start)

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

    def _probe(self, head: Head) -> Response:
        _need_method(head, "GET", "HEAD")
        status, kind, text = self.probes()[f"/{head.path.strip('/')}"]
        return Response(status, {"Content-Type": kind}, [text.encode()])

    def _accept_for_model(self, name: str, rest: Sequence[str], head: Head) -> Response | Call:
        queue = self._queues.get(name)
        if queue is None:
            known = ", ".join(self._queues)
            message = f"unknown model {name[:100]!r} of version 1; models are {known}"
            raise HTTPError(message, HTTPStatus.NOT_FOUND)
        match rest:
            case ["infer"]:
                _need_method(head, "POST")
                return self._accept_inference(queue, head)
            case ["ready"]:
                return self._probe(head)
            case []:
                content: object = queue.model.metadata()
            case ["stats"]:
                content = {"model_stats": [self._metrics.statistics(name)]}
            case ["config"]:
                content = queue.config()
            case _:
                message = "a model has /infer, /ready, /config, /stats, /versions/1, nothing else"
                raise HTTPError(message, HTTPStatus.NOT_FOUND)
        _need_method(head, "GET", "HEAD")
        return json_response(200, content)

    async def _index(self, body: bytearray) -> Response:
        """Return Triton's index of the models; the body may limit it to those that are ready."""
        if len(body) > SMALL:
            message = f"a request for the index has at most {SMALL} bytes"
            raise HTTPError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            asked = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict) or not isinstance(asked.get("ready", False), bool):
            refuse('a request for the index is {}, or {"ready": true}')
        states = {name: queue.ready for name, queue in self._queues.items()}
        index = [
            {"name": name, "version": "1", "state": "READY" if ready else "UNAVAILABLE",
             "reason": "" if ready else "the net fails on zeros"}
            for name, ready in states.items()
            if ready or not asked.get("ready")
        ]  # fmt: skip
        return json_response(200, index)

    def _accept_inference(self, queue: Queue, head: Head) -> Call:
        async def respond(body: bytearray) -> Response:
            return await self._infer(queue, body, length, head.headers)

        call = self._begin(Call(respond, queue.model.name))
        try:
            if head.headers.get(b"content-encoding", b"identity").lower() != b"identity":
                refuse("bodies must not be compressed", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
            length = _json_length(head.headers)
            self._need_room(head.length or 0, more=head.length or 0)
        except HTTPError as error:
            self.end(call, error.status)
            raise
        return call

    def _need_room(self, size: int, *, more: int) -> None:
        """Refuse a body of ``size`` bytes, ``more`` of them not received yet, beyond the limits."""
        largest = self.limits.max_bytes
        if size > largest:
            message = f"a request has at most {largest} bytes"
            raise HTTPError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, Connection="close")
        if self._held + more > self._most_held:
            message = f"requests with {self._held} bytes are in progress already"
            raise _busy(message, Connection="close")

    async def _infer(
        self, queue: Queue, body: bytearray, json_length: int | None, headers: Mapping[bytes, bytes]
    ) -> Response:
        model = queue.model
        try:
            if _is_image(body, json_length, headers):
                if not model.reader.images:
                    refuse(f"model {model.name!r} has no card and takes no image files, only JSON")
                request, images = await self._codecs.call(model.reader.image, bytes(body))
            elif not _is_light(body, json_length):
                request, images = await self._codecs.call(model.reader.read, body, json_length)
            else:
                request = read_request(memoryview(body), json_length)
                if any(tensor.datatype == "BYTES" for tensor in request.inputs):
                    request, images = await self._codecs.call(model.reader.decode, request)
                else:
                    request, images = model.reader.decode(request)
            prepared = model.prepare(request, images)
            outputs = await queue.run(prepared, alone=self._calls == 1)
            tensors = model.tensors(request, outputs)
            wanted = request.outputs or {one.name: request.binary for one in tensors}
            return await self._written(InferResponse(model.name, tensors, request.id), wanted)
        except BusyError as busy:
            raise _busy(str(busy)) from None
        except (RunError, CodecError):
            raise HTTPError(FAILED, HTTPStatus.INTERNAL_SERVER_ERROR) from None
        except DataError as error:
            raise HTTPError(error.message) from None

    async def _written(self, response: InferResponse, binary: Mapping[str, bool]) -> Response:
        """Write a response: binary values without a copy, and many numbers in a codec process."""
        texts = [one for one in response.outputs if not binary[one.name]]
        if sum(_weight(one) for one in texts) > FEW:
            headers, content = await self._codecs.call(write_response, response, binary)
            return Response(200, headers, [content])
        headers, content, parts = write_response_parts(response, binary)
        return Response(200, headers, [content, *parts])


def _busy(message: str, **headers: str) -> HTTPError:
    return HTTPError(message, HTTPStatus.SERVICE_UNAVAILABLE, Retry_After="1", **headers)


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


def _json_length(headers: Mapping[bytes, bytes]) -> int | None:
    value = headers.get(LENGTH_HEADER.lower().encode())
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        refuse(f"the header {LENGTH_HEADER} must be a number of bytes")
    return int(value)


def _need_method(head: Head, *methods: str) -> None:
    if head.method not in methods:
        message = f"this path accepts {' and '.join(methods)}, not {head.method[:20]}"
        raise HTTPError(message, HTTPStatus.METHOD_NOT_ALLOWED, Allow=", ".join(methods))
