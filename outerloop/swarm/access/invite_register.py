"""Keep the register of invited peers, removed peers and withdrawn invites, and apply it to the allow-list.

The register is stored next to the identity (register_files.py). A statement counts under these conditions:

    admission    a listed peer issued the invite, a listed peer received the binding before the invite had expired, and
                 the three signatures are valid
    removal      a listed peer signed it, and the removed peer was invited. A peer can also remove a listed peer, but
                 this removal counts only on the machine of the peer that signed it
    withdrawal   the listed peer that issued the invite signed it, before the invite had expired. No other peer may sign
                 it, because no other peer knows an unused invite, and because a withdrawal cannot be lifted

If several statements about one peer or one invite count, invited_peers.py decides which of them has an effect.
Statements of listed peers that are expelled are not accepted, but statements that were accepted before the expulsion
remain. At each start, the statements on disk are checked again: for example, an admission is dropped if its issuer or
its receiver is no longer on the list.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.access.admissions import Admission, Removal, Statement, Withdrawal
from outerloop.swarm.access.invited_peers import InvitedPeers
from outerloop.swarm.access.register_files import read_waiting, stored, waiting, write_statements
from outerloop.swarm.storage import Disk
from outerloop.swarm.validation import MalformedMessage

logger = logging.getLogger(__name__)
FUTURE_S = 600
"""A removal or a withdrawal that is dated more than this number of seconds in the future is not accepted. Otherwise, a
removal could be dated so late that it cannot be lifted, because only a later statement lifts it."""


class InviteRegister:
    """The invited peers, removed peers and withdrawn invites that a running peer knows.

    It keeps `trust.allow` up to date.

    invites      whether invited peers may take part; if not, only removals have an effect
    on_removed   called with the reason when this peer itself may no longer take part
    now_s        clock, Unix time
    """

    def __init__(
        self,
        disk: Disk,
        trust: AccessControl,
        *,
        run: str,
        invites: bool = True,
        on_removed: Callable[[str], None] = lambda why: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Load the register. Raises UserError if the file is damaged."""
        self._disk, self._trust, self._run, self._invites = disk, trust, run, invites
        self._on_removed, self.now_s = on_removed, now_s
        self._writing = asyncio.Lock()
        self.peers = InvitedPeers()
        for statement in stored(disk):
            if not self.objection(statement) and statement.is_signed(trust.signatures):
                self.peers = self.peers.with_statement(statement)
        self._apply()

    @property
    def own(self) -> str:
        return self._trust.signatures.peer_id

    def objection(self, statement: Statement) -> str:
        """Return why a statement does not count on this machine, or "" if it does. The signatures are not checked."""
        if isinstance(statement, Admission):
            return self._objection_to_admission(statement)
        if isinstance(statement, Withdrawal):
            return self._objection_to_withdrawal(statement)
        return self._objection_to_removal(statement)

    async def add(self, statements: Iterable[Statement]) -> list[Statement]:
        """Accept and store the statements that count on this machine. Return those that were new.

        Of several removals of one peer, only the last is considered, and of several withdrawals of one invite only the
        first. If a signature is not valid, this and all further statements are ignored: the earlier ones are stored,
        then MalformedMessage is raised.
        """
        new, forged = list[Statement](), False
        for statement in _without_superseded(statements):
            await asyncio.sleep(0)  # other tasks may run: checking one statement takes up to a millisecond
            if self._has(statement) or self.objection(statement):
                continue
            if forged := not statement.is_signed(self._trust.signatures):
                break
            before = self.peers
            self.peers = self.peers.with_statement(statement)
            if self.peers != before:
                new.append(statement)
                _log(statement, self.peers)
        if new:
            self.peers = self.peers.without_excess(listed=self._trust.allow.configured)
            self._apply()
            async with self._writing:  # one write at a time, always of the newest register
                await write_statements(self._disk, [*self.peers.shared, *self._local()])
        if forged:
            raise MalformedMessage("a signature in a statement about an invited peer is not valid")
        return new

    async def take_waiting(self) -> list[Statement]:
        """Add the statements in the files that commands have written, remove these files, and return the new ones."""
        new = list[Statement]()
        for name in waiting(self._disk):
            try:
                statement = read_waiting(self._disk, name)
                if why := self.objection(statement):
                    logger.warning("%s does not count: %s", _described(statement), why)
                new += await self.add([statement])
            except MalformedMessage as error:
                logger.warning("the statement in %s is damaged (%s): run the command again", name, error)
            self._disk.remove(name)
        return new

    def forget_outdated(self) -> None:
        """Drop the withdrawals that are no longer needed. The file on disk changes when the register is next written.

        Call this every few seconds, so that all peers drop a withdrawal at about the same time: peers whose registers
        differ send each other all their statements.
        """
        self.peers = self.peers.without_outdated(now_s=self.now_s())

    def cost(self, statements: Iterable[Statement]) -> int:
        """Return the number of statements whose signatures `add` would check."""
        return sum(not self._has(one) and not self.objection(one) for one in _without_superseded(statements))

    def is_shared(self, statement: Statement) -> bool:
        """Return whether other peers accept a statement. A removal of a listed peer counts on this machine only."""
        return isinstance(statement, Withdrawal) or statement.peer not in self._trust.allow.configured

    def _has(self, statement: Statement) -> bool:
        if isinstance(statement, Admission):
            return statement in self.peers.admissions.get(statement.invite.digest, ())
        if isinstance(statement, Withdrawal):
            return self.peers.withdrawals.get(statement.subject) == statement
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

    def _objection_to_withdrawal(self, withdrawal: Withdrawal) -> str:
        allow, now_s = self._trust.allow, self.now_s()
        if withdrawal.run != self._run:
            return f"the withdrawal is for run {withdrawal.run}"
        if withdrawal.issuer not in allow.configured & allow.listed:
            return "the issuer of the invite is not listed"
        if withdrawal.at_s > withdrawal.expires_s or not self.peers.needs(withdrawal, now_s=now_s):
            return "the invite had expired"
        return "the withdrawal is dated in the future" if withdrawal.at_s > now_s + FUTURE_S else ""

    def _local(self) -> list[Removal]:
        return [one for one in self.peers.removals.values() if one.peer in self._trust.allow.configured]

    def _apply(self) -> None:
        peers, allow = self.peers, self._trust.allow
        last, known = (peers.last, peers.known) if self._invites else ({}, frozenset[str]())
        allow.set_register(last, known=known, removed=peers.removed, too_late=peers.too_late)
        if self.own in peers.removed | (known - last.keys()):
            self._on_removed(allow.why_not(self.own))


