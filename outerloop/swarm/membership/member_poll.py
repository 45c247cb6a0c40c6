"""The answers to one poll about the members of a forming run, and the conclusions from these answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from outerloop.swarm.membership.member_list import Members
from outerloop.swarm.membership.roster import Record, id_of
from outerloop.swarm.p2p.greeting import why_rejected


@dataclass
class MemberPoll:
    """One poll by this peer, `own`, in a run of `peers` peers.

    records          the roster records with this peer's settings, including its own record
    members          this peer's member list: the first `peers` peers that joined, except `limited`, sorted by name
    silent           names of the other members that have not reported the same list
    limited          ids of the peers whose rounds may be over; they cannot be members
    turned_away_by   name of each peer that rejects this peer -> TurnedAway.why
    formed_lists     peer name -> the member list that it reports, for each peer that has formed
    late             peer name -> the late joiners (id -> name) that it reports, for each peer that has formed
    """

    run: str
    peers: int
    own: Record
    records: Sequence[Record]
    members: Members
    silent: set[str]
    limited: frozenset[str] = frozenset()
    turned_away_by: dict[str, str] = field(default_factory=dict)
    formed_lists: dict[str, Members] = field(default_factory=dict)
    late: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        *,
        run: str,
        peers: int,
        own: Record,
        limited: frozenset[str] = frozenset(),
    ) -> MemberPoll:
        """Return a poll without answers, whose member list is computed from the roster records."""
        unlimited = [record for record in records if record.peer_id not in limited]
        first = sorted(unlimited, key=lambda record: (record.joined, record.peer_id))[:peers]
        members: Members = sorted([record.name, record.joined] for record in first)
        return cls(run, peers, own, records, members, {name for name, _ in members} - {own.name}, limited)

    @property
    def is_listed(self) -> bool:
        """Return whether this peer is in its own member list."""
        return self.own.peer_id in _ids(self.members)

    @property
    def is_complete(self) -> bool:
        """Return whether this peer's member list has enough members to form the run and includes this peer."""
        return len(self.members) == self.peers and self.is_listed

    def is_rejected(self, listed: frozenset[str]) -> bool:
        """Return whether more than half of the peers reject this peer, so that the run cannot form with it.

        The number of peers is the largest of `peers`, the number of peers on the allow-list, whose ids are `listed`,
        and the number of peers present. Absent peers count too, because they may still come. So dishonest peers that
        come first, and are a minority, have no effect.
        """
        return 2 * len(self.turned_away_by) > max(len(self.records), self.peers, len(listed))

    @property
    def others(self) -> list[Record]:
        return [record for record in self.records if record.name != self.own.name]

    def majority_list(self) -> Members:
        """Return the member list that more than half of the formed peers report, or [] if there is none."""
        reported = Counter(tuple(map(tuple, members)) for members in self.formed_lists.values())
        [(most, count)] = reported.most_common(1) or [((), 0)]
        return [list(member) for member in most] if 2 * count > len(self.formed_lists) else []

    def is_backed(self, formed: Members, *, is_member: bool, listed: frozenset[str]) -> bool:
        """Return whether more than half of the voters report that the run has formed with the member list `formed`.

        formation.py defines the voters. `is_member`: whether this peer is in the list. `listed`: the ids on the
        allow-list, which vote if this peer is not in the list; empty if there is no allow-list.
        """
        reporters = {id_of(name) for name, members in self.formed_lists.items() if members == formed}
        if not is_member:
            voters = self._voters(listed)
            return 2 * len(reporters & voters) > len(voters)
        counted = (reporters | {self.own.peer_id}) & (_ids(formed) - self.limited)
        return 2 * len(counted) > max(len(formed), self.peers)

    def describe_missing(self, waited_s: float) -> str:
        """Return a message that states why the run has not formed after `waited_s`, and what to do."""
        if self.formed_lists:
            return self._describe_started()
        found = [record for record in self.records if record.peer_id not in self.limited]
        count = len(found)
        if not self.others and (self.peers == 1 or not found):  # this peer may not form the run alone
            return (
                f"after {waited_s:.0f} s, no other peer of run {self.run} is active (the run has ended or is"
                " interrupted): ask the operator of the run, or try again later"
            )
        names = f" ({_list(found)})" if found else ""
        present = f"after {waited_s:.0f} s, {count} of {self.peers} peers are present{names}"
        if count < self.peers:
            join = f"exchange.initial_peers=[{self.own.addresses[0]}]"
            return f"{present}, {self.peers - count} missing; start them with {join}, or set exchange.peers={count}"
        if count > self.peers:
            return f"{present}, too many; a run's number of peers is fixed. Set exchange.peers={count}"
        silent = ", ".join(sorted(self.silent - self.turned_away_by.keys()))
        if not silent:
            return present
        return (
            f"{present}, but these peers do not answer, or report other members: {silent};"
            " check that they can be reached"
        )

    def describe_rejection(self) -> str:
        """Return a message that names the peers that reject this peer, and states why and what to do, or ""."""
        if not self.turned_away_by:
            return ""
        [(why, _)] = Counter(self.turned_away_by.values()).most_common(1)
        names = ", ".join(sorted(self.turned_away_by))
        return f"{names} of run {self.run} reject this peer, {why_rejected(why, self.own.peer_id)}"

    def _describe_started(self) -> str:
        reporters = _list([record for record in self.records if record.name in self.formed_lists])
        if not self.majority_list():
            return f"run {self.run} has started, but these peers do not agree on its members: {reporters}"
        return f"run {self.run} has started according to {reporters}; more than half of the peers must report it"

    def _voters(self, listed: frozenset[str]) -> set[str]:
        known = listed or frozenset(_ids(self.members) if self.is_complete else ())
        return set(known - {self.own.peer_id}) or set(map(id_of, self.formed_lists))


def _ids(members: Members) -> set[str]:
    return {id_of(name) for name, _ in members}


def _list(records: Sequence[Record]) -> str:
    return ", ".join(sorted(record.name for record in records))
