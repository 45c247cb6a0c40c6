"""Run the web server and the reading of the source in one event loop, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import closing, suppress

import uvicorn

from outerloop.types import UserError
from outerloop.watch.connection import Connection
from outerloop.watch.feed import Feed, Source
from outerloop.watch.server import make_app

CLOSE_S = 1
"""Seconds to wait for open connections to close when the server stops."""


def serve(source: Source, *, host: str, port: int, names: Collection[str], show: Callable[[str], None]) -> None:
    """Serve the page of a source until the process is asked to stop.

    `names`: host names that are allowed in addition to localhost and IP addresses. `show`: called with the
    address of the page.

    Raises UserError if the port cannot be used.
    """
    with closing(source), closing(listening_socket(host, port)) as listener:
        bound = listener.getsockname()
        show(f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/")
        asyncio.run(run(source, listener, names))


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address. Raises UserError if the address is in use or does not exist."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}): pass another --port, or 0 for any free one"
        ) from error
    return listener


async def run(source: Source, listener: socket.socket, names: Collection[str]) -> None:
    """Run the server on a listening socket. Returns after SIGINT or SIGTERM.

    Raises an error with which reading the source failed, unless the page can report it (feed.py).
    """
    feed = Feed(source)
    config = uvicorn.Config(
        make_app(feed, names=names),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        http=Connection,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_S,
    )
    server = Server(config, feed)
    reading = asyncio.create_task(feed.run())
    reading.add_done_callback(lambda _: server.stop())
    await server.serve(sockets=[listener])
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading


class Server(uvicorn.Server):
    """A uvicorn server that ends the open streams first when it stops, so that it need not wait for them."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self.feed = feed

    def stop(self) -> None:
        """Ask the server to stop."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then shut down."""
        self.feed.close()
        await super().shutdown(sockets)
