"""Serve the page over HTTP: read-only, for browsers, programs, Prometheus and curl.

    /  /static/...  the page        /events  its changes, as server-sent events
    /status.json  /status.schema.json        /metrics  for Prometheus

The headers of every answer make browsers refuse scripts, styles and connections of any other origin. A request is
refused if its Host header is a name that is not allowed. Otherwise, a web page of another server could let its own host
name resolve to this machine (DNS rebinding), and read the answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outerloop.watch.feed import Feed, compact
from outerloop.watch.model.schema import json_schema
from outerloop.watch.prometheus import Counters, metrics_text
from outerloop.watch.text import page_text

STATIC = Path(__file__).parent / "static"
MAX_STREAMS = 100
"""Maximum number of pages that are open in browsers. Each of them keeps one connection open."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
"""Headers of every answer."""
GZIP_LEVEL = 6
"""Level of compression, the default of zlib. Level 1 would send 11 % more bytes for the page of 500 peers."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Guard:
    """Middleware that refuses Host headers and methods that are not allowed, and adds HEADERS to every answer.

    Args:
        app: the application.
        names: host names that are allowed in addition to localhost and every IP address.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app, self.names = app, {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self.refusal(scope)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not allowed, or None if it is allowed."""
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET is allowed: this server changes nothing\n", 405, {"Allow": "GET, HEAD"})
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or not is_allowed(hosts[0], self.names):
            return PlainTextResponse(
                "this host name is not allowed: use an IP address or localhost, or start outerloop watch with"
                " --allow-name NAME\n",
                421,
            )
        return None


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header names this server: an IP address, which DNS cannot redirect, or one of `names`."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name.lower() in names
    return True


class Pages:
    """The answers of the server, all of which come from one feed."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.streams, self.counters = feed, 0, Counters()

    async def index(self, request: Request) -> Response:
        """Return the page, or plain text for curl and for `Accept: text/plain`."""
        if wants_text(request):
            return PlainTextResponse(page_text(self.feed.page, self.feed.problem))
        return FileResponse(STATIC / "index.html")

    async def events(self, request: Request) -> Response:
        """Return the stream of changes."""
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse(f"{MAX_STREAMS} pages are open already: close one\n", 503)
        return StreamingResponse(self.counted(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def counted(self) -> AsyncIterator[str]:
        """Yield the events of one stream, and count the stream in `streams` while it is open."""
        self.streams += 1
        try:
            async for event in self.feed.stream():
                yield event
        finally:
            self.streams -= 1

    async def status(self, request: Request) -> Response:
        """Return the state of the page (docs/reference/watch.md)."""
        if self.feed.page is None:
            return PlainTextResponse("nothing has been read yet: ask again in a few seconds\n", 503)
        return Response(self.feed.page_json(), media_type="application/json")

    async def schema(self, request: Request) -> Response:
        """Return the JSON schema of /status.json."""
        return Response(compact(json_schema()), media_type="application/schema+json")

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus. `outerloop_watch_up` is 0 while the source cannot be read."""
        text = metrics_text(self.feed.page, is_up=not self.feed.problem, counters=self.counters)
        return Response(text, media_type=PROMETHEUS)


def wants_text(request: Request) -> bool:
    """Return whether plain text is asked for, rather than HTML."""
    accept = request.headers.get("accept", "")
    is_curl = request.headers.get("user-agent", "").startswith("curl/")
    return "text/html" not in accept and ("text/plain" in accept or is_curl)


def make_app(feed: Feed, *, names: Collection[str] = ()) -> ASGIApp:
    """Return the application. `names`: host names that are allowed in addition to localhost and IP addresses."""
    pages = Pages(feed)
    routes = [
        Route("/", pages.index),
        Route("/events", pages.events),
        Route("/status.json", pages.status),
        Route("/status.schema.json", pages.schema),
        Route("/metrics", pages.metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    compressed = GZipMiddleware(Starlette(routes=routes), compresslevel=GZIP_LEVEL, exclude_content_types=())
    return Guard(compressed, names)
