"""Serve what each peer has contributed to the run, and remember the public names of these peers.

    {}            ->   <- {round, rows}   in one frame; rows: [[peer id, rounds, samples, first, last, statement], ...]
                       <- {}              if no round has landed in this process yet
    {of: round}   ->   <- {digest}        the digest of the rows as of this round
                       <- {}              if this round is not one of the last KEPT rounds that landed in this process

`round`, `first` and `last` count from 0. `statement` is the peer's signed public name (public_names.py), or empty if it
is not known; the digest is the sha256 of the msgpack of [round, rows without statements]. The contributions themselves
are part of the state that all replicas share (core/ledger.py), so peers that landed the same rounds give equal
digests. A single answer proves nothing: it is only the claim of the peer that answers.

Peers that are present state their names in the roster. This service stores the names of all contributors in a file, and
asks one other peer, once, for the names of contributors that are absent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgpack

from outerloop.core.contributor_rows import MAX_CONTRIBUTORS, OTHERS
from outerloop.state.checkpoint import write_atomically
from outerloop.swarm.access.access_control import CONTRIBUTORS
from outerloop.swarm.access.public_names import MAX_BYTES as NAME_BYTES
from outerloop.swarm.access.public_names import KnownNames
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable, protocol_name
from outerloop.swarm.timeouts import HISTORY_S, ROSTER_REFRESH_S, VIEW_S, limit
from outerloop.swarm.validation import (
    MAX_AMOUNT,
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    fields,
    peer_id,
    quote,
    row,
    unpacked,
)
from outerloop.types import Contributor

logger = logging.getLogger(__name__)
KEPT = 8
"""Number of rounds whose digests a peer serves."""
ROW_BYTES = 256 + NAME_BYTES
ANSWER_BYTES = ROW_BYTES * (MAX_CONTRIBUTORS + 1)
"""Maximum size of an answer, 3 MiB. Usually a row takes about 200 bytes."""
Statements = Iterable[tuple[str, bytes]]
"""Pairs of a peer id and that peer's signed public name."""


@dataclass(frozen=True)
class Totals:
    """The contributions of all peers up to and including round `round`. `statements`: peer id -> signed public name.

    The statements are those that the answering peer sent, and are not verified.
    """

    round: int
    contributors: tuple[Contributor, ...]
    statements: dict[str, bytes]

    @property
    def digest(self) -> bytes:
        """The sha256 of the round and the counts, without the names."""
        return digest_of(self.round, self.contributors)

    def to_bytes(self) -> bytes:
        rows = [[*astuple(one), self.statements.get(one.peer, b"")] for one in self.contributors]
        return msgpack.packb({"round": self.round, "rows": rows})

    @staticmethod
    def from_bytes(content: bytes) -> Totals | None:
        """Parse an answer. Return None if the peer has no counts yet. Raises MalformedMessage if it is invalid."""
        value = unpacked(content, "contributions")
        if value == {}:
            return None
        found = fields(value, "contributions", ("round", "rows"))
        number, rows = checked_int(found["round"], "a round", maximum=MAX_NUMBER), found["rows"]
        if type(rows) is not list or len(rows) > MAX_CONTRIBUTORS + 1:
            raise MalformedMessage(
                f"contributions must be those of at most {MAX_CONTRIBUTORS} peers; got {quote(rows)}"
            )
        parsed = [_parse(one) for one in rows]
        if len({one.peer for one, _ in parsed}) < len(rows):
            raise MalformedMessage("contributions name a peer twice")
        return Totals(number, tuple(one for one, _ in parsed), {one.peer: signed for one, signed in parsed if signed})


def _parse(value: Any) -> tuple[Contributor, bytes]:
    """Parse a row: the counts of a peer, and its signed public name, which is not verified."""
    peer, *counts, statement = row(value, 6, "a row must be [peer, rounds, samples, first, last, name]")
    limits = MAX_NUMBER, MAX_AMOUNT, MAX_NUMBER, MAX_NUMBER
    checked = [checked_int(count, "a count", maximum=most) for count, most in zip(counts, limits, strict=True)]
    if type(statement) is not bytes or len(statement) > NAME_BYTES:
        raise MalformedMessage(f"a public name must be at most {NAME_BYTES} bytes; got {quote(statement)}")
    return Contributor(peer if peer == OTHERS else peer_id(peer, "a contributor"), *checked), statement


def digest_of(number: int, contributors: Sequence[Contributor]) -> bytes:
    """Return the sha256 of the counts as of a round."""
    return hashlib.sha256(msgpack.packb([number, [astuple(one) for one in contributors]])).digest()


