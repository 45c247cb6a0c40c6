"""Greeting: contact a run's initial peers before joining, so that a peer that cannot join learns the reason.

A greeting is the first exchange of a probe (probe.py). A remote peer answers every peer that its allow-list admits, and
sends every other peer an explicit refusal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from hivemind.dht.protocol import MAX_DHT_TIME_DISCREPANCY_SECONDS

from outerloop.swarm.access.access_control import EXCLUSIONS, how_to_return
from outerloop.swarm.p2p.framing import BrokenStream, TurnedAway
from outerloop.swarm.p2p.probe import clock_of
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.types import UserError

logger = logging.getLogger(__name__)
Answer = float | Exception
"""The number of seconds by which the remote clock is ahead of the local clock, or the error if no answer arrived."""


class NotAllowed(UserError):
    """An initial peer has an allow-list, and this peer is not on it, or was excluded."""


def why_rejected(why: str, own: str) -> str:
    """Return why other peers reject this peer, and what to do. `why`: TurnedAway.why. `own`: this peer's id."""
    if why:
        return f"which {EXCLUSIONS[why]}: {how_to_return(own)}"
    return f"which is not in their exchange.allow: add {own} to that list on all machines, or ask for an invite"


async def greet(transport: Transport, peers: Collection[str], *, strict: bool) -> bool:
    """Contact `peers` concurrently, and return whether at least one of them admits this peer.

    Raises:
        NotAllowed: if no peer admits this peer, and at least one refuses it because of an allow-list.
        UserError: if `strict` is set, and the clock of every peer that answers differs from the local clock by more
            than 3 s, hivemind's limit.
    """
    answers = dict(zip(peers, await asyncio.gather(*(_ahead_s(transport, peer) for peer in peers)), strict=True))
    ahead_s = {peer: answer for peer, answer in answers.items() if isinstance(answer, float)}
    for peer, answer in answers.items():
        if isinstance(answer, TurnedAway) and not ahead_s:
            raise NotAllowed(f"{peer} rejects this peer, {why_rejected(answer.why, transport.peer_id)}")
    far = {peer: ahead for peer, ahead in ahead_s.items() if abs(ahead) > MAX_DHT_TIME_DISCREPANCY_SECONDS}
    if far and len(far) == len(ahead_s):
        peer, ahead = next(iter(far.items()))
        message = f"the clock of {peer} differs from this machine's by {ahead:+.1f} s; at most 3 s are allowed"
        if strict:
            raise UserError(f"{message}: correct the wrong clock")
        logger.warning("%s", message)
    return bool(ahead_s)


async def _ahead_s(transport: Transport, peer: str) -> Answer:
    began = time.time()
    try:
        clock = await clock_of(transport, peer)
    except (Unreachable, BrokenStream, TimeoutError) as error:
        logger.debug("%s did not answer a greeting: %r", peer, error)
        return error
    return clock - (began + time.time()) / 2
