"""Every world that three honest peers of four can get to in one round of HotStuff-2, beside a liar that leads view 0.

The liar shows each either of two commits, votes for both in both phases, passes on every certificate for which it has
the votes to whomever it likes, wants view 1, reports no lock or any there, and votes there for whatever is proposed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from outerloop.swarm.accountability.contradictions import contradiction
from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.effects import Effect
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import Message, ViewChange
from outerloop.swarm.consensus.quorum import TWO_THIRDS
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.consensus_state_space import Event, Space, World, _bits
from tests.support.swarm.consensus_world import payload
from tests.support.swarm.toy_signatures import toy_signature

Said = tuple[str, str, Message]


class HotStuffSpace(Space):
    """`reports`: whether the liar reports locks in view 1, and votes there."""

    names, roster = ("k0", "k1", "k2"), ("k0", "k1", "k2", "k3")
    protocol = HotStuffChain
    LIAR = "k3"

    def __init__(self, *, timeouts: int, crashes: int, wished: bool = False, reports: bool = False) -> None:
        self._reports, self._silent = reports, False
        super().__init__(timeouts=timeouts, crashes=crashes, wished=wished)

    def go_on(self, world: World) -> World:
        """Nothing is lost any more, leaders wait for what is on its way, timeouts come when nothing else does.

        The liar has said what it has said: nothing more comes of it.
        """
        self._silent = True
        try:
            return self._honest_only(world)
        finally:
            self._silent = False

    def _honest_only(self, world: World) -> World:
        for _ in range(20):
            for event in ("reports", "timeout"):
                world = self._deliver_all(world._replace(timeouts=len(self.names)))
                if self.decided(world) == len(self.names):
                    return world
                for who in range(len(self.names)):
                    (world, *_) = self._moves(world, who, event, crashes=0)
        raise AssertionError("no decision in 20 views")

    def _begin(self, timeouts: int, crashes: int) -> World:
        world = super()._begin(timeouts, crashes)
        self._where = hard_state = self._peers[world.peers[0]].disk
        assert hard_state.leader(0) == self.LIAR
        self._head = hard_state.number, hard_state.head.digest
        participants = tuple(payload(peer, hard_state.number) for peer in self.names)
        self._commits = [Commit(*self._head, 0, counted, self.roster) for counted in (participants, participants[:2])]
        said: list[Said] = []
        for commit in self._commits:
            unsigned = Proposal(commit, 0, None, b"")
            proposal = replace(unsigned, signature=toy_signature(self.LIAR, unsigned.statement))
            said += [(self.LIAR, to, ProposalMessage(proposal, ())) for to in self.names]
        wish = ViewChange(*self._head, 1, toy_signature(self.LIAR, statements.wish(*self._head, 1)))
        said += [(self.LIAR, to, wish) for to in self.names]
        said += [(self.LIAR, hard_state.leader(1), NewView(*self._head, 1, None))] if self._reports else []
        return world._replace(sent=world.sent | sum(1 << self._bit(one) for one in said))

    def _give(self, machine: Chain) -> list[Effect]:
        """The honest ones' payloads are all that will come."""
        return [*super()._give(machine), *machine.deadline(0)]

    def _sent(self, message: Message) -> Message:
        """Wishes travel on their own as well."""
        return replace(message, wishes=()) if isinstance(message, ProposalMessage) else message

    def _following(self, world: World) -> Iterator[tuple[Event, World]]:
        yield from super()._following(world)
        for who, index in enumerate(world.peers):
            if self._peers[index].machine.collects_reports:
                for following in self._moves(world, who, "reports", crashes=world.crashes):
                    yield "reports", following

    def _act(self, machine: Chain, event: Event) -> list[Effect]:
        if event == "reports":
            machine._effects = []  # noqa: SLF001
            return machine.reports_over(0, machine.view)
        return super()._act(machine, event)

    def _arriving(self, world: World) -> list[Event]:
        said = [self._messages[bit] for bit in _bits(world.sent)]
        if self._silent:
            return [bit for bit in super()._arriving(world) if self._messages[int(bit)][0] != self.LIAR]
        lies = [*self._of_view_0(said), *(self._of_view_1(said) if self._reports else ())]
        return [*super()._arriving(world), *(self._bit(one) for one in lies)]

    def _of_view_0(self, said: list[Said]) -> Iterator[Said]:
        """The certificates of both phases for which the liar has the votes: with the first that there are."""
        for commit in self._commits:
            prepare = statements.prepare(*self._head, 0, commit.digest, UNJUSTIFIED)
            if votes := self._quorum(said, prepare):
                certificate = PrepareCertificate(commit.digest, 0, UNJUSTIFIED, votes)
                yield from ((self.LIAR, to, Prepared(*self._head, certificate)) for to in self.names)
                if self._reports:
                    yield self.LIAR, self._where.leader(1), NewView(*self._head, 1, Lock(commit, certificate))
            if votes := self._quorum(said, statements.commit(*self._head, 0, commit.digest)):
                decided = CommitCertificate(commit, 0, votes, byzantine=True)
                yield from ((self.LIAR, to, decided) for to in self.names)

    def _of_view_1(self, said: list[Said]) -> Iterator[Said]:
        """The liar's votes for what the honest leader proposes."""
        for sender, _, message in said:
            if isinstance(message, ProposalMessage) and sender != self.LIAR:
                of = message.proposal
                commit = statements.commit(*self._head, of.view, of.commit.digest)
                for statement, justified in ((of.statement, of.justified), (commit, UNJUSTIFIED)):
                    signature, phase = toy_signature(self.LIAR, statement), str(statement[0])
                    vote = Vote(*self._head, of.view, phase, of.commit.digest, justified, signature)
                    yield self.LIAR, sender, vote

    def _quorum(self, said: list[Said], statement: statements.Statement) -> tuple[tuple[str, bytes], ...]:
        voters = sorted({one[0] for one in said if isinstance(one[2], Vote) and one[2].statement == statement})
        needed = TWO_THIRDS.of(self.roster) - 1
        votes = [(peer, toy_signature(peer, statement)) for peer in (*voters[:needed], self.LIAR)]
        return tuple(votes) if len(voters) >= needed else ()

    def _check_said(self, messages: list[Said]) -> None:
        """No honest peer contradicts itself, whatever crashes."""
        signed: dict[str, set[statements.Statement]] = defaultdict(set)
        for sender, _, message in messages:
            if sender in self.names and isinstance(message, Vote | ProposalMessage):
                of = message if isinstance(message, Vote) else message.proposal
                signed[sender].add(of.statement)
        for said in signed.values():
            assert not any(contradiction(one, other) for one in said for other in said), "a vote against another"