class ContributorService(RpcService):
    """Serves the contributions to any peer. Use it from the network thread only.

    Args:
        names: the public names that this peer knows.
        file: stores the names.
        present: returns the ids and signed public names of the peers that are present.
    """

    service = CONTRIBUTORS

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        names: KnownNames,
        file: Path,
        present: Callable[[], Awaitable[Statements]],
    ) -> None:
        super().__init__(transport, run=run)
        self._run, self._present, self._file = run, present, file
        self.names = names
        self._recent: deque[Totals] = deque(maxlen=KEPT)
        self._packed = b""  # the current answer; empty if it has to be packed again
        self._asked = False
        self._stored: dict[str, bytes] = {}
        self._tasks = BackgroundTasks()

    async def serve(self) -> None:
        self._learn(read_names(self._file))
        await super().serve()
        self._tasks.start(self._keep_names())

    async def publish(self, number: int, contributors: tuple[Contributor, ...]) -> None:
        """Serve these contributions, which include round `number`."""
        self._recent.append(Totals(number, contributors, {}))
        self._packed = b""

    async def learn_present(self) -> list[tuple[str, bytes]]:
        """Learn the names of the peers that are present now, and return their ids and signed public names."""
        present = list(await self._present())
        self._learn(present)
        return present

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        if "of" in request:
            found = next((one.digest for one in self._recent if one.round == request["of"]), None)
            await stream.send_object({"digest": found} if found else {})
        else:
            self._packed = self._packed or self._pack()
            await stream.send(self._packed)
        await stream.ended()

    def _pack(self) -> bytes:
        if not self._recent:
            return msgpack.packb({})
        newest = self._recent[-1]
        return Totals(newest.round, newest.contributors, self.names.statements()).to_bytes()

    async def _keep_names(self) -> None:
        """Learn names from the roster, and once from another peer; store those of all contributors. Does not return."""
        while True:
            present = await self.learn_present()
            contributors = {one.peer for one in self._recent[-1].contributors} if self._recent else set()
            others = [peer for peer, _ in present if peer != self._transport.peer_id]
            if contributors and others and not self._asked:
                await self._ask(random.choice(others), contributors)
            if contributors:
                self.names.keep_only(contributors | {peer for peer, _ in present})
                await self._store(contributors)
            await asyncio.sleep(ROSTER_REFRESH_S)

    async def _ask(self, peer: str, contributors: set[str]) -> None:
        """Request the names of contributors that are absent from a peer that is present."""
        try:
            totals = await fetch(self._transport, self._run, peer)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s did not send the names of the contributors: %s", peer, error)
            return
        if totals is not None:
            self._asked = True
            self._learn((peer, one) for peer, one in totals.statements.items() if peer in contributors)

    def _learn(self, statements: Statements) -> None:
        if any([self.names.learn(peer, statement) for peer, statement in statements]):
            self._packed = b""

    async def _store(self, contributors: set[str]) -> None:
        """Write the names of the contributors to the file if they have changed."""
        known = {peer: one for peer, one in self.names.statements().items() if peer in contributors}
        if known == self._stored:
            return
        try:
            await asyncio.to_thread(write_atomically, self._file, msgpack.packb(list(known.items())))
            self._stored = known
        except OSError as error:
            logger.warning("the names of the contributors could not be written to %s: %s", self._file, error)


def read_names(file: Path) -> Statements:
    """Return the statements in a file that `ContributorService` wrote; none if it is missing, damaged or unreadable."""
    try:
        found = unpacked(file.read_bytes(), "the names") if file.exists() else []
        return [(peer, statement) for peer, statement in found if type(peer) is str]
    except (OSError, MalformedMessage, TypeError, ValueError):
        return []


async def fetch(transport: Transport, run: str, peer: str) -> Totals | None:
    """Fetch the contributions that a peer (id) serves. Return None if the peer has none yet.

    Raises BrokenStream, Unreachable or TimeoutError if the peer does not send a valid answer.
    """
    async with limit(HISTORY_S), transport.open_stream(peer, protocol_name(run, CONTRIBUTORS)) as stream:
        await stream.send_object({})
        try:
            return Totals.from_bytes(await stream.receive(at_most=ANSWER_BYTES))
        except MalformedMessage as error:
            raise Unreadable(str(error)) from error


async def fetch_digest(transport: Transport, run: str, peer: str, number: int) -> bytes | None:
    """Fetch the digest of the contributions as of a round. Return None if the peer lacks it or does not answer."""
    try:
        async with limit(VIEW_S), transport.open_stream(peer, protocol_name(run, CONTRIBUTORS)) as stream:
            await stream.send_object({"of": number})
            answer = await stream.receive_object()
        return digest(answer["digest"], "the digest of contributions") if answer else None
    except (BrokenStream, Unreachable, TimeoutError, MalformedMessage, KeyError):
        return None
