"""Handshake of a pair over one stream: each peer gets the other's payload, and both or neither take the outer step.

    proposer                                        acceptor
    {token, number, fragment, sha, length} ->
                                                    <- {number, fragment, sha, length}: accepted, or {ready}: turned
                                                    down; ready: whether the acceptor still looks for a partner
    each peer pulls the other's payload (bulk.py) and sends {busy} as a keep-alive: a silent peer counts as frozen
    {have: true} ->            from now on the proposer is bound: it follows the acceptor's decision
                                                    now both peers have both payloads: the acceptor decides that the
                                                    pair counts
                                                    <- {applied: true}

A proposer that does not receive the acceptor's decision asks for it on other streams (pair_outcomes.py). If it asks
before the acceptor has decided, the pair does not count. So the two peers diverge only if the acceptor decides that the
pair counts, and then stays unreachable for as long as the proposer keeps asking. The proposer records such a pair as
in doubt, and asks again when the acceptor is next seen.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from outerloop.swarm.gossip.pair import Pair
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.timeouts import BUSY_S
from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MalformedMessage, checked_int, digest
from outerloop.types import Round

TOKEN_BYTES = 8


@dataclass(frozen=True)
class Offer:
    """A peer's contribution to a pair: its round, and the sha256 and length of its payload."""

    round: Round
    sha: bytes
    length: int

    def to_map(self) -> Request:
        """Return the offer as the fields of a message."""
        return {
            "number": self.round.number, "fragment": self.round.fragment, "sha": self.sha, "length": self.length
        }  # fmt: skip

    @classmethod
    def from_map(cls, fields: Request) -> Offer:
        """Parse an offer from a message. Raises Unreadable if it is malformed."""
        try:
            number = checked_int(fields.get("number"), "number", maximum=MAX_NUMBER)
            fragment = checked_int(fields.get("fragment"), "fragment", maximum=MAX_NUMBER)
            length = checked_int(fields.get("length"), "length", maximum=MAX_AMOUNT)
            return cls(Round(number, fragment), digest(fields.get("sha"), "sha"), length)
        except MalformedMessage as bad:
            raise Unreadable(str(bad)) from bad


def new_token() -> bytes:
    """Return a random token for a proposal."""
    return secrets.token_bytes(TOKEN_BYTES)


def token_of(request: Request) -> bytes:
    """Return the token of the proposal that a request refers to. Raises Unreadable if it is missing or invalid."""
    token = request.get("token")
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        raise Unreadable(f"the token of a pair must have {TOKEN_BYTES} bytes")
    return token


async def as_proposer(stream: Stream, pull: Coroutine[Any, Any, bytes], pair: Pair) -> None:
    """Run the proposer's side of an accepted pair until the pair has ended.

    `pull` fetches the partner's payload. Raises BrokenStream if the stream fails. An error of `pull` is raised, too.
    """
    async with _both(pull, _receive_flag(stream, "applied")) as (payload, decision):
        await busy_until(stream, payload, beside=decision)
        if decision.done():  # the acceptor gave up; it cannot have applied the pair before {have}
            pair.lose()
            return
        pair.bind(payload.result())
        await stream.send_object({"have": True})
        await busy_until(stream, decision, beside=payload)
        pair.learn(applied=decision.result())


async def as_acceptor(stream: Stream, pull: Coroutine[Any, Any, bytes]) -> bytes:
    """Run the acceptor's side of a pair. Return the proposer's payload once both peers have both payloads.

    The caller then decides whether the pair counts. `pull` fetches the proposer's payload. Raises BrokenStream if the
    stream fails or the proposer gives up. An error of `pull` is raised, too.
    """
    async with _both(pull, _receive_flag(stream, "have")) as (payload, confirmation):
        await busy_until(stream, payload, beside=confirmation)
        await busy_until(stream, confirmation, beside=payload)
        if not confirmation.result():
            raise BrokenStream("the proposer gave up")
        return payload.result()


async def _receive_flag(stream: Stream, name: str) -> bool:
    """Return the field `name` of the next message that has it, skipping keep-alives."""
    while name not in (message := await stream.receive_object()):
        pass
    return bool(message[name])


@asynccontextmanager
async def _both(
    pull: Coroutine[Any, Any, bytes], receive: Coroutine[Any, Any, bool]
) -> AsyncIterator[tuple[asyncio.Task[bytes], asyncio.Task[bool]]]:
    """Run both coroutines as tasks, and cancel them when the block ends."""
    tasks = asyncio.create_task(pull), asyncio.create_task(receive)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def busy_until(stream: Stream, wanted: asyncio.Future[Any], *, beside: asyncio.Future[Any] | None = None) -> None:
    """Send keep-alives until `wanted` is done. If `beside` fails before that, raise its error."""
    while not wanted.done():
        if beside is not None and beside.done():
            beside.result()
        pending = [future for future in (wanted, beside) if future is not None and not future.done()]
        done, _ = await asyncio.wait(pending, timeout=BUSY_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            await stream.send_object({"busy": True})
