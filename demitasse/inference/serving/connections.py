"""Connections with timeouts for idle and slow clients.

uvicorn waits without limit for the headers of a request, and for a client to receive its response.
One client could therefore occupy all connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]


class Connection(H11Protocol):
    """A client's connection.

    Args:
        timeout: Seconds to receive the headers of a request, from the connection's start or their
            first byte; and to receive some of the response.
        options: Arguments of uvicorn's connections.
    """

    def __init__(self, *, timeout: float, **options: Any) -> None:
        super().__init__(**options)
        self._timeout = timeout
        self._headers: asyncio.TimerHandle | None = None
        self._response: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        """Start the timeout for a request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; stop the timeout once its headers are complete."""
        super().data_received(data)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        for timer in (self._headers, self._response):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that receives slowly."""
        super().pause_writing()
        self._watch_progress(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop the timeout: the system has buffered the rest of the response."""
        if self._response is not None:
            self._response.cancel()
        super().resume_writing()

    def _wait_for_headers(self) -> None:
        """Start the timeout for headers, or stop it once they are complete."""
        if self.conn.their_state is not h11.IDLE:
            if self._headers is not None:
                self._headers.cancel()
                self._headers = None
        elif self._headers is None:
            self._headers = self.loop.call_later(self._timeout, self.transport.close)

    def _watch_progress(self, left: int) -> None:
        self._response = self.loop.call_later(self._timeout, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_progress(left)
        else:
            self.transport.abort()  # closing would wait for the client
