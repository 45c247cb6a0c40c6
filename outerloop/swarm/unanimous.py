"""Which rounds count: those whose every payload reached every member. This file is the agreement, and nothing else is.

    hold     pull all payloads of round r
    confirm  ask every other member "do you hold all of round r?"; it answers when it does, or no when it failed r
    land     all said yes

A failed round is answered no for ever after, so one member's failure soon fails the round on all that have not landed.

Known hole: there is no last word. A member that dies, or passes its deadline, after it confirmed to some and before it
did to others leaves the round landed on one side only. The hash of the slow weights in the next round's headers shows
it. Closing it takes a commit by majority.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from outerloop.swarm.board import Board
from outerloop.swarm.framing import Stream
from outerloop.swarm.membership import Membership
from outerloop.swarm.payloads import Payloads, Refused, request_for, round_of
from outerloop.swarm.timeouts import LINGER_S, limit
from outerloop.swarm.transport import PeerGone, Request, Transport, Unreachable, persist
from outerloop.types import Contribution, Round, RoundFailed

logger = logging.getLogger(__name__)
T = TypeVar("T")

VERDICTS_KEPT = 1000  # a peer that still asks about an older round passed its deadline long ago, and hears no


class Unanimous:
    """Gathers rounds, and answers for those that it has gathered or failed."""

    def __init__(
        self, transport: Transport, membership: Membership, payloads: Payloads, *, run: str, deadline_s: float
    ) -> None:
        self._transport = transport
        self._membership = membership
        self._payloads = payloads
        self._protocol = f"outerloop/1/{run}/confirm"
        self._deadline_s = deadline_s
        self._holds: Board[bool] = Board(keep=VERDICTS_KEPT)
        self._owed: dict[Round, set[str]] = {}  # who has not yet heard that this peer holds a round
        self._missing: dict[Round, set[str]] = {}  # names that a round under way still waits for

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._membership.__contains__, handler=self._answer)

    async def gather(self, round: Round, blob: bytes) -> list[Contribution]:
        """Every member's contribution, in the order of names. Raises RoundFailed."""
        landed = False
        try:
            async with limit(self._deadline_s):
                blobs = await self._hold(round, blob)
                await self._confirm(round)
            landed = True
        except TimeoutError as error:
            raise RoundFailed(self.waits_for(round, self._deadline_s)) from error
        finally:
            self._missing.pop(round, None)
            if not landed:
                self._holds.post(round, False)
                self._owed.pop(round, None)
        return [Contribution(name, round, blobs[name]) for name in sorted(blobs)]

    def waits_for(self, round: Round, waited_s: float) -> str:
        """Why a round under way has not landed yet."""
        names = ", ".join(sorted(self._missing.get(round, ())))
        what = "confirmation" if self._holds.get(round) else "payload"
        return f"round {round.number}, fragment {round.fragment}: no {what} after {waited_s:g} s from {names}"

    async def linger(self) -> None:
        """Stay until every other member has heard about the last landed rounds, or is gone."""
        try:
            async with limit(LINGER_S):
                while waiting := self._who_waits():
                    await asyncio.gather(*map(self._strike_if_gone, waiting))
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logger.warning("left although these had not confirmed the last round: %s", ", ".join(self._who_waits()))

    async def _hold(self, round: Round, blob: bytes) -> dict[str, bytes]:
        self._payloads.offer(round, blob)
        own_id, others = self._transport.peer_id, self._membership.others
        pulls = {name: partial(self._payloads.pull, peer, round) for peer, name in others.items()}
        pulled = await self._ask_all(round, pulls)
        self._owed = {earlier: who for earlier, who in self._owed.items() if who and self._payloads.offers(earlier)}
        self._owed[round] = set(others)
        self._holds.post(round, True)
        return {self._membership.names[own_id]: blob, **pulled}

    async def _confirm(self, round: Round) -> None:
        others = self._membership.others.items()
        await self._ask_all(
            round, {name: partial(persist, partial(self._ask, peer, round), peer=name) for peer, name in others}
        )

    async def _ask(self, peer_id: str, round: Round) -> None:
        async with self._transport.open_stream(peer_id, self._protocol) as stream:
            await stream.send_object(request_for(round))
            if not (await stream.receive_object(patience_s=self._deadline_s)).get("holds"):
                raise Refused(f"{self._membership.names[peer_id]} failed it")

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        round = round_of(request)
        async with limit(self._deadline_s):
            holds = bool(await self._holds.read(round))
        await stream.send_object({"holds": holds})
        await stream.ended()
        self._owed.get(round, set()).discard(remote)

    async def _ask_all(self, round: Round, asks: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T]:
        """The answers of all members by name, at once. The first that cannot be had fails the round."""
        missing = self._missing[round] = set(asks)

        async def ask(name: str) -> T:
            answer = await asks[name]()
            missing.discard(name)
            return answer

        tasks = [asyncio.create_task(ask(name)) for name in asks]
        try:
            return dict(zip(asks, await asyncio.gather(*tasks), strict=True))
        except (PeerGone, Refused) as error:
            raise RoundFailed(f"round {round.number}, fragment {round.fragment}: {error}") from error
        finally:
            for task in tasks:
                task.cancel()

    def _who_waits(self) -> set[str]:
        return {peer for round, peers in self._owed.items() if self._payloads.offers(round) for peer in peers}

    async def _strike_if_gone(self, peer_id: str) -> None:
        try:
            await self._membership.view_of(peer_id)
        except Unreachable:
            for peers in self._owed.values():
                peers.discard(peer_id)
