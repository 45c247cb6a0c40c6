"""Members of HotStuff-2 that say whatever may harm: they hear all that is sent, and sign with their own keys alone."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant, next_demoted
from outerloop.swarm.consensus.hotstuff.messages import PREPARE, NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import Message, Resigned, ViewChange, ViewWishes
from outerloop.swarm.consensus.quorum import TWO_THIRDS
from outerloop.swarm.consensus.resignation import Resignation, remaining_peers
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.votes import CommitCertificate, ViewWish
from outerloop.swarm.validation import MAX_VIEW
from tests.support.swarm.consensus_world import RUN, payload
from tests.support.swarm.hotstuff_world import HotStuffWorld
from tests.support.swarm.toy_signatures import toy_signature


class HotStuffLiars:
    """All that lie, together: each votes for everything. Each method is one lie, made up by `rng`."""

    def __init__(self, world: HotStuffWorld, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.lies: list[Callable[[HardState], None]] = [
            self.propose,
            self.split,
            self.split,
            self.vote,
            self.vote,
            self.prepare,
            self.prepare,
            self.decide,
            self.report,
            self.resign,
            self.wish,
            self.replay,
            self.garble,
            self.offer,
        ]

    def lie(self) -> None:
        """One lie about the round of an honest peer."""
        if self.world.liars and self.world.up:
            self.rng.choice(self.lies)(self.world[self.rng.choice(self.world.up)].hard_state)

    def propose(self, hard_state: HardState) -> None:
        """As a leader of some view: each of two commits, with any justification that there is, to different peers."""
        view = self.view(hard_state)
        name = hard_state.leader(view)
        if name not in self.world.liars:
            return
        locks: list[Lock | None] = [None, *(lock for lock in self.locks(hard_state) if lock.view < view)]
        for _ in range(2):
            lock = self.rng.choice(locks)
            commit = lock.commit if lock else self.commit(hard_state, view)
            unsigned = Proposal(commit, view, lock.certificate if lock else None, b"")
            proposal = replace(unsigned, signature=toy_signature(name, unsigned.statement))
            self.tell(name, ProposalMessage(proposal, self.wishes(hard_state, view)))

    def split(self, hard_state: HardState) -> None:
        """As the leader of the view at hand: one commit to some, another one to all others, who hear at once."""
        view = hard_state.promised
        name = hard_state.leader(view)
        if name not in self.world.liars:
            return
        peers = [peer for peer in self.world.up if self.world[peer].hard_state.head == hard_state.head]
        middle = self.rng.randint(1, len(peers))
        locks = [None, *(lock for lock in self.locks(hard_state) if lock.view < view)]
        self.rng.shuffle(peers)
        for side in (peers[:middle], peers[middle:]):
            lock = self.rng.choice(locks)
            commit = lock.commit if lock else self.commit(hard_state, view)
            unsigned = Proposal(commit, view, lock.certificate if lock else None, b"")
            proposal = replace(unsigned, signature=toy_signature(name, unsigned.statement))
            for peer in side:
                for participant in commit.participants:
                    self.world.give(peer, commit.number, participant)
                self.world.say(name, peer, ProposalMessage(proposal, self.wishes(hard_state, view)))
                self.world.deliver(len(self.world.network) - 1)

    def vote(self, hard_state: HardState) -> None:
        """For everything that was proposed, in both phases."""
        proposals = [one.proposal for one in self.heard(hard_state, ProposalMessage)]
        for name in self.world.liars:
            for proposal in self.rng.sample(proposals, min(2, len(proposals))):
                for statement in self.both(proposal):
                    phase, justified = statement[0], proposal.justified if statement[0] == PREPARE else UNJUSTIFIED
                    vote = Vote(
                        hard_state.number,
                        hard_state.head.digest,
                        proposal.view,
                        phase,
                        proposal.commit.digest,
                        justified,
                        toy_signature(name, statement),
                    )
                    self.tell(name, vote)

    def prepare(self, hard_state: HardState) -> None:
        """A certificate for which there are votes, as the leader of its view, to some."""
        for lock in self.rng.sample(locks := self.locks(hard_state), min(2, len(locks))):
            if (name := hard_state.leader(lock.view)) in self.world.liars:
                message = Prepared(hard_state.number, hard_state.head.digest, lock.certificate)
                self.tell(name, message, first=[peer for peer, _ in lock.certificate.votes])

    def decide(self, hard_state: HardState) -> None:
        """A commit for which there are votes, or not enough, to some."""
        counted = self.rng.choice([self.resignations(hard_state), ()])
        remaining = remaining_peers(hard_state.head, counted)
        for commit, view, votes in self.decisions(hard_state):
            if len(set(votes).intersection(remaining)) >= TWO_THIRDS.of(remaining) or self.rng.random() < 0.2:
                rows = tuple(sorted(votes.items()))
                decided = CommitCertificate(commit, view, rows, byzantine=True, resignations=counted)
                self.tell(self.world.liars[0], decided, first=list(votes))

    def report(self, hard_state: HardState) -> None:
        """No lock, or any that there is, to the leader of a view."""
        view = hard_state.promised + self.rng.randint(0, 2) or 1
        locks: list[Lock | None] = [None, *(lock for lock in self.locks(hard_state) if lock.view < view)]
        message = NewView(hard_state.number, hard_state.head.digest, view, self.rng.choice(locks))
        self.tell(self.rng.choice(self.world.liars), message)

    def resign(self, hard_state: HardState) -> None:
        """To some, and votes all the same; or passes on what honest peers said."""
        name, number, head = self.rng.choice(self.world.liars), hard_state.number, hard_state.head.digest
        own = Resignation(name, number, head, toy_signature(name, statements.resign(number, head)))
        said = self.rng.choice([(own,), (own,), self.resignations(hard_state)])
        self.tell(name, Resigned(number, head, said))

    def wish(self, hard_state: HardState) -> None:
        """The next view, or one far away, alone or with all wishes that were heard."""
        view = self.rng.choice([hard_state.promised + 1, hard_state.promised + 2, 1000, MAX_VIEW])
        name, where = self.rng.choice(self.world.liars), (hard_state.number, hard_state.head.digest)
        if self.rng.random() < 0.5:
            self.tell(name, ViewWishes(*where, self.wishes(hard_state, view)))
        else:
            self.tell(name, ViewChange(*where, view, toy_signature(name, statements.wish(*where, view))))

    def replay(self, hard_state: HardState) -> None:
        if self.world.heard:
            _, message = self.rng.choice(list(self.world.heard))
            self.tell(self.rng.choice(self.world.liars), message)

    def garble(self, hard_state: HardState) -> None:
        """A certificate with too few votes, or of another commit or view; a commit with a roster of its own."""
        view = self.view(hard_state)
        forged = self.commit(hard_state, view)
        forged = self.rng.choice([forged, replace(forged, roster=tuple(self.world.liars))])
        votes = tuple((peer, toy_signature(self.world.liars[0], ("x",))) for peer in hard_state.roster)
        certificate = PrepareCertificate(forged.digest, view, UNJUSTIFIED, votes[: self.rng.randint(0, len(votes))])
        name = self.rng.choice(self.world.liars)
        where = hard_state.number, hard_state.head.digest
        self.tell(name, Prepared(*where, certificate))
        self.tell(name, NewView(*where, view + 1, Lock(forged, certificate)))
        fresh = Proposal(forged, view, None, b"")
        proposal = replace(fresh, signature=toy_signature(name, fresh.statement))
        self.tell(name, ProposalMessage(proposal, ()))

    def offer(self, hard_state: HardState) -> None:
        """One of two payloads of a round, to some."""
        for name in self.world.liars:
            for to in self.some(self.world.up):
                self.world.give(to, hard_state.number, self.payload(name, hard_state.number))

    # what can be made of what was heard

    def heard(self, hard_state: HardState, kind: type) -> list:
        where = hard_state.number, hard_state.head.digest
        return [one for _, one in self.world.heard if isinstance(one, kind) and (one.number, one.head) == where]

    def resignations(self, hard_state: HardState) -> tuple[Resignation, ...]:
        """All that were said for this round, the liars' included."""
        said = [one.resignations for _, one in self.world.heard if isinstance(one, Resigned)]
        valid = {
            one
            for some in said
            for one in some
            if one.covers(hard_state.head)
            and one.peer in hard_state.roster
            and one.signature == toy_signature(one.peer, one.statement)
        }
        return tuple(sorted(valid))

    def both(self, proposal: Proposal) -> tuple[Statement, Statement]:
        commit = proposal.commit
        return proposal.statement, statements.commit(commit.number, commit.parent, proposal.view, commit.digest)

    def votes(self, hard_state: HardState) -> dict[Statement, dict[str, bytes]]:
        """Every vote that was signed, and those of the liars for whatever was proposed."""
        found: dict[Statement, dict[str, bytes]] = defaultdict(dict)
        where = hard_state.number, hard_state.head.digest
        for sender, message in self.world.heard:
            if not isinstance(message, Vote) or (message.number, message.head) != where:
                continue
            if message.signature == toy_signature(sender, message.statement):
                found[message.statement][sender] = message.signature
        for proposal in (one.proposal for one in self.heard(hard_state, ProposalMessage)):
            leader, prepare = hard_state.leader(proposal.view), proposal.statement
            if proposal.signature == toy_signature(leader, prepare):
                found[prepare][leader] = proposal.signature
            for statement in self.both(proposal):
                for name in set(self.world.liars).intersection(hard_state.roster):
                    found[statement][name] = toy_signature(name, statement)
        return found

    def locks(self, hard_state: HardState) -> list[Lock]:
        """Every certificate that can be formed, with its commit."""
        votes, found = self.votes(hard_state), {}
        remaining = remaining_peers(hard_state.head, self.resignations(hard_state))
        for proposal in (one.proposal for one in self.heard(hard_state, ProposalMessage)):
            given = votes[proposal.statement]
            if len(set(given).intersection(remaining)) >= TWO_THIRDS.of(remaining):
                rows = tuple(sorted(given.items()))
                found[proposal.statement] = Lock(
                    proposal.commit,
                    PrepareCertificate(proposal.commit.digest, proposal.view, proposal.justified, rows),
                )
        return list(found.values())

    def decisions(self, hard_state: HardState) -> Iterator[tuple[Commit, int, dict[str, bytes]]]:
        votes = self.votes(hard_state)
        for proposal in (one.proposal for one in self.heard(hard_state, ProposalMessage)[-6:]):
            yield proposal.commit, proposal.view, votes[self.both(proposal)[1]]

    def commit(self, hard_state: HardState, view: int) -> Commit:
        """A valid commit of some of the payloads that there are."""
        owners = self.some(hard_state.roster, least=self.world.gather_policy.min_peers)
        participants = tuple(self.payload(peer, hard_state.number) for peer in sorted(owners))
        history = [decided.commit for decided in hard_state.log]
        roster = next_roster(
            history,
            participants,
            session=RUN,
            view=view,
            absent_rounds=self.world.absent_rounds,
            quorum=TWO_THIRDS,
            resigned=self.rng.choice([hard_state.resigned, ()]),
            min_peers=self.world.gather_policy.min_peers,
        )
        demoted = next_demoted(RUN, hard_state.head, view, roster)
        return Commit(hard_state.number, hard_state.head.digest, view, participants, roster, (), demoted)

    def wishes(self, hard_state: HardState, view: int) -> tuple[ViewWish, ...]:
        """The wishes that were heard, and the liars' own."""
        where = hard_state.number, hard_state.head.digest
        heard = {
            sender: ViewWish(sender, one.view, one.signature)
            for sender, one in self.world.heard
            if isinstance(one, ViewChange) and (one.number, one.head) == where
        }
        own = {
            name: ViewWish(name, view, toy_signature(name, statements.wish(*where, view))) for name in self.world.liars
        }
        return tuple(sorted((heard | own).values()))

    # small things

    def view(self, hard_state: HardState) -> int:
        """Mostly one that a liar leads, not far from the one at hand."""
        near = range(hard_state.promised, hard_state.promised + len(hard_state.roster))
        led = [view for view in near if hard_state.leader(view) in self.world.liars]
        return led[0] if led and self.rng.random() < 0.8 else self.rng.choice(near)

    def payload(self, name: str, number: int) -> Participant:
        one = payload(name, number)
        return one if name not in self.world.liars or self.rng.random() < 0.7 else replace(one, digest=bytes(32))

    def some(self, peers, *, least: int = 0) -> list[str]:
        return self.rng.sample(list(peers), self.rng.randint(min(least, len(peers)), len(peers)))

    def tell(self, name: str, message: Message, *, first: Collection[str] = ()) -> None:
        """To some of the peers, or to those that come `first` alone."""
        chosen = set(first).intersection(self.world.up) if self.rng.random() < 0.5 else ()
        for to in sorted(chosen) or self.some(self.world.up):
            self.world.say(name, to, message)
