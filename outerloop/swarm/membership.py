"""Membership of a run: which peers take part, and the same sorted list of them everywhere, so that all agree on ranks.

The members are the first `peers` of the roster in the order of joining. A roster is only what a peer happens to see, so
each one asks every other member for the list that *it* sees; when all lists are equal the swarm has formed, and its
members stay fixed for the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outerloop.swarm.framing import BrokenStream, Stream
from outerloop.swarm.roster import Record, Roster
from outerloop.swarm.timeouts import FORM_POLL_S, VIEW_S, limit
from outerloop.swarm.transport import Request, Transport, Unreachable
from outerloop.types import UserError


class Membership:
    """`names`: peer id -> name of every member, in the order of names; final once `form` has returned."""

    def __init__(self, transport: Transport, roster: Roster, *, run: str, peers: int, own: Record) -> None:
        self._transport = transport
        self._roster = roster
        self._protocol = f"outerloop/1/{run}/members"
        self._peers = peers
        self._own = own
        self._silent: set[str] = set()
        self._records: list[Record] = []
        self.names: dict[str, str] = {own.peer_id: own.name}

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self.names

    @property
    def others(self) -> dict[str, str]:
        """The members after this one, then those before it: nobody is everybody's first."""
        members = list(self.names.items())
        own = list(self.names).index(self._own.peer_id)
        return dict(members[own + 1 :] + members[:own])

    async def serve(self) -> None:
        """Tell anybody which members this peer sees: the roster is public already."""
        await self._transport.serve(self._protocol, allowed=lambda peer_id: True, handler=self._tell)

    async def form(self, *, timeout_s: float) -> None:
        """Wait until `peers` members see the same list. Raises UserError, telling who is there."""
        pause_s = FORM_POLL_S[0]
        try:
            async with limit(timeout_s):
                while not await self._agreed():
                    await asyncio.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, FORM_POLL_S[1])
        except TimeoutError as error:
            raise UserError(self._what_is_missing(timeout_s)) from error

    async def view_of(self, peer_id: str) -> list[str] | None:
        """The names that a peer sees; None when it is slow to tell. Raises Unreachable."""
        try:
            async with limit(VIEW_S), self._transport.open_stream(peer_id, self._protocol) as stream:
                await stream.send_object({})
                return list((await stream.receive_object()).get("names", []))
        except (BrokenStream, TimeoutError, TypeError):
            return None

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"names": list(self.names.values())})
        await stream.ended()

    async def _agreed(self) -> bool:
        self._records = await self._roster.read()
        await self._refuse_other_settings()
        first = sorted(self._records, key=lambda record: (record.joined, record.name))[: self._peers]
        self.names = {record.peer_id: record.name for record in sorted(first, key=lambda record: record.name)}
        if len(self.names) < self._peers or self._own.peer_id not in self.names:
            return False
        self._silent = set(self.others.values())
        await asyncio.gather(*map(self._hear, self.others))
        return not self._silent

    async def _hear(self, peer_id: str) -> None:
        try:
            if await self.view_of(peer_id) == list(self.names.values()):
                self._silent.discard(self.names[peer_id])
        except Unreachable:
            pass  # still starting, or dead and not yet expired: the next look at the roster will tell

    async def _refuse_other_settings(self) -> None:
        for record in self._records:
            if record.fingerprint != self._own.fingerprint:
                await asyncio.sleep(2 * FORM_POLL_S[1])  # stay in the roster until that peer has seen it too
                raise UserError(
                    f"peer {record.name} runs with other settings (fingerprint {record.fingerprint}, here "
                    f"{self._own.fingerprint}); start every peer with the same settings, or type another run id"
                )

    def _what_is_missing(self, waited_s: float) -> str:
        there = f"after {waited_s:.0f} s {len(self._records)} of {self._peers} peers are there ({_list(self._records)})"
        if len(self._records) < self._peers:
            missing, join = self._peers - len(self._records), f"exchange.initial_peers=[{self._own.addresses[0]}]"
            return f"{there}, {missing} missing; start them with {join}, or type exchange.peers={len(self._records)}"
        if len(self._records) > self._peers:
            return f"{there}, too many; the run has as many as it began with. Type exchange.peers={len(self._records)}"
        return f"{there}, but these do not answer: {', '.join(sorted(self._silent))}; can they be reached from here?"


def _list(records: Sequence[Record]) -> str:
    return ", ".join(sorted(record.name for record in records))
