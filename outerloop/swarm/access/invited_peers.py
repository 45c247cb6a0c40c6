"""The admissions and removals that a peer knows, merged so that all peers that know the same ones admit the same keys.

    two keys, one invite   the admission that was received first counts. The other one is kept as well, as evidence that
                           the token was used twice
    too many admissions    those received first are kept: MAX_PER_ISSUER of each issuer, MAX_ADMISSIONS in total
    two removals           the later one counts

The result does not depend on the order in which the statements arrive. It depends on the clocks of the listed peers,
because the times are those that these peers signed. If two listed peers receive bindings of one token before they hear
of each other's, the binding counts that was received by the peer whose clock is behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from outerloop.swarm.access.admissions import Admission, Removal
from outerloop.swarm.access.invites import Invite
from outerloop.swarm.validation import MAX_PEERS

MAX_PER_ISSUER = 64
"""Maximum number of used invites of one listed peer. `outerloop invite` also counts that peer's unused tokens."""
MAX_ADMISSIONS = MAX_PEERS
"""Maximum number of used invites, equal to the size of the largest roster. They take at most 2 MB, on disk and in an
answer to a poll."""
MAX_PER_INVITE = 2
"""Number of admissions that are kept for one invite: two prove that the token was used twice."""


@dataclass(frozen=True)
class InvitedPeers:
    """The known admissions and removals. This object is immutable: each change returns a new one.

    `admissions`: digest of the invite -> its admissions, in order. `removals`: peer id -> the latest removal.
    """

    admissions: Mapping[bytes, tuple[Admission, ...]] = field(default_factory=dict)
    removals: Mapping[str, Removal] = field(default_factory=dict)

    def with_statement(self, statement: Admission | Removal) -> InvitedPeers:
        """Return the known statements with this admission or removal added. It must be valid."""
        return self.with_admission(statement) if isinstance(statement, Admission) else self.with_removal(statement)

    def with_admission(self, admission: Admission) -> InvitedPeers:
        """Return the known statements with this admission added, unless earlier ones exceed a limit with it.

        The admission must be valid.
        """
        invite = admission.invite.digest
        known = {one.order: one for one in (*self.admissions.get(invite, ()), admission)}
        first = tuple(known[order] for order in sorted(known))[:MAX_PER_INVITE]
        return replace(self, admissions=_first_used({**self.admissions, invite: first}))

    def with_removal(self, removal: Removal) -> InvitedPeers:
        """Return the known statements with this removal added, unless a later one is known. It must be valid."""
        known = self.removals.get(removal.peer)
        if known is not None and known.order >= removal.order:
            return self
        return replace(self, removals={**self.removals, removal.peer: removal})

    @property
    def used(self) -> list[Admission]:
        """The admission that counts, for each used invite, in order."""
        return sorted((admissions[0] for admissions in self.admissions.values()), key=lambda one: one.order)

    @property
    def last(self) -> dict[str, int | None]:
        """Invited peer -> number of the last round in which it may take part, or None if there is no limit."""
        out: dict[str, int | None] = {}
        for one in self.used:
            other = out.get(one.peer, -1)
            out[one.peer] = None if one.last is None or other is None else max(one.last, other)
        return out

    @cached_property
    def known(self) -> frozenset[str]:
        """All peers named in an admission, including those whose invite another peer had used before."""
        return frozenset(one.peer for admissions in self.admissions.values() for one in admissions)

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(peer for peer, removal in self.removals.items() if not removal.lifted)

    def user_of(self, invite: Invite) -> str:
        """Return the id of the peer that an invite has admitted, or "" if it has not been used."""
        admissions = self.admissions.get(invite.digest)
        return admissions[0].peer if admissions else ""

    def number_by(self, issuer: str) -> int:
        """Return the number of used invites of a listed peer."""
        return sum(one.invite.issuer == issuer for one in self.used)

    def stopped_by(self, statement: Admission | Removal) -> set[str]:
        """Return the peers that may not take part because of this statement, which must be one of the known ones."""
        if isinstance(statement, Removal):
            return {statement.peer} & self.removed
        return {one.peer for one in self.admissions.get(statement.invite.digest, ())} - self.last.keys()

    def about(self, peer: str) -> list[Admission | Removal]:
        """Return the shared statements about one peer."""
        return [one for one in self.shared if one.peer == peer]

    @property
    def shared(self) -> list[Admission | Removal]:
        """The statements to send to other peers. Removals of listed peers are local and not included."""
        admissions = [one for admissions in self.admissions.values() for one in admissions]
        known = self.known
        removals = [removal for removal in self.removals.values() if removal.peer in known]
        return [*sorted(admissions, key=lambda one: one.order), *sorted(removals, key=lambda one: one.peer)]


def _first_used(admissions: Mapping[bytes, tuple[Admission, ...]]) -> dict[bytes, tuple[Admission, ...]]:
    """Return the first MAX_PER_ISSUER used invites of each issuer, and of these the first MAX_ADMISSIONS."""
    kept: dict[bytes, tuple[Admission, ...]] = {}
    by_issuer: Counter[str] = Counter()
    for invite, of_invite in sorted(admissions.items(), key=lambda one: one[1][0].order):
        by_issuer[of_invite[0].invite.issuer] += 1
        if by_issuer[of_invite[0].invite.issuer] <= MAX_PER_ISSUER and len(kept) < MAX_ADMISSIONS:
            kept[invite] = of_invite
    return kept
