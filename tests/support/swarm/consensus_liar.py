"""Members of the agreement that say whatever may harm: they know what all hold, and sign with their own keys alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import pairwise

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant, leader, majority, minority, next_demoted
from outerloop.swarm.consensus.effects import ApplyCommit, Effect, Send
from outerloop.swarm.consensus.messages import (
    Accept,
    JoinRequest,
    Message,
    Promise,
    Propose,
    Resigned,
    ViewChange,
    ViewWishes,
)
from outerloop.swarm.consensus.proof import has_majority, newest_provable_commit, peers_ahead, voters_of
from outerloop.swarm.consensus.resignation import Resignation, remaining_peers
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate, Pledge, ViewWish
from outerloop.swarm.validation import MAX_VIEW, id_of
from tests.support.swarm.consensus_guilt import convicted
from tests.support.swarm.consensus_world import World, payload
from tests.support.swarm.toy_signatures import SESSION, accept_of, toy_signature


class Witness:
    """What must hold of honest peers beside liars. `commits`: all that were applied, by round."""

    def __init__(self, liars: Collection[str]) -> None:
        self.liars = liars
        self.commits: dict[int, set[Commit]] = {}
        self.votes: set[tuple[str, int, int, bytes]] = set()
        self.applied = 0
        self.resigned: set[Resignation] = set()

    @property
    def chosen(self) -> dict[int, Commit]:
        return {number: next(iter(commits)) for number, commits in self.commits.items()}

    @property
    def forks(self) -> list[int]:
        """How many peers could decide the first round that came to two things: those who had not resigned."""
        first = min(number for number, commits in self.commits.items() if len(commits) > 1)
        return [len(remaining_peers(one, self.resigned)) for one in self.commits.get(first - 1, ())]

    @property
    def forked(self) -> bool:
        return any(len(commits) > 1 for commits in self.commits.values())

    def saved(self, peer: str, disk: HardState, payloads: set[tuple[int, Participant]]) -> None:
        self.resigned |= {one for one in disk.resignations if one.peer == peer}
        assert not disk.has_voted or peer in remaining_peers(disk.head, self.resigned), "a vote of who has resigned"
        if vote := disk.accepted:
            assert all((disk.number, one) in payloads for one in vote.commit.participants), "payloads that are not held"
            self.votes.add((peer, disk.number, *vote.vote))

    def said(self, peer: str, message: Message, disk: HardState) -> None:
        pass

    def did_apply(self, commit: Commit) -> None:
        self.applied += 1
        self.commits.setdefault(commit.number, set()).add(commit)

    def learned(self, hard_state: HardState, known: Iterable[str]) -> None:
        """The head was signed by a majority of those that remained, by honest peers only if they have voted for it."""
        decided, roster = hard_state.log[-1], hard_state.log[-2].commit.roster
        voters = [peer for peer, _ in decided.accepts]
        remaining = remaining_peers(hard_state.log[-2].commit, decided.resignations, voters=voters)
        commit, said = decided.commit, (decided.commit.number, decided.view, decided.commit.digest)
        signers = {
            peer
            for peer, signature in decided.accepts
            if peer in remaining and signature == accept_of(peer, commit, decided.view)
        }
        assert len(signers) >= majority(remaining), "applied what no majority has signed"
        honest = signers.difference(self.liars)
        assert all((peer, *said) in self.votes for peer in honest), "an accept that its peer never gave"
        assert set(commit.roster) <= set(known), "a roster with names of nobody"
        present = {one.peer for one in commit.participants}
        assert set(commit.roster) - set(roster) <= present & {peer for peer, _ in commit.asks}, "in without asking"
        gone = {one.peer for one in self.resigned if one.covers(hard_state.log[-2].commit)}
        for peer in set(roster).difference(commit.roster, self.liars, gone):
            assert self._left_out_by(peer, hard_state), f"{peer} dropped, and only liars have left it out"

    def _left_out_by(self, peer: str, hard_state: HardState) -> bool:
        """Whether an honest leader has left out this peer since it took part, as far as the log shows."""
        if len(set(hard_state.log[-2].commit.roster).intersection(self.liars)) > minority(
            hard_state.log[-2].commit.roster
        ):
            return True
        for before, decided in reversed(list(pairwise(hard_state.log))):
            commit, roster = decided.commit, before.commit.roster
            if peer not in roster or peer in {one.peer for one in commit.participants}:
                return False
            if leader(SESSION, before.commit, commit.view) not in self.liars:
                return True
        return bool(hard_state.log[0].accepts)


class LiarWorld(World):
    """The liars run no machines: `ears` is what they heard. `circulated`: all that was ever sent, and by whom; `known`:
    what honest peers have said or heard of it. `false_log`: what a liar tells somebody of its log.
    """

    def __init__(self, members: Iterable[str], outsiders: Iterable[str] = (), *, liars: str, **options: object) -> None:
        self.liars = liars.split()
        self.ears: list[tuple[str, Message]] = []
        self.circulated: set[tuple[str, Message]] = set()
        self.known: set[tuple[str, Message]] = set()
        self.false_log: Callable[[], list[CommitCertificate]] = list
        super().__init__(members, outsiders, **options)  # type: ignore[arg-type]
        self.witness = self.monitor = Witness(self.liars)  # type: ignore[assignment]

    def start(self, name: str) -> None:
        if name not in self.liars:
            super().start(name)

    def _carry_out(self, name: str, output: Effect) -> None:
        super()._carry_out(name, output)
        if isinstance(output, Send):
            self.circulated.add((name, output.message))
            self.known.add((name, output.message))
            if output.to in self.liars:
                self.ears.append((name, output.message))
        if (
            isinstance(output, ApplyCommit)
            and self[name].hard_state.head == output.commit
            and len(self[name].hard_state.log) > 1
        ):
            self.witness.learned(self[name].hard_state, self.peers)

    def deliver(self, index: int = 0, *, keep: bool = False, crash_after: int | None = None) -> None:
        sender, to, message = self.network[index]
        if to in self.up:
            self.known.add((sender, message))
        super().deliver(index, keep=keep, crash_after=crash_after)

    def answers(self, source: str) -> bool:
        return source in self.liars or super().answers(source)

    def told(self, source: str, after: int | None) -> list[CommitCertificate]:
        if source not in self.liars:
            return super().told(source, after)
        return [one for one in self.false_log() if after is None or one.commit.number > after]

    def take_state(self, name: str, source: str) -> None:
        """As proof.py has it: most of the roster that this peer last knew are further, or have signed what is."""
        machine = self[name]
        logs = {id_of(peer): log for peer in (*self.up, source) if peer != name and (log := self.told(peer, None))}
        voters = voters_of(id_of(name), machine.hard_state.roster, ())
        found = newest_provable_commit(logs, machine.signer, voters=voters)
        if found and has_majority(peers_ahead(machine.number, logs, machine.signer, voters=voters), voters):
            decided = next(one for log in logs.values() for one in log if one.commit == found)
            self.event(name, lambda machine: machine.install_snapshot(decided))

    def compare(self, name: str, source: str) -> None:
        for peer in {name, source}.difference(self.liars):
            self.known.update((peer, one) for one in self.told(peer, None))
        super().compare(name, source)

    def say(self, to: str, message: Message, *, by: str = "") -> None:
        """From a liar to a peer."""
        self.circulated.add((by or self.liars[0], message))
        self.network.append((by or self.liars[0], to, message))

    def check_guilt(self) -> None:
        """Nobody honest is convicted by anything said, and a fork convicts a liar by what the honest know."""
        assert convicted(self.circulated, self.peers) <= set(self.liars), "an honest peer is convicted"
        if self.witness.forked:
            shared = [2 * (size // 2 + 1) - size for size in self.witness.forks]
            assert all(count <= len(self.liars) for count in shared), "majorities of these share an honest peer"
            assert set() < convicted(self.known, self.peers) <= set(self.liars), "a fork that nobody is convicted of"


class Liar:
    """All that lie, together. Each method is one lie, made up by `rng`, of the one whose `name` is set."""

    def __init__(self, world: LiarWorld, rng: random.Random) -> None:
        self.world, self.rng, self.name = world, rng, world.liars[0]
        world.false_log = self.log
        self.proposals: list[Accepted] = []
        self.lies: list[Callable[[HardState], None]] = [
            self.propose,
            self.usurp,
            self.split,
            self.split,
            self.split,
            self.decide,
            self.decide,
            self.decide,
            self.accept,
            self.promise,
            self.resign,
            self.wish,
            self.certificate,
            self.replay,
            self.ask,
            self.offer,
        ]

    def lie(self) -> None:
        if self.world.up:
            self.name = self.rng.choice(self.world.liars)
            self.rng.choice(self.lies)(self.world[self.rng.choice(self.world.up)].hard_state)

    def sign(self, statement: statements.Statement) -> bytes:
        return toy_signature(self.name, statement)

    def signed_by_all(self, statement: statements.Statement) -> set[tuple[str, bytes]]:
        return {(name, toy_signature(name, statement)) for name in self.world.liars}

    def some(self, of: Iterable) -> list:
        """Some of these, often all."""
        every = list(of)
        return self.rng.sample(every, self.rng.randint(0, len(every))) if self.rng.random() < 0.6 else every

    def tell(self, message: Message) -> None:
        for to in self.some(self.world.up):
            self.world.say(to, message, by=self.name)

    # lies

    def propose(self, hard_state: HardState) -> None:
        """One or two commits in a view that it leads mostly, to some each, whatever the promises say."""
        view = self.view(hard_state)
        for _ in range(self.rng.randint(1, 2)):
            proposal = self.proposal(hard_state, view)
            self.proposals.append(proposal)
            self.tell(Propose(proposal))

    def split(self, hard_state: HardState) -> None:
        """Two commits that could both be right, in the next view that it leads, each with its payloads to one part."""
        view, up = self.view(hard_state), self.rng.sample(self.world.up, len(self.world.up))
        at = self.rng.randint(0, len(up))
        for part in (up[:at], up[at:]):
            self.proposals.append(self.proposal(hard_state, view, forge=False))
            for to in part:
                for one in self.proposals[-1].commit.participants:
                    self.world.give(to, hard_state.number, one)
                self.world.say(to, Propose(self.proposals[-1]), by=self.name)

    def usurp(self, hard_state: HardState) -> None:
        """A commit that counts liars alone, in the next view that one of them leads, and the roster that follows."""
        seated = [name for name in self.world.liars if name in hard_state.roster]
        if not seated:
            return
        view = next(view for view in range(hard_state.promised, 1 << 10) if self.leads(hard_state, view))
        participants = tuple(payload(name, hard_state.number) for name in sorted(seated))
        for to in self.world.up:
            for one in participants:
                self.world.give(to, hard_state.number, one)
        self.proposals.append(self.proposal(hard_state, view, of=self.counting(hard_state, view, participants)))
        self.tell(Propose(self.proposals[-1]))

    def leads(self, hard_state: HardState, view: int) -> bool:
        self.name = hard_state.leader(view)
        return self.name in self.world.liars

    def log(self) -> list[CommitCertificate]:
        """Pieces of what honest peers hold, put together in order or not."""
        machines = [self.world[name].hard_state.log for name in self.world.up]
        some = [one for log in machines for one in log] if self.rng.random() < 0.3 else []
        if machines and not some:
            one, other = self.rng.choice(machines), self.rng.choice(machines)
            some = [*one[: self.rng.randint(0, len(one))], *other[self.rng.randint(0, len(other) - 1) :]]
        pieces = {} if self.rng.random() < 0.5 else {decided.commit.number: decided for decided in some}
        return list(pieces.values()) or sorted(some, key=lambda decided: decided.commit.number)

    def proposal(self, hard_state: HardState, view: int, *, forge: bool = True, of: Commit | None = None) -> Accepted:
        promises = [(peer, one) for peer, one in self.world.ears if isinstance(one, Promise)]
        told = {peer: one for peer, one in promises if (one.head, one.view) == (hard_state.head.digest, view)}
        pledges = {peer: Pledge(peer, one.vote, one.signature) for peer, one in told.items()}
        known = [one.accepted for one in told.values() if one.accepted]
        again = self.rng.choice(known) if known and not of and self.rng.random() < 0.5 else None
        own = again.vote if again and self.rng.random() < 0.5 else None
        said = statements.promise(hard_state.number, hard_state.head.digest, view, own)
        for name, signature in self.signed_by_all(said) if view else ():
            if name in hard_state.roster:
                pledges[name] = Pledge(name, own, signature)
        if not again and self.rng.random() < 0.7:
            pledges = {peer: one for peer, one in pledges.items() if one.accepted is None}
        commit = again.commit if again else of or self.commit(hard_state, view, forge=forge)
        signature = self.sign(statements.accept(commit.number, commit.parent, view, commit.digest))
        link = ChainLink(view, tuple(sorted(pledges.values(), key=lambda one: one.peer)) if view else (), signature)
        return Accepted(commit, (*(again.links if again else ()), link))

    def commit(self, hard_state: HardState, view: int, *, forge: bool) -> Commit:
        number, head = hard_state.number, hard_state.head.digest
        held = {one for peer in self.world.peers.values() for of, one in peer.payloads if of == number}
        by_peer = {one.peer: one for one in sorted(held)}
        if forge:
            by_peer[self.name] = self.payload(number)
        asks = [
            (peer, one.signature) for peer, one in self.world.ears if isinstance(one, JoinRequest) and one.head == head
        ]
        learners = set(dict(asks))
        possible = [peer for peer in by_peer if peer in hard_state.roster or peer in learners]
        counted = (
            self.some(possible) if forge else self.rng.sample(possible, max(0, len(possible) - self.rng.randint(0, 1)))
        )
        participants = tuple(by_peer[peer] for peer in sorted(counted))
        roster = set(self.counting(hard_state, view, participants).roster)
        if forge and self.rng.random() < 0.5:
            forged = self.rng.choice([{"x1", "x2"}, {f"100-{self.name}", f"101-{self.name}"}, {"900-x", self.name}])
            roster = self.rng.choice([roster | forged, set(self.some(roster)) | {self.name}, forged])
        counted_asks = tuple(sorted({ask for ask in asks if ask[0] in counted}))
        names = tuple(sorted(roster))
        demoted = next_demoted(SESSION, hard_state.head, view, names)
        if forge and self.rng.random() < 0.2:
            demoted = tuple(self.some(hard_state.roster))
        return Commit(number, head, view, participants, names, counted_asks, demoted)

    def counting(self, hard_state: HardState, view: int, participants: tuple[Participant, ...]) -> Commit:
        """With the roster that follows."""
        history, absent_rounds = [one.commit for one in hard_state.log], self.world.absent_rounds
        roster = next_roster(history, participants, session=SESSION, view=view, absent_rounds=absent_rounds)
        demoted = next_demoted(SESSION, hard_state.head, view, roster)
        return Commit(hard_state.number, hard_state.head.digest, view, participants, roster, (), demoted)

    def decide(self, hard_state: HardState) -> None:
        """What it proposed lately, to those that accepted it or to some; now and then without a majority."""
        for proposal in self.proposals[-4:]:
            commit, view = proposal.commit, proposal.view
            accepts = {
                (peer, one.signature)
                for peer, one in self.world.ears
                if isinstance(one, Accept) and (one.view, one.digest) == (view, commit.digest)
            }
            own = self.signed_by_all(statements.accept(commit.number, commit.parent, view, commit.digest))
            links, counted = proposal.links if view else (), self.rng.choice([hard_state.counted_resignations, ()])
            decided = CommitCertificate(commit, view, tuple(sorted(accepts | own)), links, resignations=counted)
            if accepts and self.rng.random() < 0.8:
                for peer, _ in sorted(accepts):
                    self.world.say(peer, decided, by=self.name)
            else:
                self.tell(decided)

    def accept(self, hard_state: HardState) -> None:
        """Whatever was proposed, to whoever leads it, and what nobody proposed."""
        seen = [one.accepted for _, one in self.world.ears if isinstance(one, Propose)] + self.proposals
        for proposal in self.rng.sample(seen, min(2, len(seen))):
            commit, view = proposal.commit, proposal.view
            signature = self.sign(statements.accept(commit.number, commit.parent, view, commit.digest))
            self.tell(Accept(commit.number, commit.parent, view, commit.digest, signature))

    def promise(self, hard_state: HardState) -> None:
        """A view around the one at hand, hiding what it accepted, or telling what only it proposed."""
        view = hard_state.promised + self.rng.randint(0, 4) or 1
        of = [one for one in self.proposals if one.commit.parent == hard_state.head.digest and one.view < view]
        accepted = self.rng.choice([None, *of])
        vote = accepted.vote if accepted else None
        self.tell(
            Promise(
                hard_state.number, hard_state.head.digest, view, accepted, self.pledge(hard_state, view, vote).signature
            )
        )

    def resign(self, hard_state: HardState) -> None:
        """To some, and votes all the same; or passes on what honest peers said."""
        number, head = hard_state.number, hard_state.head.digest
        own = Resignation(self.name, number, head, self.sign(statements.resign(number, head)))
        heard = [one.resignations for _, one in self.world.ears if isinstance(one, Resigned)]
        self.tell(Resigned(number, head, self.rng.choice([(own,), *heard])))

    def wish(self, hard_state: HardState) -> None:
        """A view that it leads, or the last there is."""
        view = self.rng.choice(
            [hard_state.promised + 1, hard_state.promised + 2, self.view(hard_state), 1000, MAX_VIEW]
        )
        self.tell(ViewChange(hard_state.number, hard_state.head.digest, view, self.wish_for(hard_state, view)))

    def certificate(self, hard_state: HardState) -> None:
        """Wishes of honest peers as it has heard them, of other views and rounds too, its own, and some it made up."""
        view = self.rng.choice([hard_state.promised + 1, self.view(hard_state), MAX_VIEW])
        heard = {
            peer: ViewWish(peer, one.view, one.signature)
            for peer, one in self.world.ears
            if isinstance(one, ViewChange)
        }
        if self.rng.random() < 0.5:
            heard |= {
                peer: ViewWish(peer, view, self.wish_for(hard_state, view)) for peer in self.some(hard_state.roster)
            }
        heard[self.name] = ViewWish(self.name, view, self.wish_for(hard_state, view))
        self.tell(ViewWishes(hard_state.number, hard_state.head.digest, tuple(sorted(heard.values()))))

    def replay(self, hard_state: HardState) -> None:
        if self.world.ears:
            self.tell(self.rng.choice(self.world.ears)[1])

    def ask(self, hard_state: HardState) -> None:
        said = statements.ask(hard_state.number, hard_state.head.digest)
        self.tell(JoinRequest(hard_state.number, hard_state.head.digest, self.sign(said)))

    def offer(self, hard_state: HardState) -> None:
        """One of two payloads for the same round, to some."""
        one = self.payload(hard_state.number)
        for to in self.some(self.world.up):
            self.world.give(to, hard_state.number, one)

    # small things

    def view(self, hard_state: HardState) -> int:
        """Mostly one that it leads, not far from the one at hand."""
        near = range(hard_state.promised, hard_state.promised + 2 * len(hard_state.roster))
        led = [view for view in near if hard_state.leader(view) == self.name]
        return led[0] if led and self.rng.random() < 0.8 else self.rng.choice(near)

    def payload(self, number: int) -> Participant:
        one = payload(self.name, number)
        return one if self.rng.random() < 0.7 else replace(one, digest=bytes(32))

    def pledge(self, hard_state: HardState, view: int, vote: tuple[int, bytes] | None) -> Pledge:
        said = statements.promise(hard_state.number, hard_state.head.digest, view, vote)
        return Pledge(self.name, vote, self.sign(said))

    def wish_for(self, hard_state: HardState, view: int) -> bytes:
        return self.sign(statements.wish(hard_state.number, hard_state.head.digest, view))
