"""HTTP connections that do not let a client keep the server's connections without sending a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
"""Maximum number of open connections; any further one is closed at once."""
REQUEST_S = 10.0
"""Seconds that a connection may stay open without a response in progress."""


class Connection(H11Protocol):
    """One connection of a client. uvicorn limits the time between two requests, but not that until the first one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or close it if MAX_CONNECTIONS are open."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self.wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self.stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle received bytes, and stop the timer if a request has begun."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_waiting()

    def on_response_complete(self) -> None:
        """Start the timer again, then handle a request that was received meanwhile."""
        self.wait_for_request()
        super().on_response_complete()

    def wait_for_request(self) -> None:
        """Close the connection in REQUEST_S seconds unless a request arrives before."""
        self.stop_waiting()
        self.deadline = self.loop.call_later(REQUEST_S, self.timeout_keep_alive_handler)

    def stop_waiting(self) -> None:
        """Stop the timer."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
