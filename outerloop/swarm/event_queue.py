"""Events that wait for the agreement: this peer's own first, then one of each sender in turn.

A sender that floods this peer fills its own share alone: its further messages are dropped, and those of others are
handled as if it had sent one at a time. A message of the agreement that is dropped is made up for by the next view.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")
MOST_WAITING = 32
"""Messages of one sender: a log of 8 commits, and what an honest peer says in several views, many times over."""


class EventQueue(Generic[E]):
    """Of one consumer."""

    def __init__(self) -> None:
        self._own: deque[E] = deque()
        self._of_senders: dict[str, deque[E]] = {}  # in the order of their turns, none of them empty
        self._news = asyncio.Event()

    def put(self, event: E) -> None:
        """Add an event of this peer: a timer, a payload that has come."""
        self._own.append(event)
        self._news.set()

    def put_from(self, sender: str, event: E) -> bool:
        """Add a message, behind those of the same sender. Return False when too many of those wait: it is dropped."""
        waiting = self._of_senders.setdefault(sender, deque())
        if len(waiting) >= MOST_WAITING:
            return False
        waiting.append(event)
        self._news.set()
        return True

    async def get(self) -> E:
        """Return the next event, as soon as there is one."""
        while not (self._own or self._of_senders):
            self._news.clear()
            await self._news.wait()
        return self._own.popleft() if self._own else self._next_message()

    def _next_message(self) -> E:
        sender, waiting = next(iter(self._of_senders.items()))
        del self._of_senders[sender]
        event = waiting.popleft()
        if waiting:
            self._of_senders[sender] = waiting
        return event
