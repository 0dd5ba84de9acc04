"""Run the application on a port with uvicorn, until a signal stops it."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Protocol, cast

from demitasse.core.extras import missing_extra
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.model_files import ModelFiles
from demitasse.inference.serving.app import App, Limits
from demitasse.inference.serving.batching import Queue
from demitasse.inference.serving.codec import Codecs
from demitasse.inference.serving.gate import Gate
from demitasse.inference.serving.metrics import Metrics
from demitasse.inference.serving.model import Model

MAX_CONNECTIONS = 1000
"""Number of connections from which on a new one closes the one that is idle for longest."""

SPARE_FILES = 100
"""File descriptors for other things than connections."""

BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""

SWITCH_INTERVAL = 0.001
"""Seconds after which a thread gives the interpreter's lock to the event loop."""


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of the server.

    Attributes:
        host: Address to listen on.
        port: Port; 0 for any free port.
        workers: Threads of each model, each with its own net.
        max_batch: Largest number of items in a batch.
        max_delay: Seconds that a request waits for others to fill the batch.
        max_queue: Largest number of queued requests of a model.
        device: Device of the nets; defaults to the configuration's.
        limits: Limits of requests.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_batch: int = 16
    max_delay: float = 0.0
    max_queue: int = 128
    device: str | None = None
    limits: Limits = field(default_factory=Limits)


def serve(
    models: Mapping[str, ModelFiles],
    config: ServerConfig,
    started: Callable[[str, Sequence[Model]], None],
) -> None:
    """Serve models until SIGTERM or Ctrl-C, then finish the requests in progress.

    Args:
        models: Files of each model, by its name for clients.
        config: Configuration of the server.
        started: Called with the address and the models when the server listens.

    Raises:
        ConfigError: uvicorn is not installed, or the address is not available.
    """
    try:
        import uvicorn
    except ImportError:
        raise missing_extra(ConfigError, "a server", "uvicorn", "serve") from None
    from demitasse.inference.serving.connections import Connection, Turns

    metrics, codecs = Metrics(), Codecs()
    queues: dict[str, Queue] = {}
    most, interval = _max_connections(), sys.getswitchinterval()
    turns = Turns(most)
    try:
        sys.setswitchinterval(SWITCH_INTERVAL)
        codecs.start()
        for name, files in models.items():
            model = Model(name, files, config.device, config.max_batch)
            queues[name] = Queue(
                model,
                workers=config.workers,
                max_delay=config.max_delay,
                max_queue=config.max_queue,
                on_batch=partial(metrics.add_batch, name),
            )
        app = App(queues, config.limits, metrics, codecs)
        options = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(2 * config.limits.timeout) + 5,
            http=cast("Any", partial(Connection, timeout=config.limits.timeout, turns=turns)),
            ws="none",
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # no line for each bad request

        class Server(uvicorn.Server):
            """A server of the connections that a gate hands over; without a gate, of all."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                if gate is None:
                    await super().startup(sockets)
                    return
                await self.lifespan.startup()
                self.servers = []
                made: Any = options.http_protocol_class
                state, server_state = self.lifespan.state, self.server_state
                gate.open(partial(made, config=options, server_state=server_state, app_state=state))
                self.started = True

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                if gate is not None:
                    gate.close()
                await super().shutdown(sockets)

        server = Server(options)
        with (
            listening(config.host, config.port) as listener,
            _stopped_by_signals(server),
            ExitStack() as closing,
        ):
            gate: Gate | None = None
            if hasattr(socket, "send_fds"):  # not on Windows
                gate = Gate(listener, app.probes, timeout=config.limits.timeout, most=most)
                closing.callback(gate.close)
                gate.start()
            host, port = listener.getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            started(address, [queue.model for queue in queues.values()])
            server.run(sockets=[listener])
    finally:
        for queue in queues.values():
            queue.close()
        codecs.close()
        sys.setswitchinterval(interval)


def _max_connections() -> int:
    """Return how many connections may be open, after asking the system for enough files."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(MAX_CONNECTIONS, soft - SPARE_FILES))


class _Server(Protocol):
    """The part of ``uvicorn.Server`` that stops it."""

    should_exit: bool


@contextmanager
def _stopped_by_signals(server: _Server) -> Iterator[None]:
    """Stop the server on SIGTERM and Ctrl-C.

    uvicorn raises the signals again after it has stopped; these handlers ignore them, so that the
    process exits normally.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        server.should_exit = True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket, created before the nets are ready to reserve the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # create_server leaves its socket open on some names
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        message = f"cannot listen on {host}, port {port}: {error}"
        raise ConfigError(message, code=ErrorCode.UNAVAILABLE, host=host, port=port) from None
    # Connections inherit this option. Without it the end of a response waits for the client's
    # delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
