"""The answers of the peers to one poll about the members of a run that forms, and what they imply. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outerloop.swarm.membership.member_list import Members
from outerloop.swarm.membership.roster import Record, id_of


@dataclass
class MemberPoll:
    """One poll by one peer, `own`, of a run of `peers` peers.

    records          the roster records with this peer's settings, this peer's own included
    members          this peer's list: the first `peers` records in the order of joining
    silent           names in that list of other members that do not report the same list
    turned_away_by   names of the peers that reject this one
    formed_lists     lists of the peers that have formed, by peer name
    late             late joiners (peer id -> name) that each of these peers reports
    """

    run: str
    peers: int
    own: Record
    records: Sequence[Record]
    members: Members
    silent: set[str]
    turned_away_by: set[str] = field(default_factory=set)
    formed_lists: dict[str, Members] = field(default_factory=dict)
    late: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Sequence[Record], *, run: str, peers: int, own: Record) -> MemberPoll:
        """Return a poll without answers yet."""
        first = sorted(records, key=lambda record: (record.joined, record.peer_id))[:peers]
        members: Members = sorted([record.name, record.joined] for record in first)
        return cls(run, peers, own, records, members, {name for name, _ in members} - {own.name})

    @property
    def is_listed(self) -> bool:
        """Return whether this peer is in its own list."""
        return self.own.peer_id in _ids(self.members)

    @property
    def is_complete(self) -> bool:
        """Return whether this peer's list has enough members, itself included, to form."""
        return len(self.members) == self.peers and self.is_listed

    @property
    def is_rejected(self) -> bool:
        """Return whether all other peers reject this one."""
        return bool(self.turned_away_by) and len(self.turned_away_by) == len(self.others)

    @property
    def others(self) -> list[Record]:
        return [record for record in self.records if record.name != self.own.name]

    def majority_list(self) -> Members:
        """Return the list that more than half of the formed peers report, else []."""
        lists = list(self.formed_lists.values())
        return next((members for members in lists if 2 * lists.count(members) > len(lists)), [])

    def is_backed(self, formed: Members, *, is_member: bool, listed: frozenset[str]) -> bool:
        """Return whether enough peers report that this list has formed (formation.py names the voters).

        `listed`: ids on the allow-list whose reports count for a peer that is not in the list; empty: none.
        """
        reporters = {id_of(name) for name, members in self.formed_lists.items() if members == formed}
        if is_member:
            voters = _ids(formed)
            reporters.add(self.own.peer_id)
        else:
            voters = self._voters(listed)
        return 2 * len(reporters & voters) > len(voters)

    def describe_missing(self, waited_s: float) -> str:
        """Return why the run has not formed after `waited_s`, and what to do."""
        if self.formed_lists:
            return self._describe_started()
        count = len(self.records)
        present = f"after {waited_s:.0f} s {count} of {self.peers} peers are present ({_list(self.records)})"
        if count < self.peers:
            join = f"exchange.initial_peers=[{self.own.addresses[0]}]"
            return f"{present}, {self.peers - count} missing; start them with {join}, or set exchange.peers={count}"
        if count > self.peers:
            return f"{present}, too many; a run keeps its number of peers. Set exchange.peers={count}"
        if self.turned_away_by:
            return self.describe_rejection()
        silent = ", ".join(sorted(self.silent))
        return f"{present}, but these do not answer, or see other members: {silent}; can they be reached from here?"

    def describe_rejection(self) -> str:
        """Return which peers reject this one, and what to set there."""
        return (
            f"{', '.join(sorted(self.turned_away_by))} of run {self.run} reject this peer: there, "
            f"set exchange.allow=[...,{self.own.peer_id}]"
        )

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
