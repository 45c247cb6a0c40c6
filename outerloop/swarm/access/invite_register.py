"""The register of invited and removed peers: stored next to the identity, and enforced by the allow-list.

    identity.access/register     the admissions and removals that this peer knows (invited_peers.py)
    identity.access/removal-*    removals by `outerloop expel`, which the running peer moves into its register
    identity.access/issued       digest and expiry of the tokens that `outerloop invite` has printed
    identity.access/address      the first address of the running peer, for `outerloop invite`

An admission counts if a listed peer issued the invite, a listed peer received the binding before the invite had
expired, and the three signatures are valid. A removal counts if a listed peer signed it and the removed peer was
invited. A peer's own removal of a listed peer counts on its machine only. Statements of listed peers that are expelled
are not accepted, but what was accepted before stays. At each start the register is checked again: without its issuer on
the list, an admission is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.access.invited_peers import InvitedPeers
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage, checked_int, fields, row, unpacked
from outerloop.types import UserError

logger = logging.getLogger(__name__)
REGISTER, REMOVAL, ISSUED, ADDRESS = "register", "removal-", "issued", "address"
FOLDER = "identity.access"
VERSION = 1
FUTURE_S = 600
"""A removal dated further in the future than this is not accepted: no later one could lift it."""
MAX_ROWS = 4096
"""Maximum number of statements in a register: two admissions for each used invite, and one removal for each peer."""
Statement = Admission | Removal


class InviteRegister:
    """The invited and removed peers that a running peer knows. It keeps `trust.allow` up to date.

    `now_s`: clock, Unix time. `on_removed` is called with the reason when this peer itself is removed.
    """

    def __init__(
        self,
        disk: Disk,
        trust: AccessControl,
        *,
        run: str,
        on_removed: Callable[[str], None] = lambda why: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Load the register. Raises UserError if the file is damaged."""
        self._disk, self._trust, self._run = disk, trust, run
        self._on_removed, self.now_s = on_removed, now_s
        self._writing = asyncio.Lock()
        self.peers = InvitedPeers()
        for statement in read_statements(disk):
            if not self.objection(statement) and statement.is_signed(trust.signatures):
                self._merge(statement)
        self._apply()

    @property
    def own(self) -> str:
        return self._trust.signatures.peer_id

    def objection(self, statement: Statement) -> str:
        """Return why a statement does not count on this machine, or "" if it does. The signatures are not checked."""
        if isinstance(statement, Admission):
            return self._objection_to_admission(statement)
        return self._objection_to_removal(statement)

    async def add(self, statements: Iterable[Statement]) -> list[Statement]:
        """Accept and store the statements that count on this machine. Return those that were new.

        Raises MalformedMessage at the first one with a signature that is not valid, after it has stored those before.
        """
        new, forged = list[Statement](), False
        for statement in statements:
            await asyncio.sleep(0)  # each takes up to a millisecond
            if self._has(statement) or self.objection(statement):
                continue
            if forged := not statement.is_signed(self._trust.signatures):
                break
            before = self.peers
            self._merge(statement)
            if self.peers != before:
                new.append(statement)
                _log(statement, self.peers)
        if new:
            self._apply()
            async with self._writing:  # one write at a time, always of the newest register
                await write_statements(self._disk, [*self.peers.shared, *self._local()])
        if forged:
            raise MalformedMessage("a signature in a statement about an invited peer is not valid")
        return new

    async def take_removals(self) -> list[Statement]:
        """Move the removals by `outerloop expel` into the register, and return the new ones."""
        new = list[Statement]()
        for name in [name for name in self._disk.names() if name.startswith(REMOVAL)]:
            removal = Removal.from_list(unpacked(bytes(self._disk.read(name)), "a removal"))
            if why := self.objection(removal):
                logger.warning("the removal of %s does not count: %s", removal.peer, why)
            new += await self.add([removal])
            self._disk.remove(name)
        return new

    def is_shared(self, statement: Statement) -> bool:
        """Return whether other peers accept a statement. A removal of a listed peer counts on this machine only."""
        return statement.peer not in self._trust.allow.configured

    def _has(self, statement: Statement) -> bool:
        if isinstance(statement, Admission):
            return statement in self.peers.admissions.get(statement.invite.digest, ())
        return self.peers.removals.get(statement.peer) == statement

    def _objection_to_admission(self, admission: Admission) -> str:
        invite, allow = admission.invite, self._trust.allow
        if invite.run != self._run:
            return f"the invite is for run {invite.run}"
        if not {invite.issuer, admission.receiver} <= allow.configured & allow.listed:
            return "the invite was not issued and received by listed peers"
        if admission.peer in allow.configured:
            return "the invited peer is listed"
        return "the invite had expired" if admission.at_s > invite.expires_s else ""

    def _objection_to_removal(self, removal: Removal) -> str:
        allow = self._trust.allow
        own_listed = removal.by == self.own and removal.peer in allow.configured
        if removal.run != self._run:
            return f"the removal is for run {removal.run}"
        if not own_listed and (removal.by not in allow.configured & allow.listed or removal.peer in allow.configured):
            return "only listed peers can remove invited peers"
        if not own_listed and removal.peer not in self.peers.known:
            return "the removed peer was not invited"
        return "the removal is dated in the future" if removal.at_s > self.now_s() + FUTURE_S else ""

    def _local(self) -> list[Removal]:
        return [one for one in self.peers.removals.values() if one.peer in self._trust.allow.configured]

    def _merge(self, statement: Statement) -> None:
        self.peers = _merged(self.peers, statement)

    def _apply(self) -> None:
        peers, allow = self.peers, self._trust.allow
        allow.invite(peers.last, known=peers.known, removed=peers.removed)
        if self.own in peers.removed:
            self._on_removed(allow.why_not(self.own))


