"""Single-decree Paxos over the roster of one round, as run by one peer with its durable and volatile state.

    view 0       leader(0) closes the gather (gather_policy.py), accepts its own proposal, and proposes it to all
    accept       a peer accepts the proposal of its current view if the commit follows its own head, the next roster
                 obeys the rules (validity.py), and this peer holds every payload named
    decided      the leader has accepts of a majority (continued in chain.py)
    view v > 0   begins for a peer when a majority wants it (view_change.py): the peer promises v to leader(v). With
                 promises of a majority the leader proposes what was accepted in the highest view among them, otherwise
                 its own choice. It holds the payloads and accepts its own proposal before it sends it. The promises are
                 sent with the proposal and checked by every peer (justification.py); they also prove the view

A leader proposes once in a view: its own accept is on disk before any peer receives the proposal, and is found there
after a crash. View 0 needs no promises because of this, and because there is no earlier view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant, majority, most_faulty
from outerloop.swarm.consensus.effects import FetchPayloads, Reject
from outerloop.swarm.consensus.gather_policy import GatherPolicy
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.consensus.justification import flaw
from outerloop.swarm.consensus.messages import (
    Accept,
    Accepted,
    ChainLink,
    CommitCertificate,
    Message,
    Pledge,
    Promise,
    Propose,
    ViewChange,
    ViewWishes,
)
from outerloop.swarm.consensus.proposer import choice
from outerloop.swarm.consensus.roster_change import tells
from outerloop.swarm.consensus.statements import AcceptSigner
from outerloop.swarm.consensus.validity import objection, reluctance
from outerloop.swarm.consensus.view_change import Pacemaker


class PaxosInstance(Pacemaker):
    """One peer's part in deciding the current round. `held`: the payloads on disk, by round."""

    def __init__(
        self,
        memory: HardState,
        *,
        notary: AcceptSigner,
        closing: GatherPolicy,
        absent_rounds: int,
        most_bytes: int,
        allowed: Callable[[str], bool],
    ) -> None:
        super().__init__(memory, notary)
        self.held: dict[int, frozenset[Participant]] = {}  # replaced, not changed
        self.closing = closing
        self._absent_rounds = absent_rounds
        self._most_bytes = most_bytes
        self._allowed = allowed

    @property
    def proposed(self) -> Accepted | None:
        """This peer's proposal as the leader of the current view, known from its own accept, even after a crash."""
        accepted = self.memory.accepted
        return accepted if self.leads and accepted is not None and accepted.view == self.view else None

    @property
    def payloads(self) -> frozenset[Participant]:
        """The payloads of the round that this peer holds."""
        return self.held.get(self.number, frozenset())

    @property
    def countable(self) -> frozenset[Participant]:
        """The held payloads that this peer may count in a commit of its own choice."""
        return frozenset(one for one in self.payloads if self._allowed(one.peer))

    @property
    def awaited(self) -> frozenset[str]:
        """The roster peers whose payloads this peer may count: without expelled peers."""
        return frozenset(filter(self._allowed, self.memory.roster))

    def _take(self, sender: str, message: ViewChange | ViewWishes | Promise | Propose | Accept) -> None:
        """Process a message about this round from another roster peer.

        A message of a later view does not by itself change this peer's view.
        """
        if isinstance(message, ViewChange):
            self._take_here(sender, message)
        elif isinstance(message, ViewWishes):
            self._take_wishes(sender, message.wishes)
        elif message.view < self.view:
            shown: Sequence[Message] = self._proof() or [self._here()]
            self._send([sender], *shown)
        elif isinstance(message, Propose):
            self._take_proposal(sender, message.accepted)
        elif isinstance(message, Promise):
            self._take_promise(sender, message)
        elif message.view == self.view:
            self._take_accept(sender, message)

    # as the leader

    def _take_promise(self, sender: str, promise: Promise) -> None:
        """Check and record a promise. If it is for a later view, ask its sender for the proof of that view."""
        if self.memory.leader(promise.view) != self.memory.peer:
            self._refuse(sender, f"promises view {promise.view} to a peer that does not lead it")
            return
        said = statements.promise(self.number, self.memory.head.digest, promise.view, promise.vote)
        if not self.notary.verify(sender, said, promise.signature):
            self._refuse(sender, f"promises view {promise.view} without a valid signature")
            return
        if promise.accepted and (reason := self._against(promise.accepted)):
            self._refuse(sender, f"has accepted what no peer may accept: {reason}")
            return
        if promise.accepted and (reason := self._reluctance(promise.accepted.commit, (), first=False)):
            self._turn_down(sender, promise.accepted.commit, reason)
        self.gathering = self.gathering.with_promise(sender, promise)
        if promise.view > self.view:
            self._send([sender], self._here())

    def _propose(self) -> bool:
        """Propose as the leader, if that is possible now."""
        if not self.leads or self.proposed:
            return False
        chosen = choice(
            self.memory,
            self.gathering,
            self.gathering.promises_of(self.view) | {self.memory.peer: self._promised()} if self.view else {},
            countable=self.countable,
            awaited=self.awaited,
            willing=self._willing,
            closing=self.closing,
            absent_rounds=self._absent_rounds,
        )
        if chosen is None or not self._holds_all(chosen.commit, chosen.holder):
            return False
        if chosen.links and not self._willing(chosen.commit, chosen.pledges):
            return False
        signature = self.notary.sign(
            statements.accept(self.number, self.memory.head.digest, self.view, chosen.commit.digest)
        )
        proposal = Accepted(chosen.commit, (*chosen.links, ChainLink(self.view, chosen.pledges, signature)))
        self.memory = replace(self.memory, accepted=proposal)
        self._tell(self.memory.roster, Propose(proposal))
        return True

    def _take_accept(self, sender: str, accept: Accept) -> None:
        """Count an accept of this peer's proposal. Check others too: two different accepts of one view are evidence."""
        said = statements.accept(self.number, accept.head, accept.view, accept.digest)
        if not self.notary.verify(sender, said, accept.signature):
            self._refuse(sender, f"accepts in view {accept.view} without a valid signature")
            return
        is_own = self.proposed is not None and accept.digest == self.proposed.commit.digest
        if is_own and sender not in self.gathering.acceptors:
            accepts = self.gathering.accepts | {(sender, accept.signature)}
            self.gathering = replace(self.gathering, accepts=accepts)

    def _decided(self) -> CommitCertificate | None:
        """Return the certificate of this peer's proposal, once a majority has accepted it."""
        proposed, accepts = self.proposed, self.gathering.accepts
        if proposed is None or 1 + len(accepts) < majority(self.memory.roster):
            return None
        own = self.memory.peer, proposed.links[-1].signature
        return CommitCertificate(
            proposed.commit, self.view, tuple(sorted(accepts | {own})), proposed.links if self.view else ()
        )

    # as a follower

    def _take_proposal(self, sender: str, proposal: Accepted) -> None:
        """Check and keep a proposal of the current view, or enter the later view that its promises prove.

        If the leader proposes a commit that no peer may accept, this peer wishes for the next view at once.
        """
        pledges, first = proposal.links[-1].pledges, len(proposal.links) == 1
        if reason := self._not_its_turn(sender, proposal):
            self._turn_down(sender, proposal.commit, reason)
        elif reason := self._against(proposal):
            self._turn_down(sender, proposal.commit, reason)
            if proposal.view == self.view and not self.wishes_to_leave:
                self._wish()
        elif reason := self._reluctance(proposal.commit, pledges, first=first):
            self._turn_down(sender, proposal.commit, reason)
        else:
            self._wait_for_payloads(proposal)

    def _wait_for_payloads(self, proposal: Accepted) -> None:
        """Keep a proposal, to be accepted once all payloads that it counts are held."""
        if proposal.view > self.view:
            self._enter(proposal.view)
        self.gathering = replace(self.gathering, proposal=proposal)

    def _accept(self) -> bool:
        """Accept the waiting proposal, if that is possible now."""
        proposal, leader = self.gathering.proposal, self.memory.leader(self.view)
        if proposal is None or not self._holds_all(proposal.commit, leader):
            return False
        self.memory = replace(self.memory, accepted=proposal)
        self.gathering = replace(self.gathering, proposal=None)
        head, digest = proposal.commit.parent, proposal.commit.digest
        signature = self.notary.sign(statements.accept(self.number, head, self.view, digest))
        self._tell([leader], Accept(self.number, head, self.view, digest, signature))
        return True

    # both roles

    def _not_its_turn(self, sender: str, proposal: Accepted) -> str:
        """Return why a peer may not propose in this view, or not a second time; empty if it may."""
        if self.memory.leader(proposal.view) != sender:
            return f"proposes in view {proposal.view}, which it does not lead"
        known = [one for one in (self.memory.accepted, self.gathering.proposal) if one and one.view == proposal.view]
        if all(one.commit == proposal.commit for one in known):
            return ""
        flaw(self.memory.head, proposal, self.notary)  # the signatures of both are evidence (equivocation.py)
        return f"proposes two commits in view {proposal.view}"

    def _against(self, proposal: Accepted) -> str:
        """Return why no peer may accept a proposal, or an empty string. A known proposal is not checked again."""
        told = [one.accepted for _, one in self.gathering.promises]
        if proposal in (self.memory.accepted, self.gathering.proposal, *told):
            return ""
        return self._objection(proposal.commit) or flaw(self.memory.head, proposal, self.notary)

    def _objection(self, commit: Commit) -> str:
        """Return why this cannot be the commit of the round, whichever peer reports it. The same on every peer."""
        return objection(
            self.memory,
            commit,
            self.notary,
            min_peers=self.closing.min_peers,
            absent_rounds=self._absent_rounds,
            most_bytes=self._most_bytes,
        )

    def _reluctance(self, commit: Commit, pledges: tuple[Pledge, ...], *, first: bool) -> str:
        """Return why this peer does not vote for a commit that others may vote for, or an empty string.

        It votes nevertheless if enough peers report an accept of the commit that at least one of them is honest.
        """
        tellers = [one for one in pledges if one.accepted and one.accepted[1] == commit.digest]
        if len(tellers) > most_faulty(self.memory.roster):
            return ""
        return reluctance(self.memory, commit, first=first, absent_rounds=self._absent_rounds, allowed=self._allowed)

    def _turn_down(self, sender: str, commit: Commit, reason: str) -> None:
        """Reject a commit. Ask for the sender's log if the local one is too short to show which peers were absent."""
        short = not tells(self.memory, commit.view, self._absent_rounds)
        self._out.append(Reject(sender, reason, parted=short))

    def _willing(self, commit: Commit, pledges: tuple[Pledge, ...]) -> bool:
        """Return whether this peer can propose a commit again."""
        return set(commit.participants) <= self.payloads and not self._reluctance(commit, pledges, first=False)

    def _holds_all(self, commit: Commit, holder: str) -> bool:
        """Return whether this peer holds every payload. Request missing ones, once per view."""
        missing = tuple(one for one in commit.participants if one not in self.payloads)
        if not self.gathering.wanted.issuperset(missing):
            self.gathering = replace(self.gathering, wanted=self.gathering.wanted.union(missing))
            self._out.append(FetchPayloads(self.number, missing, holder))
        return not missing
