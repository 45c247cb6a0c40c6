"""Fair queue of events for the consensus: this peer's own events first, then one message per sender in turn.

A sender that floods this peer fills only its own share of the queue. Its further messages are dropped, and the messages
of other senders are not delayed by it. The total number of queued bytes is bounded as well. Beyond that bound, the
newest message of the sender with the most bytes is dropped. The peers send again in the next view, which makes up for
dropped messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Generic, TypeVar

E = TypeVar("E")
MAX_WAITING = 32
"""Maximum number of messages queued per sender. An honest peer needs far fewer: one log of 8 commits, and its messages
in several views."""
MAX_BYTES = 64 << 20
"""Maximum total number of bytes queued across all senders, e.g. MAX_WAITING messages of the maximum length, or 64 KiB
from each of 1,024 senders."""


class EventQueue(Generic[E]):
    """The event queue of one consumer."""

    def __init__(self) -> None:
        self._own: deque[E] = deque()
        self._of_senders: dict[str, deque[tuple[E, int]]] = {}  # in the order of their turns; no queue is empty
        self._bytes: Counter[str] = Counter()  # by sender
        self._news = asyncio.Event()

    def put(self, event: E) -> None:
        """Add an event of this peer itself, e.g. that a timer has expired or a payload is stored."""
        self._own.append(event)
        self._news.set()

    def put_from(self, sender: str, event: E, size: int = 0) -> list[str]:
        """Add a message of `size` bytes, behind those of the same sender. Return the senders of the dropped messages.

        This message is dropped if `sender` has too many messages queued. Otherwise, the newest messages of the senders
        with the most bytes are dropped until the rest fits.
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
            self._of_senders[sender] = self._of_senders.pop(sender)  # its next turn comes after all others
        return event

    def _take(self, sender: str, *, newest: bool = False) -> E:
        """Remove and return the oldest message of a sender; the newest if `newest` is True."""
        waiting = self._of_senders[sender]
        event, size = waiting.pop() if newest else waiting.popleft()
        self._bytes[sender] -= size
        if not waiting:
            del self._of_senders[sender], self._bytes[sender]
        return event
