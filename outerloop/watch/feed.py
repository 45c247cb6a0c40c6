"""Read a source again and again, and pass the parts of its page that have changed to all open browsers."""

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
"""Pause between two reads, in units of the CPU time of a read: reading takes at most 2 % of a core (MAX_PAUSE_S)."""
MAX_PAUSE_S = 30.0
"""Longest pause between two reads. Reads that need more than 0.6 s of CPU time take a larger share of a core."""
KEEP_ALIVE_S = 15.0
"""Seconds after which a line is sent to a browser if nothing has changed, so that proxies keep the connection."""


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
    """The newest page of a source, as JSON by part.

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
        """Return the pause after a read. The first read, of all that there is, takes longer and does not count."""
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
        """Show why the source cannot be read. The last page stays."""
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem
        self.put({"problem": compact(problem)})

    def put(self, texts: Mapping[str, str]) -> None:
        """Store the parts that have changed under a new update number."""
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
        """Return the parts that have changed after an update, as a JSON object, or "" if there are none."""
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
    """Return a JSON object. `parts`: name -> JSON."""
    return "{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}"


def compact(part: object) -> str:
    """Return JSON without spaces. All numbers in a page are finite, so this is JSON for every program."""
    return json.dumps(part, separators=(",", ":"), allow_nan=False)
