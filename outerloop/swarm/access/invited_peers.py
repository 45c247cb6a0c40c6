"""Merge the admissions, removals and withdrawals that a peer knows.

Peers that know the same statements admit the same keys:

    two keys, one invite    the admission that was received first counts. The other one is kept as well, as evidence
                            that the token was used twice
    a withdrawn invite      no admission counts that was received at the time of the withdrawal or later. One that was
                            received earlier counts: the token had been used
    too many statements     those with the earliest dates are kept: MAX_PER_ISSUER admissions and MAX_PER_ISSUER
                            withdrawals of each issuer, MAX_ADMISSIONS of each kind in total. The same limits apply to
                            removals of peers whose admissions were left out (without_excess)
    two removals            the later one counts
    two withdrawals         of one invite: the earlier one counts

The result does not depend on the order in which the statements arrive. In particular, an admission that does not count
is kept like any other, so an admission and a withdrawal have the same result in either order.

The result depends on the clocks of the listed peers, because the times are those that these peers signed:

    Two listed peers receive bindings of one token at about the same time, before either knows of the other's binding.
    The binding with the earlier signed time counts, which may be the later one if that receiver's clock is behind.

    A receiver's clock is N seconds behind the issuer's. A token that it receives up to N seconds after the withdrawal
    counts as used before. But a receiver that knows the withdrawal refuses the token, whatever the clocks are
    (InviteService.objection).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from outerloop.swarm.access.admissions import Admission, Removal, Statement, Withdrawal
from outerloop.swarm.access.invites import Invite
from outerloop.swarm.validation import MAX_PEERS

Key = TypeVar("Key", bound=Hashable)
MAX_PER_ISSUER = 64
"""Maximum number of used invites of one listed peer, and separately of its withdrawn invites. `outerloop invite` limits
the sum of both and of the unused tokens to the same number. So a peer that uses this command can withdraw each of its
tokens."""
MAX_ADMISSIONS = MAX_PEERS
"""Maximum number of used invites of a run, equal to the size of the largest roster, and separately of withdrawn ones.
All statements together take at most 2.5 MB, on disk and in an answer to a poll."""
MAX_PER_INVITE = 2
"""Number of admissions that are kept for one invite: two prove that the token was used twice."""
KEEP_S = 30 * 86_400
"""Time for which a withdrawal is kept after the invite has expired. A listed peer that is cut off from all others for
longer may admit a key that the others then accept, because they have forgotten the withdrawal."""


@dataclass(frozen=True)
class InvitedPeers:
    """The known statements. This object is immutable: each change returns a new one.

    admissions    digest of the invite -> its admissions, the first one first
    removals      peer id -> the latest removal
    withdrawals   (issuer, digest of the invite) -> the earliest withdrawal
    """

    admissions: Mapping[bytes, tuple[Admission, ...]] = field(default_factory=dict)
    removals: Mapping[str, Removal] = field(default_factory=dict)
    withdrawals: Mapping[tuple[str, bytes], Withdrawal] = field(default_factory=dict)

    def with_statement(self, statement: Statement) -> InvitedPeers:
        """Return the known statements with this one added. It must be valid."""
        if isinstance(statement, Withdrawal):
            return self.with_withdrawal(statement)
        return self.with_admission(statement) if isinstance(statement, Admission) else self.with_removal(statement)

    def with_admission(self, admission: Admission) -> InvitedPeers:
        """Return the known statements with this admission added. If a limit is exceeded, the latest one is left out.

        The admission must be valid.
        """
        invite = admission.invite.digest
        known = {one.order: one for one in (*self.admissions.get(invite, ()), admission)}
        first = tuple(known[order] for order in sorted(known))[:MAX_PER_INVITE]
        admissions = {**self.admissions, invite: first}
        kept = _first_of_each_issuer((one[0].order, one[0].invite.issuer, key) for key, one in admissions.items())
        return replace(self, admissions={key: admissions[key] for key in kept})

    def with_removal(self, removal: Removal) -> InvitedPeers:
        """Return the known statements with this removal added, unless a later one is known. It must be valid."""
        known = self.removals.get(removal.peer)
        if known is not None and known.order >= removal.order:
            return self
        return replace(self, removals={**self.removals, removal.peer: removal})

    def with_withdrawal(self, withdrawal: Withdrawal) -> InvitedPeers:
        """Return the known statements with this withdrawal added, unless an earlier one of this invite is known.

        If a limit is exceeded, the latest withdrawal is left out. The withdrawal must be valid.
        """
        known = self.withdrawals.get(withdrawal.subject)
        if known is not None and known.order <= withdrawal.order:
            return self
        withdrawals = {**self.withdrawals, withdrawal.subject: withdrawal}
        kept = _first_of_each_issuer((one.order, one.issuer, key) for key, one in withdrawals.items())
        return replace(self, withdrawals={key: withdrawals[key] for key in kept})

    def without_excess(self, *, listed: Set[str]) -> InvitedPeers:
        """Return the known statements with few removals of forgotten peers.

        They are limited to MAX_PER_ISSUER by each signer, and to MAX_ADMISSIONS in total. A peer is forgotten if
        with_admission has left out its admissions. Its removal is kept because another admission of the peer may
        arrive; it is not sent. Removals of the peers in `listed` are all kept.
        """
        of_forgotten = self.removals.keys() - self.known - listed
        found = ((self.removals[peer].order, self.removals[peer].by, peer) for peer in of_forgotten)
        excess = of_forgotten.difference(_first_of_each_issuer(found))
        kept = {peer: removal for peer, removal in self.removals.items() if peer not in excess}
        return replace(self, removals=kept) if excess else self

    def without_outdated(self, *, now_s: float) -> InvitedPeers:
        """Return the known statements without the withdrawals that are no longer needed."""
        kept = {key: one for key, one in self.withdrawals.items() if self.needs(one, now_s=now_s)}
        return self if len(kept) == len(self.withdrawals) else replace(self, withdrawals=kept)

    def needs(self, withdrawal: Withdrawal, *, now_s: float) -> bool:
        """Return whether a withdrawal must be kept at the Unix time `now_s`.

        It is kept until KEEP_S after the invite has expired. If an admission does not count because of it, it is kept
        as long as this admission.
        """
        if now_s <= withdrawal.expires_s + KEEP_S:
            return True
        admissions = self.admissions.get(withdrawal.digest)
        return admissions is not None and _refuses(withdrawal, admissions[0])

    @cached_property
    def used(self) -> list[Admission]:
        """The admission that counts, for each used invite that has one, in order."""
        first = (admissions[0] for admissions in self.admissions.values())
        return sorted((one for one in first if self.withdrawal_of(one) is None), key=lambda one: one.order)

    @cached_property
    def last(self) -> dict[str, int | None]:
        """Invited peer -> number of the last commit in which it may take part, or None if there is no limit."""
        out: dict[str, int | None] = {}
        for one in self.used:
            other = out.get(one.peer, -1)
            out[one.peer] = None if one.last is None or other is None else max(one.last, other)
        return out

    @cached_property
    def known(self) -> frozenset[str]:
        """All peers named in an admission, also if their invite was withdrawn or used by another peer before."""
        return frozenset(one.peer for admissions in self.admissions.values() for one in admissions)

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(peer for peer, removal in self.removals.items() if not removal.lifted)

    @property
    def too_late(self) -> frozenset[str]:
        """The peers that used a withdrawn invite, and have no other one."""
        late = (admissions for admissions in self.admissions.values() if self.withdrawal_of(admissions[0]))
        return frozenset(one.peer for admissions in late for one in admissions) - self.last.keys()

    def user_of(self, invite: Invite) -> str:
        """Return the id of the peer that an invite has admitted, or "" if it has admitted none."""
        admissions = self.admissions.get(invite.digest)
        return admissions[0].peer if admissions and not self.withdrawal_of(admissions[0]) else ""

    def withdrawal_of(self, admission: Admission) -> Withdrawal | None:
        """Return the withdrawal because of which an admission does not count, or None."""
        withdrawal = self.withdrawals.get((admission.invite.issuer, admission.invite.digest))
        return withdrawal if withdrawal is not None and _refuses(withdrawal, admission) else None

    def number_by(self, issuer: str) -> int:
        """Return the number of invites of a listed peer that were used, withdrawn, or both."""
        used = {invite for invite, admissions in self.admissions.items() if admissions[0].invite.issuer == issuer}
        return len(used | {one.digest for one in self.withdrawals.values() if one.issuer == issuer})

    def stopped_by(self, statement: Statement) -> tuple[Statement, set[str]]:
        """Return the proof to send to the peers that a known statement stops, and the ids of these peers.

        A peer is stopped if it may not take part because of the statement. A removal stops the removed peer and is its
        own proof. An admission or a withdrawal stops all users of the invite that have no other invite which counts;
        the proof is the withdrawal, or else the first admission with this invite.
        """
        if isinstance(statement, Removal):
            return statement, {statement.peer} & self.removed
        digest = statement.digest if isinstance(statement, Withdrawal) else statement.invite.digest
        admissions = self.admissions.get(digest)
        if not admissions:
            return statement, set()
        return self.withdrawal_of(admissions[0]) or admissions[0], {one.peer for one in admissions} - self.last.keys()

    def about(self, peer: str) -> list[Statement]:
        """Return the shared admissions and removals of one peer."""
        return [one for one in self.shared if not isinstance(one, Withdrawal) and one.peer == peer]

    @property
    def shared(self) -> list[Statement]:
        """The statements to send to other peers. Removals of listed peers are local and not included.

        Admissions come first, because a removal, or a withdrawal of an invite that has expired, is accepted only by a
        peer that knows the admission.
        """
        admissions = [one for admissions in self.admissions.values() for one in admissions]
        known = self.known
        removals = [removal for removal in self.removals.values() if removal.peer in known]
        return [
            *sorted(admissions, key=lambda one: one.order),
            *sorted(removals, key=lambda one: one.peer),
            *sorted(self.withdrawals.values(), key=lambda one: one.order),
        ]


def _refuses(withdrawal: Withdrawal, admission: Admission) -> bool:
    """Return whether an admission does not count because of this withdrawal, which may be of another invite."""
    invite = admission.invite
    return (invite.issuer, invite.digest) == withdrawal.subject and admission.at_s >= withdrawal.at_s


def _first_of_each_issuer(statements: Iterable[tuple[tuple[Any, ...], str, Key]]) -> list[Key]:
    """Return the keys of the first MAX_PER_ISSUER statements of each issuer, and of these the first MAX_ADMISSIONS.

    `statements`: for each, its sort key, the issuer of its invite or the signer of the removal, and the key to return.
    The sort keys differ.
    """
    kept = list[Key]()
    by_issuer: Counter[str] = Counter()
    for _, issuer, key in sorted(statements, key=lambda one: one[0]):
        by_issuer[issuer] += 1
        if by_issuer[issuer] <= MAX_PER_ISSUER and len(kept) < MAX_ADMISSIONS:
            kept.append(key)
    return kept
