"""A world of peers of HotStuff-2 beside liars, and what must hold of all that the honest ones save, say and apply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from outerloop.swarm.accountability.contradictions import contradiction
from outerloop.swarm.consensus.commit import Commit, Participant, max_faulty
from outerloop.swarm.consensus.effects import ApplyCommit, Effect, Send
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, NewView, ProposalMessage, Vote
from outerloop.swarm.consensus.messages import Message, Resigned
from outerloop.swarm.consensus.quorum import TWO_THIRDS
from outerloop.swarm.consensus.resignation import Resignation, remaining_peers
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.consensus_world import World
from tests.support.swarm.toy_signatures import toy_signature


class HotStuffMonitor:
    """`commits`: what honest peers applied, by round. `tolerated`: whether no roster so far has too many liars.

    `safe`: whether the liars are at most a third of those that remain, once the honest peers that have resigned are
    gone. That is less than what is `tolerated`, with which rounds continue as well.
    """

    def __init__(self, genesis: Commit, liars: Collection[str]) -> None:
        self.liars, self.tolerated, self.safe, self.applied = liars, True, True, 0
        self.resigned: set[Resignation] = set()
        self.commits: dict[int, Commit] = {genesis.number: genesis}
        self.signed: dict[tuple[str, int], set[Statement]] = defaultdict(set)
        self._views: dict[tuple[str, bytes], int] = defaultdict(int)
        self._check_roster(genesis)

    @property
    def chosen(self) -> dict[int, Commit]:
        return self.commits

    def saved(self, peer: str, disk: HardState, payloads: set[tuple[int, Participant]]) -> None:
        at = peer, disk.head.digest
        assert disk.promised >= self._views[at], "back to an earlier view"
        self._views[at] = disk.promised
        for own in {one for one in disk.resignations if one.peer == peer} - self.resigned:
            assert not disk.has_voted or own.number != disk.number, "resigned after a vote in that round"
            self.resigned.add(own)
            for number in (own.number, own.number + 1):
                if number - 1 in self.commits:
                    self._check_roster(self.commits[number - 1])
        if vote := disk.accepted:
            assert peer in remaining_peers(disk.head, self.resigned), "a vote of who has resigned"
            assert vote.view <= disk.promised, "a vote in a view that is not on disk"
            assert all((disk.number, one) in payloads for one in vote.commit.participants), "payloads that are not held"
        if lock := disk.lock:
            roster = disk.counted_peers([name for name, _ in lock.certificate.votes])
            needed = TWO_THIRDS.of(roster)
            statement = lock.certificate.statement(disk.number, disk.head.digest)
            signers = {name for name, said in lock.certificate.votes if said == toy_signature(name, statement)}
            assert len(signers.intersection(roster)) >= needed, "locked on what no quorum has prepared"
            assert lock.certificate.digest == lock.commit.digest, "locked on another commit than the certificate's"

    def said(self, peer: str, message: Message, disk: HardState) -> None:
        """`disk`: what this peer would find if it crashed now. Nothing said contradicts what it said before."""
        if disk.number > getattr(message, "number", disk.number):
            return
        if isinstance(message, Resigned):
            own = {one for one in message.resignations if one.peer == peer}
            assert own <= set(disk.resignations), "a resignation that is not on disk"
        if isinstance(message, NewView):
            assert disk.promised >= message.view, "a report of a view that is not on disk"
            assert message.lock == disk.lock, "a report of another lock than the one on disk"
        if isinstance(message, ProposalMessage):
            assert disk.accepted == message.proposal, "a proposal that is not on disk"
            self._signs(peer, message.proposal.statement)
        if isinstance(message, Vote):
            saved = disk.lock if message.phase == COMMIT else disk.accepted
            assert saved is not None and saved.view == message.view, "a vote that is not on disk"
            assert saved.commit.digest == message.digest, "a vote for another commit than the one on disk"
            self._signs(peer, message.statement)

    def did_apply(self, commit: Commit) -> None:
        known = self.commits.setdefault(commit.number, commit)
        assert known.digest == commit.digest or not self.safe, "two commits of one round"
        self._check_roster(commit)
        self.applied += 1

    def learned(self, head: Commit, decided: CommitCertificate) -> None:
        """A quorum of those that remain has signed the commit vote."""
        signers = {name for name, said in decided.accepts if said == toy_signature(name, decided.statement)}
        remaining = remaining_peers(head, decided.resignations, voters=[name for name, _ in decided.accepts])
        assert len(signers.intersection(remaining)) >= TWO_THIRDS.of(remaining), "applied without a quorum"

    def _signs(self, peer: str, statement: Statement) -> None:
        before = self.signed[peer, int(statement[1])]
        assert not any(contradiction(statement, other) for other in before), f"{peer} contradicts itself"
        before.add(statement)

    def _check_roster(self, commit: Commit) -> None:
        lying = len(set(commit.roster).intersection(self.liars))
        remaining = remaining_peers(commit, self.resigned)
        self.tolerated &= bool(remaining) and lying <= max_faulty(remaining)
        self.safe &= 3 * lying <= len(remaining)


class HotStuffWorld(World):
    """The liars run no machines. They hear everything: `heard` is all that was ever sent, with its sender."""

    protocol = HotStuffChain

    def __init__(self, members: Iterable[str], outsiders: Iterable[str] = (), *, liars: str, **options: object) -> None:
        self.liars = liars.split()
        self.heard: dict[tuple[str, Message], None] = {}  # in order
        super().__init__(members, outsiders, **options)  # type: ignore[arg-type]
        genesis = self.monitor.chosen[-1]
        self.monitor = HotStuffMonitor(genesis, self.liars)  # type: ignore[assignment]

    @property
    def honest(self) -> list[str]:
        return [name for name in self.peers if name not in self.liars]

    def start(self, name: str) -> None:
        if name not in self.liars:
            super().start(name)

    def _carry_out(self, name: str, output: Effect) -> None:
        super()._carry_out(name, output)
        if isinstance(output, Send):
            self.heard.setdefault((name, output.message))
        if isinstance(output, ApplyCommit) and len(log := self[name].hard_state.log) > 1:
            self.monitor.learned(log[-2].commit, log[-1])  # type: ignore[attr-defined]

    def answers(self, source: str) -> bool:
        return source not in self.liars and super().answers(source)

    def say(self, by: str, to: str, message: Message) -> None:
        """From a liar to a peer."""
        self.heard.setdefault((by, message))
        self.network.append((by, to, message))