def _without_superseded(statements: Iterable[Statement]) -> list[Statement]:
    """Return the statements without those that another one of them supersedes.

    The last removal of a peer and the first withdrawal of an invite supersede the others.
    """
    given = list(statements)
    removals = sorted((one for one in given if isinstance(one, Removal)), key=lambda one: one.order)
    withdrawals = sorted((one for one in given if isinstance(one, Withdrawal)), key=lambda one: one.order)
    last = {one.peer: one for one in removals}
    first = {one.subject: one for one in reversed(withdrawals)}
    kept = {id(one) for one in (*last.values(), *first.values())}
    return [one for one in given if isinstance(one, Admission) or id(one) in kept]


def _described(statement: Removal | Withdrawal) -> str:
    if isinstance(statement, Withdrawal):
        return f"the withdrawal of the token {statement.digest[:4].hex()}"
    return f"the removal of {statement.peer}"


def _log(statement: Statement, peers: InvitedPeers) -> None:
    if isinstance(statement, Removal):
        what = "may take part again" if statement.lifted else "is removed from the run"
        logger.warning("%s %s, as %s decided", statement.peer, what, statement.by)
    elif isinstance(statement, Withdrawal):
        _log_withdrawal(statement, peers)
    elif peers.withdrawal_of(statement):
        logger.warning("%s used an invite by %s that was withdrawn before", statement.peer, statement.invite.issuer)
    elif (user := peers.user_of(statement.invite)) != statement.peer:
        logger.warning("an invite by %s was used for %s and for %s", statement.invite.issuer, user, statement.peer)
    else:
        name, issuer = statement.invite.name or "without a name", statement.invite.issuer
        logger.info("%s (%s) was invited by %s and may take part", statement.peer, name, issuer)


def _log_withdrawal(withdrawal: Withdrawal, peers: InvitedPeers) -> None:
    token, issuer = withdrawal.digest[:4].hex(), withdrawal.issuer
    admissions = peers.admissions.get(withdrawal.digest)
    if not admissions:
        logger.info("the token %s by %s is withdrawn", token, issuer)
    elif peers.withdrawal_of(admissions[0]):
        logger.warning("the token %s by %s is withdrawn: %s may not take part", token, issuer, admissions[0].peer)
    else:
        what = "the token %s by %s was used by %s before it was withdrawn: outerloop expel removes that peer"
        logger.warning(what, token, issuer, admissions[0].peer)
