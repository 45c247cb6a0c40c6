"""Exchange signed statements at the start of a session, so that all members count the same ones.

The members exchange bytes in two meetings (rendezvous.py):

    meeting 0    each member shows its own statement, signed for this session
    meeting 1    each member shows all the statements that it received

A statement counts if a peer other than its owner shows it in meeting 1. If a peer signed two different statements, it
lied: neither counts, and the log names the peer. A single liar cannot make honest peers count different statements,
because other peers decide whether its statement counts, and honest peers show the same statements to all peers. Two
liars can: one of them can show the other's signed statement to only some peers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

import msgpack

from outerloop.swarm.membership.common_checkpoint import (
    Held,
    common,
    objection,
    own_step,
    pack_held,
    unpack_held,
    without,
)
from outerloop.swarm.membership.rendezvous import Rendezvous
from outerloop.swarm.p2p.transport import Transport
from outerloop.swarm.timeouts import MEET_S
from outerloop.swarm.validation import MAX_PEERS, SIGNATURE_BYTES, id_of
from outerloop.types import UserError

OPENING = "opening"
MAX_STATEMENT_BYTES = 512
"""Maximum size of one statement, in bytes."""
NAME_BYTES = 128
SignedStatement = tuple[bytes, bytes]
"""(statement, signature of its owner)."""


class OpeningStatements:
    """One peer's part in the exchange of opening statements. `own` is its name."""

    def __init__(self, transport: Transport, *, run: str, own: str, allowed: Callable[[str], bool]) -> None:
        max_bytes = MAX_PEERS * (NAME_BYTES + MAX_STATEMENT_BYTES + SIGNATURE_BYTES)
        self._meetings = Rendezvous(transport, run=f"{run}/{OPENING}", own=own, allowed=allowed, max_bytes=max_bytes)
        self._trust, self._own = transport.trust, own

    async def serve(self) -> None:
        await self._meetings.serve()

    async def common_checkpoint(
        self,
        own: Held | str,
        *,
        session: str,
        members: Collection[str],
        patience_s: float,
        on_status: Callable[[str], None],
    ) -> int | None:
        """Agree with the other members on the checkpoint to resume from. Return the inner step of this peer's own copy.

        Return None if most members start from scratch. `own`: the generations that this peer holds, or ANY. `on_status`
        is called with one line for each member that does not hold the chosen generation. Raises UserError if there is
        no majority (common_checkpoint.py), or if this peer does not hold the chosen generation. Before it raises the
        error, this peer waits until the others have read its statement.
        """
        statements = await self.state(pack_held(own), session=session, members=members, patience_s=patience_s)
        stated = {peer: unpack_held(content) for peer, content in statements.items()}
        held = {peer: generations for peer, generations in stated.items() if generations is not None}
        try:
            chosen = common(held, members=len(members))
            if why := objection(own, chosen):
                raise UserError(why)
        except UserError:
            await self._meetings.linger()
            raise
        for line in without(held, chosen):
            on_status(line)
        return own_step(own, chosen) if chosen else None

    async def state(
        self, statement: bytes, *, session: str, members: Collection[str], patience_s: float
    ) -> dict[str, bytes]:
        """Exchange statements, and return those that count, keyed by member name. They may include this peer's own.

        `patience_s`: how many seconds a live member may take to reach meeting 0 before it is left out.
        """
        assert len(statement) <= MAX_STATEMENT_BYTES
        if len(members) == 1:
            return {self._own: statement}
        signature = self._trust.signatures.sign(OPENING, session, self._own, statement)
        met = await self._meetings.meet(0, msgpack.packb([statement, signature]), members, patience_s=patience_s)
        valid = {peer: signed for peer, shown in met.items() if self._is_valid(signed := _read(shown), peer, session)}
        shown = await self._meetings.meet(1, msgpack.packb(valid), valid, patience_s=patience_s + MEET_S)
        return self._counted(shown, members, session)

    def _counted(self, shown: Mapping[str, bytes], members: Collection[str], session: str) -> dict[str, bytes]:
        valid: dict[str, set[SignedStatement]] = defaultdict(set)
        for reporter, content in shown.items():
            for peer, signed in _read_map(content).items():
                known = signed in valid[peer]
                if peer in members and peer != reporter and (known or self._is_valid(signed, peer, session)):
                    valid[peer].add(signed)
        statements = {peer: {statement for statement, _ in signed} for peer, signed in valid.items() if signed}
        for peer in [peer for peer, different in statements.items() if len(different) > 1]:
            self._trust.rejections.note(
                "ballots", peer, "signed different statements for different members at the start"
            )
            del statements[peer]
        return {peer: statement for peer, (statement,) in sorted(statements.items())}

    def _is_valid(self, signed: SignedStatement, peer: str, session: str) -> bool:
        statement, signature = signed
        return len(statement) <= MAX_STATEMENT_BYTES and self._trust.signatures.verify(
            signature, OPENING, session, peer, statement, by=id_of(peer)
        )


def _read(shown: bytes) -> SignedStatement:
    """Return a peer's own statement and its signature, both empty if `shown` is malformed."""
    try:
        return _signed(msgpack.unpackb(shown))
    except ValueError:  # the base class of every error that unpackb raises for malformed bytes
        return b"", b""


def _read_map(shown: bytes) -> dict[str, SignedStatement]:
    """Return the signed statements that a peer claims to have received, keyed by owner."""
    try:
        value = msgpack.unpackb(shown)
    except ValueError:
        return {}
    return {str(peer): _signed(signed) for peer, signed in value.items()} if isinstance(value, dict) else {}


def _signed(value: object) -> SignedStatement:
    if isinstance(value, list) and list(map(type, value)) == [bytes, bytes]:
        return value[0], value[1]
    return b"", b""
