"""The HTTP answers: headers, Host check, no outside address, hostile names, formats."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import zlib
from typing import cast

import jsonschema
import pytest
import uvicorn
from starlette.requests import Request
from starlette.testclient import TestClient

from outerloop.types import UserError
from outerloop.watch import connection, server
from outerloop.watch.feed import Feed, compact
from outerloop.watch.serve import Server, listening_socket, run
from outerloop.watch.server import HEADERS, STATIC, make_app
from tests.support.watch_rows import HOSTILE, page_of, run_rows

ASSETS = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
ANSWERS = ["/", "/status.json", "/status.schema.json", "/metrics", *(f"/static/{name}" for name in ASSETS)]
ALLOWED_URLS = {"https://github.com/leeoniya/uPlot"}
"""Addresses in the assets: the name of the plotting library in its own licence comment. The browser opens none."""


class Still:
    """A source that always has the same page."""

    every_s = 0.05

    def __init__(self, page=None):
        self.page = page or page_of(run_rows(3))

    def read(self):
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    def close(self):
        pass


def feed_of(page) -> Feed:
    feed = Feed(Still(page))
    feed.publish(*feed.read()[:2])
    return feed


def client(page=None, *, names=(), host="127.0.0.1:8080") -> TestClient:
    page = page or page_of(run_rows(3))
    return TestClient(make_app(feed_of(page), names=names), base_url=f"http://{host}", headers={"accept": "text/html"})


@pytest.mark.parametrize("path", [*ANSWERS, "/nothing", "/static/../server.py"])
def test_every_answer_has_the_headers(path):
    answer = client().get(path)
    assert answer.status_code == (404 if path not in ANSWERS else 200)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "server" not in answer.headers and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/status.json", "/static/app.js", "/static/uplot/uPlot.iife.min.js"])
def test_answers_are_compressed_for_those_that_can_read_it(path):
    plain = client().get(path, headers={"accept-encoding": "identity"})
    packed = client().get(path, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content and int(packed.headers["content-length"]) < len(plain.content) / 1.5


def test_the_policy_allows_scripts_and_styles_of_this_server_alone():
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("name", ASSETS)
def test_no_asset_names_another_server(name):
    text = (STATIC / name).read_text()
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/.-]*", text)) <= ALLOWED_URLS


def test_the_page_has_no_inline_script_or_style():
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\bstyle=|\bon\w+=", html) == []
    written = "".join((STATIC / name).read_text() for name in ASSETS if name.endswith(".js") and "/" not in name)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", written)


def test_every_asset_of_the_page_is_there_and_every_asset_is_used():
    texts = [(STATIC / name).read_text() for name in ASSETS if name.endswith((".html", ".js"))]
    named = {name for text in texts for name in re.findall(r"/static/([\w./-]+)|from \"\./(\w+\.js)\"", text)}
    assert {one or other for one, other in named} | {"index.html"} == set(ASSETS)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8080", 200),
        ("192.0.2.7:8080", 200),
        ("watch.example.org:443", 200),
        ("attacker.example", 421),
        ("attacker.example:8080", 421),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.attacker.example", 421),
        ("", 421),
    ],
)
def test_only_addresses_and_allowed_names_may_be_the_host(host, status):
    answer = client(names=["Watch.example.org"]).get("/status.json", headers={"host": host})
    assert answer.status_code == status and ("round" in answer.text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method):
    answer = client().request(method, "/")
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"


def test_status_json_fits_the_schema_that_is_served():
    served = client()
    jsonschema.validate(served.get("/status.json").json(), served.get("/status.schema.json").json())


@pytest.mark.parametrize(
    ("headers", "is_text"),
    [
        ({"accept": "text/plain"}, True),
        ({"accept": "*/*", "user-agent": "curl/8.0"}, True),
        ({"accept": "text/html,text/plain", "user-agent": "curl/8.0"}, False),
        ({"accept": "text/html", "user-agent": "Mozilla"}, False),
        ({"accept": "*/*", "user-agent": "Mozilla curl/"}, False),
    ],
)
def test_curl_gets_plain_text(headers, is_text):
    answer = client().get("/", headers=headers)
    assert answer.headers["content-type"] == f"text/{'plain' if is_text else 'html'}; charset=utf-8"
    assert ("round 3 of 10" in answer.text) == is_text


def test_names_of_peers_reach_no_html_and_are_escaped_in_metrics():
    page = page_of(run_rows(2, names=(f'000-"\\\n{HOSTILE}', "001-" + "n" * 10_000)))
    served = client(page)
    assert "<script>document" not in served.get("/").text
    metrics = served.get("/metrics").text
    assert all(re.fullmatch(SAMPLE, line) for line in metrics.splitlines() if not line.startswith("#"))
    text = served.get("/", headers={"accept": "text/plain"}).text
    assert all(line.isprintable() for line in text.splitlines()) and max(map(len, text.splitlines())) < 1000
    assert served.get("/status.json").headers["content-type"] == "application/json"


SAMPLE = r'[a-z_]+(\{\w+="(?:[^"\\\n]|\\[\\"n])*"(,\w+="(?:[^"\\\n]|\\[\\"n])*")*\})? (-?[\d.e+-]+|NaN|[+-]Inf)'


async def first_events(feed: Feed, count: int) -> list[str]:
    events = []
    async for event in feed.stream():
        events.append(event)
        if len(events) == count:
            feed.close()
        else:
            page = page_of(run_rows(4))
            feed.publish(page, {name: compact(part) for name, part in page.items()})
    return events


def test_a_stream_sends_the_page_and_then_only_what_has_changed():
    first, second = asyncio.run(first_events(feed_of(page_of(run_rows(3))), 2))
    whole, changes = (json.loads(event.removeprefix("data: ")) for event in (first, second))
    assert set(whole) == {*page_of([]), "problem"}
    assert {"run", "peers", "timeline", "curves"} <= set(changes) and not {"version", "kind", "sweep"} & set(changes)


def test_each_event_of_a_compressed_stream_can_be_read_at_once():
    async def first_bytes() -> tuple[dict[bytes, bytes], bytes]:
        feed, sent = feed_of(page_of(run_rows(3))), []

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)
            if message.get("body"):
                feed.close()

        headers = [(b"host", b"127.0.0.1:8080"), (b"accept-encoding", b"gzip")]
        scope = {"type": "http", "method": "GET", "path": "/events", "query_string": b"", "headers": headers}
        await make_app(feed)(scope, receive, send)
        return dict(sent[0]["headers"]), next(message["body"] for message in sent if message.get("body"))

    headers, body = asyncio.run(first_bytes())
    event = zlib.decompressobj(31).decompress(body).decode()
    assert headers[b"content-encoding"] == b"gzip" and event.endswith("\n\n")
    assert "peers" in json.loads(event.removeprefix("data: "))


def test_a_source_that_cannot_be_read_is_reported_and_tried_again():
    async def read_three_times() -> list[str]:
        source = Still(UserError("the peer does not answer"))
        feed, problems = Feed(source), []
        reading = asyncio.create_task(feed.run())
        for page in (source.page, page_of(run_rows(1)), OSError("disk gone")):
            source.page = page
            while feed.problem != (str(page) if isinstance(page, Exception) else "") or not feed.parts:
                await asyncio.sleep(0.01)
            problems.append(json.loads(feed.parts["problem"][1]))
        assert feed.page is not None, "the last page stays"
        feed.close()
        await reading
        return problems

    assert asyncio.run(read_three_times()) == ["the peer does not answer", "", "disk gone"]


def test_before_the_first_page_programs_are_asked_to_wait():
    feed = Feed(Still())
    served = TestClient(make_app(feed), base_url="http://localhost")
    assert served.get("/status.json").status_code == 503
    assert served.get("/metrics").text.splitlines()[-1] == "outerloop_watch_up 0"
    assert "nothing has been read yet" in served.get("/", headers={"accept": "text/plain"}).text


def test_pages_beyond_the_limit_are_refused(monkeypatch):
    """The limit is one page here, and a page that is closed makes room."""
    monkeypatch.setattr(server, "MAX_STREAMS", 1)
    pages = server.Pages(feed_of(page_of(run_rows(1))))

    async def visit() -> tuple[int, int]:
        events = pages.counted()
        await anext(events)
        refused = await pages.events(cast(Request, None))
        await events.aclose()
        accepted = await pages.events(cast(Request, None))
        return refused.status_code, accepted.status_code

    assert asyncio.run(visit()) == (503, 200)


def closed_by_server(*requests: bytes) -> list[bool]:
    """Return whether the server closes each connection, after it received these bytes, within a minute."""

    async def connect() -> list[bool]:
        with listening_socket("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(run(Still(), listener, ()))
            clients = [await asyncio.open_connection(*listener.getsockname()) for _ in requests]
            for (_, writer), request in zip(clients, requests, strict=True):
                writer.write(request)
            ends = [asyncio.wait_for(reader.read(), 60) for reader, _ in clients]
            closed = [not isinstance(end, Exception) for end in await asyncio.gather(*ends, return_exceptions=True)]
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return closed

    return asyncio.run(connect())


@pytest.mark.parametrize("received", [b"", b"GET / HT"])
def test_a_connection_without_a_whole_request_is_closed(monkeypatch, received):
    monkeypatch.setattr(connection, "REQUEST_S", 0.1)
    assert closed_by_server(received) == [True]


def test_connections_beyond_the_limit_are_closed(monkeypatch):
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 0)
    assert closed_by_server(b"") == [True]


def test_a_port_in_use_is_a_mistake_of_the_user():
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(UserError, match="pass another --port"):
        listening_socket("127.0.0.1", taken.getsockname()[1])


def test_an_error_in_our_own_code_ends_the_server():
    """It is not hidden behind a page that no longer changes."""
    with listening_socket("127.0.0.1", 0) as listener, pytest.raises(KeyError, match="a mistake"):
        asyncio.run(run(Still(KeyError("a mistake")), listener, ()))


def test_a_server_with_an_open_stream_stops():
    """Over a real socket: the stream gets the page and ends when the server does."""
    feed = feed_of(page_of(run_rows(3)))
    config = uvicorn.Config(make_app(feed), log_level="error", lifespan="off", ws="none")
    running = Server(config, feed)
    with listening_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=running.run, args=([listener],))
        thread.start()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = b""
            while b'"kind":"run"' not in received:
                received += stream.recv(65536)
            running.should_exit = True
            while more := stream.recv(65536):
                received += more
        thread.join(timeout=60)
    assert not thread.is_alive() and b"text/event-stream" in received and b"frame-ancestors" in received
