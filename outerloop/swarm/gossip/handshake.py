"""One pair, one stream: both get the other's payload, and both or neither take the outer step.

    proposer                                        acceptor
    {token, number, fragment, sha, length} ->
                                                    <- {number, fragment, sha, length}, or {ready}: no
    both pull the other's payload (bulk.py), and meanwhile each says {busy} now and then: silence means frozen
    {have: true} ->            from here on the proposer is bound: it does what the acceptor decides
                                                    it has, and the other one has: decided, the pair counts
                                                    <- {applied: true}

A proposer that loses the last word asks for it on other streams (pair_outcomes.py), and who is asked before it has
decided decides no. So the two part ways only when the acceptor decides, and then cannot be
reached for as long as the proposer asks. The proposer keeps such a doubt, and asks when it hears of the other again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.timeouts import BUSY_S
from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MalformedMessage, digest, whole
from outerloop.types import Round

TOKEN_BYTES = 8


@dataclass(frozen=True)
class Offer:
    """What a peer brings into a pair: its own round, and its payload by name and length."""

    round: Round
    sha: bytes
    length: int

    def to_map(self) -> Request:
        """As it is told."""
        return {
            "number": self.round.number, "fragment": self.round.fragment, "sha": self.sha, "length": self.length
        }  # fmt: skip

    @classmethod
    def from_map(cls, told: Request) -> Offer:
        """As it was told. Raises BrokenStream when it is none."""
        try:
            number = whole(told.get("number"), "number", most=MAX_NUMBER)
            fragment = whole(told.get("fragment"), "fragment", most=MAX_NUMBER)
            length = whole(told.get("length"), "length", most=MAX_AMOUNT)
            return cls(Round(number, fragment), digest(told.get("sha"), "sha"), length)
        except MalformedMessage as bad:
            raise Unreadable(str(bad)) from bad


@dataclass
class ProposalState:
    """How far a proposal has come.

    `ready`: turned down, but the other is still looking. `theirs`: accepted. `blob`: the other's payload, set when this
    peer says that it has it. `applied`: the acceptor's last word.
    """

    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES))
    ready: bool = False
    theirs: Offer | None = None
    blob: bytes | None = None
    applied: bool | None = None

    @property
    def bound(self) -> bool:
        """Only the acceptor knows whether the pair counts."""
        return self.blob is not None and self.applied is None


def token_of(request: Request) -> bytes:
    """Which proposal a request is about. Raises BrokenStream."""
    token = request.get("token")
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        raise Unreadable(f"a pair is named by {TOKEN_BYTES} bytes")
    return token


async def as_proposer(stream: Stream, pull: Coroutine[Any, Any, bytes], pledge: ProposalState) -> None:
    """From acceptance to the last word, told in `pledge`. Raises BrokenStream, and what `pull` raises."""
    async with _both(pull, _hear(stream, "applied")) as (mine, word):
        await busy_until(stream, mine, beside=word)
        if word.done():
            return  # the other one gave up: it cannot have decided anything else yet
        pledge.blob = mine.result()
        await stream.send_object({"have": True})
        await busy_until(stream, word, beside=mine)
        pledge.applied = word.result()


async def as_acceptor(stream: Stream, pull: Coroutine[Any, Any, bytes]) -> bytes:
    """The other's payload, once both have both: what is left is to decide. Raises as above."""
    async with _both(pull, _hear(stream, "have")) as (mine, word):
        await busy_until(stream, mine, beside=word)
        await busy_until(stream, word, beside=mine)
        if not word.result():
            raise BrokenStream("the other one gave up")
        return mine.result()


async def _hear(stream: Stream, what: str) -> bool:
    """The other's word on this, once it is no longer busy."""
    while what not in (said := await stream.receive_object()):
        pass
    return bool(said[what])


@asynccontextmanager
async def _both(
    pull: Coroutine[Any, Any, bytes], hear: Coroutine[Any, Any, bool]
) -> AsyncIterator[tuple[asyncio.Task[bytes], asyncio.Task[bool]]]:
    """Two things at a time, neither of which outlives the block."""
    tasks = asyncio.create_task(pull), asyncio.create_task(hear)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def busy_until(stream: Stream, wanted: asyncio.Future[Any], *, beside: asyncio.Future[Any] | None = None) -> None:
    """Wait until `wanted` is done, saying that this peer is busy. Raises what fails `beside` it."""
    while not wanted.done():
        if beside is not None and beside.done():
            beside.result()
        waiting = [one for one in (wanted, beside) if one is not None and not one.done()]
        done, _ = await asyncio.wait(waiting, timeout=BUSY_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            await stream.send_object({"busy": True})
