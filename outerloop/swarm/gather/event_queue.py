"""Events that wait for the agreement: this peer's own first, then one of each sender in turn.

A sender that floods this peer fills its own share alone: its further messages are dropped, and those of others are
handled as if it had sent one at a time. What all senders together have waiting is bounded, too: beyond that the newest
message of whoever takes most of it is dropped. The next view makes up for a message that was dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Generic, TypeVar

E = TypeVar("E")
MOST_WAITING = 32
"""Messages of one sender: a log of 8 commits, and what an honest peer says in several views, many times over."""
MOST_BYTES = 64 << 20
"""Of all of them: MOST_WAITING of the longest, or 64 KiB of each of 1,024 senders."""


class EventQueue(Generic[E]):
    """Of one consumer."""

    def __init__(self) -> None:
        self._own: deque[E] = deque()
        self._of_senders: dict[str, deque[tuple[E, int]]] = {}  # in the order of their turns, none of them empty
        self._bytes: Counter[str] = Counter()  # by sender
        self._news = asyncio.Event()

    def put(self, event: E) -> None:
        """Add an event of this peer: a timer, a payload that has come."""
        self._own.append(event)
        self._news.set()

    def put_from(self, sender: str, event: E, size: int = 0) -> list[str]:
        """Add a message of so many bytes, behind those of the same sender.

        Return who sent the messages that are dropped: this one, when too many of its sender's wait, or others.
        """
        waiting = self._of_senders.setdefault(sender, deque())
        if len(waiting) >= MOST_WAITING:
            return [sender]
        waiting.append((event, size))
        self._bytes[sender] += size
        self._news.set()
        dropped = []
        while self._bytes.total() > MOST_BYTES:
            [(fullest, _)] = self._bytes.most_common(1)
            self._take(fullest, newest=True)
            dropped.append(fullest)
        return dropped

    async def get(self) -> E:
        """Return the next event, as soon as there is one."""
        while not (self._own or self._of_senders):
            self._news.clear()
            await self._news.wait()
        return self._own.popleft() if self._own else self._next_message()

    def _next_message(self) -> E:
        sender = next(iter(self._of_senders))
        event = self._take(sender)
        if sender in self._of_senders:
            self._of_senders[sender] = self._of_senders.pop(sender)  # its next turn is after all others'
        return event

    def _take(self, sender: str, *, newest: bool = False) -> E:
        """Remove the oldest message of a sender, or the newest, and return it."""
        waiting = self._of_senders[sender]
        event, size = waiting.pop() if newest else waiting.popleft()
        self._bytes[sender] -= size
        if not waiting:
            del self._of_senders[sender], self._bytes[sender]
        return event
