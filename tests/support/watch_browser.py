"""A server of the page in this process, and Debian's chromium to look at it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from outerloop.watch.feed import Feed
from outerloop.watch.model.page import Page
from outerloop.watch.serve import Server, listening_socket
from outerloop.watch.server import make_app

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 120_000
"""Longest wait for anything in the browser; the machine may be loaded."""


def browser_path() -> str | None:
    """The path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Changing:
    """A source whose page a test replaces."""

    every_s = 0.1

    def __init__(self, page: Page) -> None:
        self.page = page

    def read(self) -> Page:
        return self.page

    def close(self) -> None:
        pass


@contextmanager
def served(page: Page) -> Iterator[tuple[str, Changing]]:
    """The address of a page, and its source."""
    source = Changing(page)
    feed = Feed(source)
    server = Server(uvicorn.Config(make_app(feed), log_level="error", lifespan="off", ws="none"), feed)

    async def run() -> None:

        reading = asyncio.create_task(feed.run())
        await server.serve(sockets=[listener])
        await reading

    with listening_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", source
        finally:
            server.should_exit = True
            thread.join(timeout=120)
