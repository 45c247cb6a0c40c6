"""Read a source (run, swarm or sweep) repeatedly, and send the parts of its page that change to all open browsers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from outerloop.types import UserError
from outerloop.watch.model.page import Page

logger = logging.getLogger(__name__)
PAUSE_PER_READ = 50.0
"""Pause after a read, as a multiple of the CPU time of that read: reading then takes at most 2 % of a core."""
MAX_PAUSE_S = 30.0
"""Longest pause after a read, in seconds. Reads of more than 0.6 s of CPU time thus take more than 2 % of a core."""
KEEP_ALIVE_S = 15.0
"""Seconds without a change after which a browser is sent a comment, so that proxies do not close the connection."""


class Source(Protocol):
    """A run, swarm or sweep that is watched. `every_s`: shortest pause between two reads, in seconds."""

    every_s: float

    def read(self) -> Page:
        """Return the current page. May raise UserError or OSError if the source cannot be read now."""
        ...

    def close(self) -> None:
        """Release what the source holds."""
        ...


class Feed:
    """The newest page of a source, with each of its parts as JSON.

    `parts`: name of a part of the page -> (number of the update that changed it, its JSON).
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.page: Page | None = None
        self.parts: dict[str, tuple[int, str]] = {}
        self.update, self.problem, self.closed = 0, "", False
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Read the source until `close` is called."""
        while not self.closed:
            is_first, used_s = self.page is None, 0.0
            try:
                page, texts, used_s = await asyncio.to_thread(self.read)
                self.publish(page, texts)
            except (UserError, OSError, TimeoutError) as error:
                self.report(str(error))
            await asyncio.sleep(self.pause_s(0.0 if is_first else used_s))

    def pause_s(self, used_s: float) -> float:
        """Return the pause after a read, in seconds.

        `used_s`: CPU time of the read. Pass 0 for the first read, which takes longer than all others.
        """
        return min(MAX_PAUSE_S, max(self.source.every_s, PAUSE_PER_READ * used_s))

    def read(self) -> tuple[Page, dict[str, str], float]:
        """Return the page, the JSON of each of its parts, and the CPU time that this took, in seconds."""
        began_s = time.thread_time()
        page = self.source.read()
        texts = {name: compact(part) for name, part in page.items()}
        return page, texts, time.thread_time() - began_s

    def publish(self, page: Page, texts: Mapping[str, str]) -> None:
        """Make a page the newest one, and wake up the streams if any part of it has changed."""
        self.page, self.problem = page, ""
        self.put({**texts, "problem": '""'})

    def report(self, problem: str) -> None:
        """Show why the source cannot be read. Browsers still show the last page."""
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem
        self.put({"problem": compact(problem)})

    def put(self, texts: Mapping[str, str]) -> None:
        """Store those of the given parts that have changed, under a new update number, and wake up all streams."""
        changed = {name: text for name, text in texts.items() if self.parts.get(name, (0, None))[1] != text}
        if changed:
            self.update += 1
            self.parts |= {name: (self.update, text) for name, text in changed.items()}
            self.wake()

    def wake(self) -> None:
        """Wake up all streams that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, update: int) -> str:
        """Return the parts that have changed since the update with this number, as a JSON object; "" if no part has."""
        changed = {name: text for name, (number, text) in self.parts.items() if number > update}
        return joined(changed) if changed else ""

    def page_json(self) -> str:
        """Return the newest page as a JSON object, from the JSON of its parts."""
        return joined({name: self.parts[name][1] for name in self.page or ()})

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: first the whole page, then the parts that change, until `close` is called."""
        sent = 0
        while not self.closed:
            waiting = self.changed
            if text := self.since(sent):
                sent = self.update
                yield f"data: {text}\n\n"
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await waiting.wait()
            except TimeoutError:
                yield ": waiting\n\n"

    def close(self) -> None:
        """End all streams and the reading of the source."""
        self.closed = True
        self.wake()


def joined(parts: Mapping[str, str]) -> str:
    """Join the parts into a JSON object. `parts`: name -> value as JSON."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


def compact(part: object) -> str:
    """Return a value as JSON without spaces. It must contain no NaN or infinity, which many programs cannot parse."""
    return json.dumps(part, separators=(",", ":"), allow_nan=False)
