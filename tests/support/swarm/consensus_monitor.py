"""What must hold of everything that peers of the agreement say and do, checked as it happens."""

from __future__ import annotations

from collections import defaultdict

from outerloop.swarm.consensus.commit import Commit, Participant, majority
from outerloop.swarm.consensus.messages import Accept, Message, Promise, Propose, Resigned
from outerloop.swarm.consensus.resignation import Resignation, remaining_peers
from outerloop.swarm.consensus.state import HardState


class Monitor:
    """Knows all: `chosen` is the commit of each round that a majority has accepted of those who have not resigned."""

    def __init__(self, genesis: Commit, *, min_peers: int) -> None:
        self.min_peers = min_peers
        self.chosen: dict[int, Commit] = {-1: genesis}
        self.applied = 0
        self._votes_for: dict[tuple[int, int], Commit] = {}
        self._own_promise: dict[tuple[str, int], int] = defaultdict(int)
        self._votes: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.resigned: set[Resignation] = set()

    def saved(self, peer: str, disk: HardState, payloads: set[tuple[int, Participant]]) -> None:
        """A vote is one from the moment that it is on disk, and so is a resignation."""
        for own in {one for one in disk.resignations if one.peer == peer} - self.resigned:
            assert not disk.has_voted or own.number != disk.number, "resigned after a vote in that round"
            self.resigned.add(own)
            self._choose(own.number)
            self._choose(own.number + 1)
        vote = disk.accepted
        if vote is None or peer in self._votes[disk.number, vote.view]:
            return
        commit, number = vote.commit, disk.number
        assert disk.promised == vote.view >= self._own_promise[peer, number], "a vote in a view before the one promised"
        assert commit.parent == self.chosen[number - 1].digest, "a vote that is no link of the chain"
        assert peer in self.chosen[number - 1].roster, "a vote from outside the roster"
        assert peer in self.remaining(number), "a vote of who has resigned"
        assert len(commit.participants) >= self.min_peers, "fewer participants than min_peers"
        self._check_roster(commit, set(self.chosen[number - 1].roster))
        assert all((number, one) in payloads for one in commit.participants), "a vote for payloads that are not held"
        known = self._votes_for.setdefault((number, vote.view), commit)
        assert known.digest == commit.digest, "two commits in one view"
        self._votes[number, vote.view].add(peer)
        self._choose(number)

    def remaining(self, number: int) -> tuple[str, ...]:
        """Who may vote in this round: all of the roster that have not resigned, whoever knows of it."""
        return remaining_peers(self.chosen[number - 1], self.resigned)

    def _choose(self, number: int) -> None:
        """More than half of those that may vote have accepted it: no other one can be decided any more."""
        for (of, view), commit in self._votes_for.items():
            if of == number and len(self._votes[number, view]) >= majority(self.remaining(number)):
                chosen = self.chosen.setdefault(number, commit)
                assert chosen.digest == commit.digest, "majorities chose two commits of one round"

    def _check_roster(self, commit: Commit, before: set[str]) -> None:
        """Who enters has a payload in the commit, and those who were in before and have one outvote all others.

        Who has one and leaves all the same has resigned, and enough stay.
        """
        present = {one.peer for one in commit.participants}
        entering, leaving = set(commit.roster) - before, before - set(commit.roster)
        assert entering <= present, "lets in a peer whose payload it does not count"
        assert leaving & present <= before - set(self.remaining(commit.number)), "drops a peer that takes part"
        assert len(present & before - leaving) >= self.min_peers, "fewer than min_peers stay that take part"
        if entering and len(commit.roster) > 2:
            stay = present & before - leaving
            assert len(stay) >= majority(commit.roster), "newcomers can take the majority with them"

    def said(self, peer: str, message: Message, disk: HardState) -> None:
        """`disk`: what this peer would find if it crashed now."""
        if disk.number > getattr(message, "number", disk.number):
            return  # over: the disk has its commit
        if isinstance(message, Resigned):
            own = {one for one in message.resignations if one.peer == peer}
            assert own <= set(disk.resignations), "a resignation that is not on disk"
        if isinstance(message, Promise):
            assert peer in self.remaining(message.number), "a promise of who has resigned"
            assert disk.promised >= message.view, "a promise that is not on disk"
            self._own_promise[peer, message.number] = message.view
        if isinstance(message, Propose):
            assert disk.accepted == message.accepted, "a proposal that its leader has not accepted on disk"
        if isinstance(message, Accept):
            assert disk.accepted is not None, "an accept that is not on disk"
            said = disk.accepted.view, disk.accepted.commit.digest
            assert said == (message.view, message.digest), "an accept that is not on disk"

    def did_apply(self, commit: Commit) -> None:
        assert commit.number in self.chosen, "applied what no majority has accepted"
        assert commit.digest == self.chosen[commit.number].digest, "two commits of one round"
        self.applied += 1
