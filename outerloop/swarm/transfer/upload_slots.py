"""Limit concurrent uploads, and share the slots fairly among the peers that request uploads.

A slot goes to the waiting peer with the fewest running uploads. Of several such peers, the one comes first that has
waited longest, since its first waiting request or since its last upload began, if that was later. So a peer with many
requests does not delay the requests of others, and any peer can use all slots while no other peer is waiting.

A peer that reads slowly keeps its slots. So an upload's turn ends after TRANSFER_S if another peer is waiting that has
fewer uploads running. Its downloader then requests the remaining bytes (bulk.py), and waits for its next turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from outerloop.swarm.timeouts import TRANSFER_S

Slot = asyncio.Future[float]
"""A request for a slot. Its result, once a slot is free, is the time at which the upload may begin."""


class UploadSlots:
    """The slots for concurrent uploads. `free`: number of slots that are not in use."""

    def __init__(self, at_once: int) -> None:
        self.free = at_once
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Slot]] = {}  # the peer that has waited longest for its next upload comes first

    def request(self, peer: str) -> Slot:
        """Request a slot for an upload to `peer`. The caller must call `release` afterwards."""
        slot = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(slot)
        self._assign()
        return slot

    def release(self, peer: str, slot: Slot) -> None:
        """End an upload, or withdraw a request that is still waiting."""
        if slot.done():
            self._running -= Counter([peer])
            self.free += 1
        else:
            self._waiting[peer].remove(slot)
            if not self._waiting[peer]:
                del self._waiting[peer]
        self._assign()

    def turn_over(self, peer: str, slot: Slot) -> bool:
        """Return whether an upload to `peer` has to end, because its turn is over and another peer is waiting."""
        over = asyncio.get_running_loop().time() - slot.result() >= TRANSFER_S
        return over and any(self._running[other] < self._running[peer] for other in self._waiting)

    def _assign(self) -> None:
        """Assign the free slots to waiting requests."""
        while self.free and self._waiting:
            peer = min(self._waiting, key=self._running.__getitem__)
            requests = self._waiting.pop(peer)
            requests.popleft().set_result(asyncio.get_running_loop().time())
            if requests:
                self._waiting[peer] = requests  # the last of all waiting peers
            self._running[peer] += 1
            self.free -= 1
