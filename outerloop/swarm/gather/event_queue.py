"""Fair queue of events for the consensus: this peer's own events first, then one message per sender in turn.

A sender that floods this peer fills only its own share of the queue: its further messages are dropped, and the messages
of other senders are not delayed. The total number of queued bytes is bounded as well. Beyond that bound, the
newest message of the sender with the most bytes is dropped. The protocol tolerates dropped messages, because the peers
send new ones in the next view.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Generic, TypeVar

E = TypeVar("E")
MAX_WAITING = 32
"""Maximum number of messages queued per sender. An honest peer needs far fewer: one log of 8 commits, plus the messages
that it sends in several views."""
MAX_BYTES = 64 << 20
"""Maximum number of queued bytes, summed over all senders: MAX_WAITING messages of maximum size, or 64 KiB from each of
1,024 senders."""


class EventQueue(Generic[E]):
    """A queue of this peer's own events and of other peers' messages, with a single consumer."""

    def __init__(self) -> None:
        self._own: deque[E] = deque()
        # sender -> its queued messages with their sizes, in the order of turns; only senders that have messages queued
        self._of_senders: dict[str, deque[tuple[E, int]]] = {}
        self._bytes: Counter[str] = Counter()  # sender -> number of queued bytes
        self._news = asyncio.Event()

    def put(self, event: E) -> None:
        """Add one of this peer's own events, e.g. an expired timer or a stored payload."""
        self._own.append(event)
        self._news.set()

    def put_from(self, sender: str, event: E, size: int = 0) -> list[str]:
        """Queue a message of `size` bytes from `sender`. Return the sender of each message that was dropped.

        The message itself is dropped if MAX_WAITING messages of `sender` are queued. Otherwise, the newest messages of
        the senders with the most queued bytes are dropped until at most MAX_BYTES remain.
        """
        waiting = self._of_senders.setdefault(sender, deque())
        if len(waiting) >= MAX_WAITING:
            return [sender]
        waiting.append((event, size))
        self._bytes[sender] += size
        self._news.set()
        dropped = []
        while self._bytes.total() > MAX_BYTES:
            [(fullest, _)] = self._bytes.most_common(1)
            self._take(fullest, newest=True)
            dropped.append(fullest)
        return dropped

    async def get(self) -> E:
        """Wait for the next event and return it."""
        while not (self._own or self._of_senders):
            self._news.clear()
            await self._news.wait()
        return self._own.popleft() if self._own else self._next_message()

    def _next_message(self) -> E:
        sender = next(iter(self._of_senders))
        event = self._take(sender)
        if sender in self._of_senders:
            self._of_senders[sender] = self._of_senders.pop(sender)  # move the sender to the end of the order
        return event

    def _take(self, sender: str, *, newest: bool = False) -> E:
        """Remove and return a sender's oldest message, or its newest one if `newest` is True."""
        waiting = self._of_senders[sender]
        event, size = waiting.pop() if newest else waiting.popleft()
        self._bytes[sender] -= size
        if not waiting:
            del self._of_senders[sender], self._bytes[sender]
        return event
