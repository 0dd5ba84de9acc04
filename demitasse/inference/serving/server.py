"""Run the application on a port until a signal stops it."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from demitasse.core.config import settings
from demitasse.core.host import cores
from demitasse.errors import ConfigError, ErrorCode
from demitasse.inference.cards.model_files import ModelFiles
from demitasse.inference.serving.app import App, Limits
from demitasse.inference.serving.batching import Queue
from demitasse.inference.serving.codec import Codecs
from demitasse.inference.serving.connections import Connection, Scheduler
from demitasse.inference.serving.gate import Gate
from demitasse.inference.serving.metrics import Metrics
from demitasse.inference.serving.model import Model

MAX_CONNECTIONS = 1000
"""Number of connections from which on a new one closes the one that is idle for longest."""

SPARE_FILES = 100
"""File descriptors for other things than connections."""

BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""

ALONE = 0.0005
"""Seconds of a pass, in all cores together, up to which one thread runs it. Others would have to
wake up for each pass, or take a core from the server and its clients while they wait."""

SWITCH_INTERVAL = 0.001
"""Seconds after which a thread gives the interpreter's lock to the event loop."""


GRACE = 0.25
"""Seconds in which a server that ends takes requests that were sent before the signal."""


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of the server, as the flags of ``demitasse serve`` have it.

    Attributes:
        port: Port; 0 for any free port.
        max_delay: Seconds that a request waits for others to fill the batch.
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
        ConfigError: The address is not available.
    """
    metrics, codecs = Metrics(), Codecs()
    queues: dict[str, Queue] = {}
    interval = sys.getswitchinterval()
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
        served = [queue.model for queue in queues.values()]
        threads = thread_setting(queues.values())
        with settings.override(**threads):
            for queue in queues.values() if threads else ():
                queue.reset_plans()
            asyncio.run(_serve(app, config, lambda address: started(address, served)))
    finally:
        for queue in queues.values():
            queue.close()
        codecs.close()
        sys.setswitchinterval(interval)


def thread_setting(queues: Iterable[Queue]) -> dict[str, int]:
    """Return the setting ``threads`` of short passes; nothing where threads pay, or are set."""
    given = settings.get("threads") or "OMP_NUM_THREADS" in os.environ
    seconds = max(queue.seconds for queue in queues) * cores()
    return {} if given or seconds > ALONE else {"threads": 1}


async def _serve(app: App, config: ServerConfig, started: Callable[[str], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    timeout, scheduler = config.limits.timeout, Scheduler(_max_connections())
    protocol = partial(Connection, app, scheduler)
    with (
        listening(config.host, config.port) as listener,
        _calling_on_signals(partial(loop.call_soon_threadsafe, stop.set)),
    ):
        accepting: Gate | asyncio.Server
        if hasattr(socket, "send_fds"):
            accepting = gate = Gate(listener, app.probes, timeout=timeout, most=scheduler.most)
            gate.start()
            gate.open(protocol)
        else:  # Windows
            accepting = await loop.create_server(protocol, sock=listener, backlog=BACKLOG)
        try:
            host, port = listener.getsockname()[:2]
            started(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await stop.wait()
            scheduler.ending = True
            await asyncio.sleep(GRACE)  # the requests on the way come in
        finally:
            accepting.close()
            listener.close()
        for connection in list(scheduler.connections):
            connection.shutdown()
        end = loop.time() + 2 * timeout + 5
        while scheduler.connections and loop.time() < end:
            await asyncio.sleep(0.02)


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


@contextmanager
def _calling_on_signals(function: Callable[[], object]) -> Iterator[None]:
    """Call a function on SIGTERM and Ctrl-C, which then have no other effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *signal: function())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
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
