"""The application on a port, by uvicorn, until the process is asked to end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Protocol, cast

from demitasse.errors import ConfigError
from demitasse.inference.cards.opening import Found
from demitasse.inference.serving.app import App, Limits
from demitasse.inference.serving.batching import Queue
from demitasse.inference.serving.metrics import Metrics
from demitasse.inference.serving.model import Model

__all__ = ["Serving", "listening", "serve"]

MOST_CONNECTIONS = 1000


@dataclass(frozen=True)
class Serving:
    """How models are served.

    Attributes:
        host: The address that is listened at.
        port: The port; 0 for any that is free.
        workers: Threads of each model, each with a net of its own.
        max_batch: The most items of a run.
        max_delay: Seconds that a request waits for others to join it.
        max_queue: Requests that may wait for a model.
        device: Where nets run; None asks the configuration.
        limits: What a client may ask for.
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
    models: Mapping[str, Found], how: Serving, started: Callable[[str, Sequence[Model]], None]
) -> None:
    """Serve models until SIGTERM or Ctrl-C; what is under way then is finished.

    Args:
        models: Their files, by the names that clients call them.
        how: How they are served.
        started: Told the address and the models when the server answers.

    Raises:
        ConfigError: uvicorn is not installed, or the address is not to be had.
    """
    try:
        import uvicorn
    except ImportError:
        message = "a server needs uvicorn; run: pip install 'demitasse[serve]'"
        raise ConfigError(message) from None
    from demitasse.inference.serving.connections import Connection

    metrics = Metrics()
    queues: dict[str, Queue] = {}
    try:
        for name, found in models.items():
            model = Model(name, found, how.device, how.max_batch)
            queues[name] = Queue(
                model,
                workers=how.workers,
                max_delay=how.max_delay,
                max_queue=how.max_queue,
                ran=partial(metrics.ran, name),
            )
        config = uvicorn.Config(
            App(queues, how.limits, metrics),
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(2 * how.limits.timeout) + 5,
            http=cast("Any", partial(Connection, patience=how.limits.timeout)),  # makes one as well
            ws="none",
        )
        server = uvicorn.Server(config)
        with listening(how.host, how.port) as listener, _stopped_by_signals(server):
            host, port = listener.getsockname()[:2]
            where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            started(where, [queue.model for queue in queues.values()])
            server.run(sockets=[listener])
    finally:
        for queue in queues.values():
            queue.close()


class _Server(Protocol):
    """What is asked to end."""

    should_exit: bool


@contextmanager
def _stopped_by_signals(server: _Server) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the server.

    It takes them over while it runs, and repeats them for whoever had them before: here nobody
    minds, so that the process ends well.
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
    """Return a socket that listens; it is there before nets answer, so that none else takes it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        message = f"nothing can be served at {host}, port {port}: {error}"
        raise ConfigError(message) from None
    # Connections have it from here: the end of an answer does not wait until its beginning is
    # acknowledged, which clients put off for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
