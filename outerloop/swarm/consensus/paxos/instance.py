"""One peer's part in deciding a round by Paxos, with its durable and volatile state (__init__.py)."""

from __future__ import annotations

from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, max_faulty
from outerloop.swarm.consensus.hotstuff.votes import Proposal
from outerloop.swarm.consensus.messages import Accept, Promise, Propose, RoundMessage, ViewChange, ViewWishes
from outerloop.swarm.consensus.paxos.justification import justification_error
from outerloop.swarm.consensus.paxos.proposal_choice import choice
from outerloop.swarm.consensus.paxos.state import PaxosState
from outerloop.swarm.consensus.round_instance import Lacking, RoundInstance
from outerloop.swarm.consensus.validity import vote_refusal
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate, Pledge


class PaxosInstance(RoundInstance):
    """One peer's part in deciding the current round by Paxos."""

    soft_state: PaxosState

    @property
    def _accepted(self) -> Accepted | None:
        accepted = self.hard_state.accepted
        assert not isinstance(accepted, Proposal), "this run was decided by HotStuff-2: exchange.trust must not change"
        return accepted

    @property
    def proposed(self) -> Accepted | None:
        """The proposal that this peer has made as leader of the current view, or None. It survives a crash."""
        accepted = self._accepted
        return accepted if self.leads and accepted is not None and accepted.view == self.view else None

    def _receive_vote(self, sender: str, message: RoundMessage) -> None:
        """Process a message about this round from another roster peer.

        A message from a later view changes this peer's view only if it contains the proof for that view.
        """
        if isinstance(message, ViewChange):
            self._receive_view_change(sender, message)
        elif isinstance(message, ViewWishes):
            self._receive_wishes(sender, message.wishes)
        elif message.view < self.view:
            self._show_view(sender)
        elif isinstance(message, Propose):
            self._receive_proposal(sender, message.accepted)
        elif isinstance(message, Promise):
            self._receive_promise(sender, message)
        elif isinstance(message, Accept) and message.view == self.view:
            self._receive_accept(sender, message)

    def _own_report(self) -> Promise:
        """Return this peer's signed promise for the current view, in which it must not have accepted a commit yet."""
        number, head, accepted = self.number, self.hard_state.head.digest, self._accepted
        statement = statements.promise(number, head, self.view, accepted.vote if accepted else None)
        return Promise(number, head, self.view, accepted, self.signer.sign(statement))

    def _advance(self) -> bool:
        return self._accept() or self._propose()

    # as the leader

    def _receive_promise(self, sender: str, promise: Promise) -> None:
        """Check and record a promise. If the promise is for a later view, ask its sender for the proof of that view."""
        if self.hard_state.leader(promise.view) != self.hard_state.peer:
            self._reject(sender, f"sent a promise for view {promise.view} to a peer that does not lead it")
            return
        statement = statements.promise(self.number, self.hard_state.head.digest, promise.view, promise.vote)
        if not self.signer.verify(sender, statement, promise.signature):
            self._reject(sender, f"sent a promise for view {promise.view} without a valid signature")
            return
        if promise.accepted and (reason := self._proposal_error(promise.accepted)):
            self._reject(sender, f"has accepted a commit that no peer may accept: {reason}")
            return
        if promise.accepted and (reason := self._vote_refusal(promise.accepted.commit, (), first=False)):
            self._reject_commit(sender, promise.accepted.commit, reason)
        self.soft_state = self.soft_state.with_promise(sender, promise)
        if promise.view > self.view:
            self._send([sender], self._own_view_change())

    def _propose(self) -> bool:
        """Propose a commit if this peer leads the view and can propose now. Return whether it proposed one."""
        if not self.leads or self.proposed:
            return False
        chosen = choice(
            self.hard_state,
            self.soft_state,
            self.soft_state.promises_of(self.view) | {self.hard_state.peer: self._own_report()} if self.view else {},
            countable=self.countable,
            awaited=self.awaited,
            can_repropose=self._can_repropose,
            gather_policy=self.gather_policy,
            absent_rounds=self._absent_rounds,
        )
        if chosen is None or not self._has_payloads(chosen.commit, chosen.holder):
            return False
        if chosen.links and not self._can_repropose(chosen.commit, chosen.pledges):
            return False
        signature = self.signer.sign(
            statements.accept(self.number, self.hard_state.head.digest, self.view, chosen.commit.digest)
        )
        proposal = Accepted(chosen.commit, (*chosen.links, ChainLink(self.view, chosen.pledges, signature)))
        self.hard_state = replace(self.hard_state, accepted=proposal)
        self._save_and_send(self.hard_state.roster, Propose(proposal))
        return True

    def _receive_accept(self, sender: str, accept: Accept) -> None:
        """Count an accept of this peer's proposal. Also verify other accepts: they may prove that the sender lied."""
        statement = statements.accept(self.number, accept.head, accept.view, accept.digest)
        if not self.signer.verify(sender, statement, accept.signature):
            self._reject(sender, f"accepts in view {accept.view} without a valid signature")
            return
        is_own = self.proposed is not None and accept.digest == self.proposed.commit.digest
        if is_own and sender not in self.soft_state.acceptors:
            accepts = self.soft_state.accepts | {(sender, accept.signature)}
            self.soft_state = replace(self.soft_state, accepts=accepts)

    def lacking(self) -> Lacking | None:
        if self.proposed:
            return self._lacks("accepts", self.soft_state.acceptors, self._needed)
        promises = self._lacks("promises", self.soft_state.promises_of(self.view), self._needed)
        return promises if self.view > 0 and promises.arrived < promises.needed else None

    def _decided(self) -> CommitCertificate | None:
        """Return the certificate of this peer's proposal if a majority has accepted it, else None."""
        proposed, accepts = self.proposed, self.soft_state.accepts
        if proposed is None or not self._is_quorum(self.soft_state.acceptors | {self.hard_state.peer}):
            return None
        own = self.hard_state.peer, proposed.links[-1].signature
        return CommitCertificate(
            proposed.commit,
            self.view,
            tuple(sorted(accepts | {own})),
            proposed.links if self.view else (),
            resignations=self.hard_state.counted_resignations,
        )

    # as a follower

    def _receive_proposal(self, sender: str, proposal: Accepted) -> None:
        """Check a proposal and keep it if it is valid. If its promises prove a later view, enter that view.

        If the leader proposes a commit that no peer may accept, ask for the next view at once.
        """
        pledges, first = proposal.links[-1].pledges, len(proposal.links) == 1
        if reason := self._turn_error(sender, proposal):
            self._reject_commit(sender, proposal.commit, reason)
        elif reason := self._proposal_error(proposal):
            self._reject_commit(sender, proposal.commit, reason)
            if proposal.view == self.view and not self.wants_next_view:
                self._request_next_view()
        elif reason := self._vote_refusal(proposal.commit, pledges, first=first):
            self._reject_commit(sender, proposal.commit, reason)
        else:
            self._wait_for_payloads(proposal)

    def _wait_for_payloads(self, proposal: Accepted) -> None:
        """Keep a proposal, which `_accept` accepts once all payloads that it counts are stored."""
        if proposal.view > self.view:
            self._enter_view(proposal.view)
        self.soft_state = replace(self.soft_state, proposal=proposal)

    def _accept(self) -> bool:
        """Accept the pending proposal if all of its payloads are stored. Return whether it was accepted."""
        proposal, leader = self.soft_state.proposal, self.hard_state.leader(self.view)
        if proposal is None or not self._has_payloads(proposal.commit, leader):
            return False
        self.hard_state = replace(self.hard_state, accepted=proposal)
        self.soft_state = replace(self.soft_state, proposal=None)
        head, digest = proposal.commit.parent, proposal.commit.digest
        signature = self.signer.sign(statements.accept(self.number, head, self.view, digest))
        self._save_and_send([leader], Accept(self.number, head, self.view, digest, signature))
        return True

    # both roles

    def _turn_error(self, sender: str, proposal: Accepted) -> str:
        """Return why `sender` may not make this proposal, e.g. because it does not lead the view, or "" if it may."""
        if self.hard_state.leader(proposal.view) != sender:
            return f"proposes in view {proposal.view}, which it does not lead"
        known = (self._accepted, self.soft_state.proposal)
        if all(other.commit == proposal.commit for other in known if other and other.view == proposal.view):
            return ""
        # Verified only so that the signatures of both proposals are recorded as evidence (equivocation.py).
        justification_error(self.hard_state.head, proposal, self.signer)
        return f"proposes two commits in view {proposal.view}"

    def _proposal_error(self, proposal: Accepted) -> str:
        """Return why no peer may accept a proposal, or "" if peers may. A known proposal is not checked again.

        The justification is checked first, as in `Chain._learn`.
        """
        reported = [promise.accepted for _, promise in self.soft_state.promises]
        if proposal in (self.hard_state.accepted, self.soft_state.proposal, *reported):
            return ""
        unjustified = justification_error(
            self.hard_state.head, proposal, self.signer, resignations=self.hard_state.counted_resignations
        )
        return unjustified or self._commit_error(proposal.commit)

    def _vote_refusal(self, commit: Commit, pledges: tuple[Pledge, ...], *, first: bool) -> str:
        """Return why this peer does not vote for a commit although other peers may, or "" if it votes for it.

        If more than `max_faulty` peers report that they have accepted the commit, at least one of them is honest, so
        this peer votes for it in any case.
        """
        accepting = [pledge for pledge in pledges if pledge.accepted and pledge.accepted[1] == commit.digest]
        if len(accepting) > max_faulty(self.hard_state.roster):
            return ""
        return vote_refusal(
            self.hard_state, commit, first=first, absent_rounds=self._absent_rounds, allowed=self._allowed
        )

    def _can_repropose(self, commit: Commit, pledges: tuple[Pledge, ...]) -> bool:
        """Return whether this peer can propose the commit again: it holds the payloads and would vote for it."""
        return set(commit.participants) <= self.payloads and not self._vote_refusal(commit, pledges, first=False)
