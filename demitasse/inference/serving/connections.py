"""Connections that clients may not keep without saying or taking anything.

uvicorn waits for ever for the headers of a request, and for a client to take its answer. As many
connections as it takes would so be held by one client, and nobody else be answered.
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
        patience: Seconds in which the headers of a request must have come, from the connection's
            beginning or their first byte; and in which a client must take some of its answer.
        given: What uvicorn gives its connections.
    """

    def __init__(self, *, patience: float, **given: Any) -> None:
        super().__init__(**given)
        self._patience = patience
        self._headers: asyncio.TimerHandle | None = None
        self._answer: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Take some of a request, whose headers may be whole now."""
        super().data_received(data)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        for timer in (self._headers, self._answer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not take its answer at once."""
        super().pause_writing()
        self._wait_for_taking(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Wait no more: the rest of the answer is in the system's hands."""
        if self._answer is not None:
            self._answer.cancel()
        super().resume_writing()

    def _wait_for_headers(self) -> None:
        """Have the connection closed, unless headers are whole or it is to be so already."""
        if self.conn.their_state is not h11.IDLE:
            if self._headers is not None:
                self._headers.cancel()
                self._headers = None
        elif self._headers is None:
            self._headers = self.loop.call_later(self._patience, self.transport.close)

    def _wait_for_taking(self, left: int) -> None:
        self._answer = self.loop.call_later(self._patience, self._look_at_taking, left)

    def _look_at_taking(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._wait_for_taking(left)
        else:
            self.transport.abort()  # closing would wait until all is taken