def folder_of(identity: Path) -> Path:
    """Return the path of the folder with the register that belongs to an identity file."""
    return identity.with_suffix(".access")


def read_statements(disk: Disk) -> list[Statement]:
    """Return the statements on disk, not checked, including removals that no running peer has taken yet.

    Raises UserError if a file is damaged.
    """
    names = disk.names()
    try:
        found = from_bytes(bytes(disk.read(REGISTER))) if REGISTER in names else []
        waiting = [bytes(disk.read(name)) for name in names if name.startswith(REMOVAL)]
        return [*found, *(Removal.from_list(unpacked(content, "a removal")) for content in waiting)]
    except MalformedMessage as error:
        raise UserError(
            f"{error}: remove the files in {FOLDER} next to this peer's key, and the other peers will send them again"
        ) from error


async def write_statements(disk: Disk, statements: Iterable[Statement]) -> None:
    """Write the register, and return once it is synced to disk."""
    rows = [packed(statement) for statement in statements]
    await disk.write(REGISTER, msgpack.packb({"version": VERSION, "statements": rows}))


def from_bytes(content: bytes) -> list[Statement]:
    """Parse the content of the register file. Raises MalformedMessage if it is damaged or of another version."""
    value = fields(unpacked(content, "the register of invited peers"), "the register", ("version", "statements"))
    checked_int(value["version"], "the version of the register of invited peers", minimum=VERSION, maximum=VERSION)
    if type(value["statements"]) is not list or len(value["statements"]) > MAX_ROWS:
        raise MalformedMessage(f"the register of invited peers must have at most {MAX_ROWS} statements")
    return [parsed(one) for one in value["statements"]]


def packed(statement: Statement) -> list[Any]:
    """Return a statement as plain data: [kind, content]."""
    return ["admission" if isinstance(statement, Admission) else "removal", statement.to_list()]


def parsed(value: Any) -> Statement:
    """Parse the result of `packed`. Raises MalformedMessage if it is invalid. No signature is checked."""
    kind, content = row(value, 2, "a statement about invited peers must have a kind and a content")
    if kind not in ("admission", "removal"):
        raise MalformedMessage("a statement about invited peers must be an admission or a removal")
    return Admission.from_list(content) if kind == "admission" else Removal.from_list(content)


def _merged(peers: InvitedPeers, statement: Statement) -> InvitedPeers:
    if isinstance(statement, Admission):
        return peers.with_admission(statement)
    return peers.with_removal(statement)


def _log(statement: Statement, peers: InvitedPeers) -> None:
    if isinstance(statement, Removal):
        what = "may take part again" if statement.lifted else "is removed from the run"
        logger.warning("%s %s, as %s decided", statement.peer, what, statement.by)
    elif (user := peers.user_of(statement.invite)) != statement.peer:
        logger.warning("an invite by %s was used for %s and for %s", statement.invite.issuer, user, statement.peer)
    else:
        name, issuer = statement.invite.name or "without a name", statement.invite.issuer
        logger.info("%s (%s) was invited by %s and may take part", statement.peer, name, issuer)
