"""The agreement on what the rounds came to: a chain of decrees, as a machine without clock or network.

Events go in as method calls, and every method returns what shall be done, in order (effects.py). It never raises on
what a peer sent, and never waits. Round r is decided by a majority of its roster M_r, which commit r - 1 names
(paxos.py); who learns of a commit that follows its head applies it.

Why no two peers ever apply different commits of a round. Within a round it is Paxos: if a majority accepted commit X
in view v, the promises that a later leader needs are of a majority too, the two share a peer, and the leader is told
of X. From round to round: M_r and M_r+1 need not share a majority, not even a peer. Nobody votes in round r + 1 before
commit r is its head; there is only one commit r, so all who vote in r + 1 count majorities of the same M_r+1; and no
vote in r + 1 can undo r. Rosters change for liveness alone: each round needs a majority of its own roster up, and one
peer up that tells it the head.

What must outlive a crash: Persist effects, each before the outputs after it; and payloads, from `holds` until their
round is ROUNDS_KEPT old, for an accept says "if this is the commit, its payloads can be had from me". A commit is
applied and passed on before it is saved: what it rests on are accepts, which a majority has on disk, so who loses it in
a crash learns the same one again. A peer that lost what it saved comes back as a new one.

What is assumed. Of peers that stop, lag, lose messages and come back from their disks: nothing more than that. Any
minority of a round's roster may be gone, and the rest goes on; no two commits of a round, whoever is gone.

Of peers of the roster that lie, in any way, while the others of it that are up are a majority by themselves:
    rounds go on    where they are no more than (n - 1) // 3 of n: they move no view and lead only in turn
    no roster       of their own is decided by fewer than half: they let nobody in without its request and not more than
                    the rule says, and drop nobody whose payloads reach an honest leader in time (roster_change.py)
    no commit       is applied that a majority of its roster has not signed, however many lie
    a fork          needs liars in all that two majorities share. Of an even n that is two peers at least, so that one
                    liar of four forks nothing. Of an odd n it may be one: an equivocator in a bare majority can show
                    one commit to some and another to the rest, if they do not hear of each other meanwhile, and both
                    parts then follow signed commits. The two decided commits of the round hold two statements of one
                    peer that no honest one makes (justification.py), by which all can tell who it was
    not covered     who leads in its turn says which payloads count, and may leave some out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import ApplyCommit, CatchUp, ChainLeft, Output, Reject
from outerloop.swarm.consensus.forks import ForkPoint, apart, digests, is_better, linked, parting
from outerloop.swarm.consensus.gather_policy import GatherPolicy
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.messages import Accept, CommitCertificate, JoinRequest, Message
from outerloop.swarm.consensus.paxos import PaxosInstance
from outerloop.swarm.consensus.soft_state import SoftState
from outerloop.swarm.consensus.statements import AcceptSigner
from outerloop.swarm.consensus.validity import doubt
from outerloop.swarm.validation import MAX_AMOUNT, MAX_PEERS, id_of


class CommitChain(PaxosInstance):
    """One peer's part. Equal on all peers: `closing`, `absent_rounds` (commits missed in a row, then out), `most_bytes`
    (of one payload). `allowed`: whether the peer of a name may take part, as this peer sees it just now.

    After every event look at `number` and `view`: timers belong to them, and an old one's event changes nothing.
    `waiting.waiting_for` tells people what is missing.
    """

    def __init__(
        self,
        memory: HardState,
        *,
        notary: AcceptSigner,
        closing: GatherPolicy,
        absent_rounds: int,
        most_bytes: int = MAX_AMOUNT,
        allowed: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """`memory` is on disk already: HardState.first, HardState.joining or what was saved last."""
        if not 1 <= absent_rounds <= ROUNDS_KEPT:
            raise ValueError(f"absent_rounds is 1 to {ROUNDS_KEPT}; came {absent_rounds}")
        super().__init__(
            memory,
            notary=notary,
            closing=closing,
            absent_rounds=absent_rounds,
            most_bytes=most_bytes,
            allowed=allowed,
        )

    def receive(self, sender: str, message: Message) -> list[Output]:
        """A message, from whom the network proved it is."""
        if isinstance(message, CommitCertificate):
            self._learn(sender, message)
        elif message.number > self.number:
            self._out.append(CatchUp(message.number, sender))
        elif message.number < self.number:
            if not isinstance(message, Accept):  # a late accept: what came of it is on its way to the sender
                self._tell([sender], self._here())
            if digests(self.memory.log).get(message.number - 1, message.head) != message.head:
                self._part(sender, message.number)
        elif message.head != self.memory.head.digest:
            self._part(sender, message.number)
        elif isinstance(message, JoinRequest):
            self._admit(sender, message)
        elif sender not in self.memory.roster or sender == self.memory.peer:
            self._refuse(sender, f"not another peer of the roster of round {self.number}")
        elif self.votes:
            self._take(sender, message)
        return self._act()

    def holds(self, number: int, participant: Participant) -> list[Output]:
        """A payload of a round lies on disk, the own one included. After a restart: again for each."""
        if number >= self.number:
            self.held = {**self.held, number: self.held.get(number, frozenset()) | {participant}}
        return self._act()

    def grace(self, number: int) -> list[Output]:
        """The grace of a round is over."""
        if number == self.number:
            self.gathering = replace(self.gathering, grace=True)
        return self._act()

    def deadline(self, number: int) -> list[Output]:
        """The deadline of a round's gather is over."""
        if number == self.number:
            self.gathering = replace(self.gathering, deadline=True)
        return self._act()

    def reconsider(self) -> list[Output]:
        """Somebody is not allowed any more: the others may be enough now."""
        return self._act()

    def timeout(self, number: int, view: int) -> list[Output]:
        """A leader that could have proposed has not, for too long; or nobody has come along to the next view since."""
        if (number, view) == (self.number, self.view) and self.votes:
            self._wish()
        return self._act()

    def ask(self) -> list[Output]:
        """Not in the roster, the head's state at hand: ask to be a learner. Again in each round, and now and then."""
        if not self.votes:
            number, head = self.number, self.memory.head.digest
            self._tell(self.memory.roster, JoinRequest(number, head, self.notary.sign(statements.ask(number, head))))
        return self._act()

    def skip_to(self, decided: CommitCertificate) -> list[Output]:
        """The state as of a later commit was downloaded, because no log reaches back to this peer's head."""
        if decided.commit.number >= self.number:
            self._begin(self.memory.skipped_to(decided))
        return self._act()

    def compare(self, sender: str, log: Sequence[CommitCertificate]) -> list[Output]:
        """The log of a peer, whatever it tells: go over to its chain if that is another one and better (forks.py).

        Of the same chain it may reach further back than this peer's log, and tell who was absent.
        """
        if not linked(log):
            self._refuse(sender, "tells commits that do not follow one another")
        elif found := parting(self.memory.log, log):
            self._choose(sender, found, log)
        elif apart(self.memory.log, log):
            first = max(self.memory.log[0].commit.number, log[0].commit.number)
            reason = f"its history left this one before commit {first}, earlier than the logs reach: these are two runs"
            self._refuse(sender, f"{reason}. To join one, start the workers of the other again as new peers")
        else:
            self._reach_back(log)
        return self._act()

    def commits_since(self, number: int) -> tuple[CommitCertificate, ...] | None:
        """The commits after `number`, oldest first. None: the log does not reach back, the state must be downloaded."""
        if number < self.memory.log[0].commit.number - 1:
            return None
        return tuple(one for one in self.memory.log if one.commit.number > number)

    def _act(self) -> list[Output]:
        """Do what has become possible, save, and hand out what shall be done."""
        while self.votes and (self._accept() or self._propose() or self._decide()):
            pass
        self._save()
        out, self._out = self._out, []
        return out

    def _learn(self, sender: str, decided: CommitCertificate) -> None:
        number = decided.commit.number
        if number > self.number:
            self._out.append(CatchUp(number, sender))
        if any(one.commit.number == number and one.commit.digest != decided.commit.digest for one in self.memory.log):
            self._out.append(Reject(sender, f"tells another commit {number} than is known here", parted=True))
        if number != self.number:
            return
        reason = self._objection(decided.commit)
        if reason := reason or doubt(self.memory.roster, decided, self.notary):
            self._out.append(Reject(sender, reason, parted=decided.commit.parent != self.memory.head.digest))
        else:
            self._apply(decided)

    def _decide(self) -> bool:
        """A majority has accepted what this peer proposed: apply it and tell everybody whom it concerns."""
        decided = self._decided()
        if decided is None:
            return False
        concerned = {*self.memory.roster, *decided.commit.roster, *self.gathering.asked}
        self._apply(decided)
        self._send(sorted(concerned), decided)
        return True

    def _apply(self, decided: CommitCertificate) -> None:
        """A majority has it on disk, so that this peer need not: who loses it in a crash learns it again."""
        self._begin(self.memory.learned(decided))
        self._out.append(ApplyCommit(decided.commit))

    def _part(self, sender: str, number: int) -> None:
        reason = f"round {number} after another head: its history is not this one"
        self._out.append(Reject(sender, reason, parted=True))

    def _choose(self, sender: str, found: ForkPoint, log: Sequence[CommitCertificate]) -> None:
        """Between two commits of one round. Both are looked at, so that whoever signed both is seen."""
        base, own, other = found
        doubts = [doubt(base.commit.roster, one, self.notary) for one in (own, other)]
        if doubts[1]:
            self._refuse(sender, doubts[1])
        elif is_better(other.commit, own.commit):
            self._go_over(sender, base, [one for one in log if one.commit.number > base.commit.number])

    def _go_over(self, sender: str, base: CommitCertificate, log: Sequence[CommitCertificate]) -> None:
        """Back to the last commit of both chains and on to the other chain: the first of its commits is proven."""
        ours, self.memory = self.memory, self.memory.back_to(base)
        if reason := self._objection(log[0].commit):
            self.memory = ours
            self._refuse(sender, reason)
            return
        self._out.append(ChainLeft(self.number))
        for decided in log:
            self._learn(sender, decided)

    def _reach_back(self, log: Sequence[CommitCertificate]) -> None:
        """Take over commits before the first of this peer's log: each is named by the one after it."""
        first = self.memory.log[0].commit
        earlier = [one for one in log if one.commit.number < first.number]
        unsigned = (doubt(before.commit.roster, one, self.notary) for before, one in pairwise(earlier))
        if earlier and earlier[-1].commit.digest == first.parent and not any(unsigned):
            self.memory = self.memory.reaching_back(earlier)

    def _begin(self, memory: HardState) -> None:
        """The next round, or a later one."""
        self.memory, self.gathering = memory, SoftState()
        self.held = {number: held for number, held in self.held.items() if number >= self.number}

    def _admit(self, sender: str, asking: JoinRequest) -> None:
        """A learner asks to be counted: once, under one name, and not with the key of a peer of the roster."""
        taken = {id_of(peer) for peer in self.gathering.asked.union(self.memory.roster)}
        if id_of(sender) in taken or not self._allowed(sender) or len(self.gathering.asks) == MAX_PEERS:
            return
        if not self.notary.right(sender, statements.ask(asking.number, asking.head), asking.signature):
            self._refuse(sender, f"asks to be counted in round {asking.number} without signing that")
            return
        self.gathering = replace(self.gathering, asks=self.gathering.asks | {(sender, asking.signature)})
