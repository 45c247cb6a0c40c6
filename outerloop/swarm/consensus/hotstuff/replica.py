"""One peer's part in deciding a round by HotStuff-2, with its durable and volatile state (__init__.py)."""

from __future__ import annotations

from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, PREPARE, NewView, Prepared, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.state import HotStuffState
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal
from outerloop.swarm.consensus.messages import RoundMessage, ViewChange, ViewWishes
from outerloop.swarm.consensus.proposer import own_commit
from outerloop.swarm.consensus.quorum import TWO_THIRDS
from outerloop.swarm.consensus.round_instance import Lacking, RoundInstance
from outerloop.swarm.consensus.validity import count_voters, vote_refusal
from outerloop.swarm.consensus.votes import Accepted, CommitCertificate


class HotStuffReplica(RoundInstance):
    """One peer's part in deciding the current round by HotStuff-2."""

    quorum = TWO_THIRDS
    soft_state: HotStuffState

    @property
    def lock(self) -> Lock | None:
        """The commit on which this peer is locked, or None."""
        return self.hard_state.lock

    @property
    def voted(self) -> Proposal | None:
        """The proposal that this peer voted for in the current view, or None. It survives a crash."""
        accepted = self.hard_state.accepted
        assert not isinstance(accepted, Accepted), "this run was decided by Paxos: exchange.trust must not change"
        return accepted if accepted is not None and accepted.view == self.view else None

    @property
    def proposed(self) -> Proposal | None:
        """The proposal that this peer has made as leader of the current view, or None. It survives a crash."""
        return self.voted if self.leads else None

    @property
    def collects_reports(self) -> bool:
        return self.leads and not self.proposed and not self._knows_locks

    def _receive_vote(self, sender: str, message: RoundMessage) -> None:
        """Process a message about this round from another roster peer.

        A message from a later view changes this peer's view only if it contains the proof for that view.
        """
        if isinstance(message, ViewChange):
            self._receive_view_change(sender, message)
            return
        if isinstance(message, ViewWishes | ProposalMessage):
            self._receive_wishes(sender, message.wishes)
        if isinstance(message, ViewWishes):
            return
        if message.view < self.view:
            self._show_view(sender)
        elif isinstance(message, NewView):
            self._receive_report(sender, message)
        elif message.view > self.view:
            self._send([sender], self._own_view_change())  # asks for the proof of the later view
        elif isinstance(message, ProposalMessage):
            self._receive_proposal(sender, message.proposal)
        elif isinstance(message, Vote):
            self._receive_ballot(sender, message)
        elif isinstance(message, Prepared):
            self._receive_prepared(sender, message.certificate)

    def _advance(self) -> bool:
        return self._propose() or self._vote() or self._prepare() or self._commit()

    def _own_report(self) -> NewView:
        return NewView(self.number, self.hard_state.head.digest, self.view, self.lock)

    # as the leader

    @property
    def _knows_locks(self) -> bool:
        """Return whether the leader need not wait for further locks before it proposes.

        If messages arrive in time, no honest peer then has a higher lock than this peer knows.
        """
        missing = set(self.hard_state.remaining).difference(self.soft_state.reports_of(self.view))
        if self.view == 0 or self.soft_state.waited or missing == {self.hard_state.peer}:
            return True
        highest = self._highest_lock()
        return highest is not None and highest.view == self.view - 1

    def _highest_lock(self) -> Lock | None:
        reported = [report.lock for report in self.soft_state.reports_of(self.view).values()]
        return max((lock for lock in (self.lock, *reported) if lock), key=lambda lock: lock.view, default=None)

    def _stop_collecting(self) -> None:
        self.soft_state = replace(self.soft_state, waited=True)

    def _receive_report(self, sender: str, report: NewView) -> None:
        """Check and record a report. If it is for a later view, ask its sender for the proof of that view."""
        if self.hard_state.leader(report.view) != self.hard_state.peer:
            self._reject(sender, f"reports its lock for view {report.view} to a peer that does not lead it")
            return
        if report.lock and report.lock != self.lock and (reason := self._lock_error(report.lock)):
            self._reject(sender, f"reports a lock that no honest peer can have: {reason}")
            return
        self.soft_state = self.soft_state.with_report(sender, report)
        if report.view > self.view:
            self._send([sender], self._own_view_change())

    def _propose(self) -> bool:
        """Propose a commit if this peer leads the view and can propose now. Return whether it proposed one."""
        if not self.leads or self.proposed or not self._knows_locks:
            return False
        lock = self._highest_lock()
        commit = lock.commit if lock else self._own_commit()
        if commit is None or not self._has_payloads(commit, lock.certificate.votes[0][0] if lock else ""):
            return False
        unsigned = Proposal(commit, self.view, lock.certificate if lock else None, b"")
        proposal = replace(unsigned, signature=self.signer.sign(unsigned.statement))
        self._record_vote(proposal)
        self._save_and_send(self.hard_state.roster, ProposalMessage(proposal, self._view_certificate()))
        return True

    def _own_commit(self) -> Commit | None:
        return own_commit(
            self.hard_state,
            self.soft_state,
            self.countable,
            awaited=self.awaited,
            gather_policy=self.gather_policy,
            absent_rounds=self._absent_rounds,
            quorum=self.quorum,
        )

    def _receive_ballot(self, sender: str, vote: Vote) -> None:
        """Count a vote for this peer's proposal. Also verify other votes: they may prove that the sender lied."""
        if not self.signer.verify(sender, vote.statement, vote.signature):
            self._reject(sender, f"votes in view {vote.view} without a valid signature")
            return
        proposed = self.proposed
        if proposed is None or vote.digest != proposed.commit.digest:
            return
        if vote.phase == COMMIT or vote.justified == proposed.justified:
            self.soft_state = self.soft_state.with_vote(vote.phase, sender, vote.signature)

    def _prepare(self) -> bool:
        """Lock on this peer's proposal and send its certificate, once a quorum has voted for it.

        Return whether the certificate was sent.
        """
        proposed = self.proposed
        if proposed is None or (self.lock and self.lock.view == self.view):
            return False
        votes = self.soft_state.votes_of(PREPARE) | {(self.hard_state.peer, proposed.signature)}
        if not self._is_quorum([peer for peer, _ in votes]):
            return False
        certificate = PrepareCertificate(proposed.commit.digest, self.view, proposed.justified, tuple(sorted(votes)))
        self.hard_state = replace(self.hard_state, lock=Lock(proposed.commit, certificate))
        message = Prepared(self.number, self.hard_state.head.digest, certificate)
        self._save_and_send(self.hard_state.roster, message)
        return True

    def lacking(self) -> Lacking | None:
        if self.proposed:
            phase = COMMIT if self.lock is not None and self.lock.view == self.view else PREPARE
            return self._lacks("votes", {peer for peer, _ in self.soft_state.votes_of(phase)}, self._needed)
        if self.collects_reports:
            return self._lacks("reports", self.soft_state.reports_of(self.view), len(self.hard_state.remaining))
        return None

    def _decided(self) -> CommitCertificate | None:
        """Return the certificate of this peer's proposal if a quorum votes to commit it, else None."""
        proposed = self.proposed
        if proposed is None or self.lock is None or self.lock.view != self.view:
            return None
        votes = self.soft_state.votes_of(COMMIT)
        if not self._is_quorum({self.hard_state.peer, *(peer for peer, _ in votes)}):
            return None
        own = self.hard_state.peer, self._commit_vote(proposed.commit).signature
        return CommitCertificate(
            proposed.commit,
            self.view,
            tuple(sorted(votes | {own})),
            byzantine=True,
            resignations=self.hard_state.counted_resignations,
        )

    # as a follower

    def _receive_proposal(self, sender: str, proposal: Proposal) -> None:
        """Check a proposal and keep it if it is valid, even if this peer must not vote for it.

        If the leader proposes a commit that no peer may accept, ask for the next view at once.
        """
        known = self.voted or self.soft_state.proposal
        if self.hard_state.leader(proposal.view) != sender:
            self._reject(sender, f"proposes in view {proposal.view}, which it does not lead")
        elif not self.signer.verify(sender, proposal.statement, proposal.signature):
            self._reject(sender, f"proposes in view {proposal.view} without a valid signature")
        elif known and known.statement != proposal.statement:
            self._reject(sender, f"makes two proposals in view {proposal.view}")
        elif known:
            return
        elif reason := self._proposal_error(proposal):
            self._reject_commit(sender, proposal.commit, reason)
            if not self.wants_next_view:
                self._request_next_view()
        else:
            if reason := self._refusal(proposal):
                self._reject_commit(sender, proposal.commit, reason)
            self.soft_state = replace(self.soft_state, proposal=proposal)

    def _vote(self) -> bool:
        """Vote for the leader's proposal if that is allowed and all payloads are stored. Return whether it voted."""
        proposal, leader = self.soft_state.proposal, self.hard_state.leader(self.view)
        if proposal is None or self.voted or self._refusal(proposal):
            return False
        if not self._has_payloads(proposal.commit, leader):
            return False
        self._record_vote(proposal)
        head, digest = self.hard_state.head.digest, proposal.commit.digest
        signature = self.signer.sign(proposal.statement)
        vote = Vote(self.number, head, self.view, PREPARE, digest, proposal.justified, signature)
        self._save_and_send([leader], vote)
        return True

    def _receive_prepared(self, sender: str, certificate: PrepareCertificate) -> None:
        if self.hard_state.leader(certificate.view) != sender:
            self._reject(sender, f"sends the certificate of view {certificate.view}, which it does not lead")
        elif reason := self._certificate_of_votes_error(certificate):
            self._reject(sender, reason)
        else:
            self.soft_state = replace(self.soft_state, prepared=certificate)

    def _commit(self) -> bool:
        """Lock on the leader's proposal and vote to commit it, once a quorum has voted for it.

        Return whether this peer voted to commit.
        """
        prepared, proposal = self.soft_state.prepared, self.voted or self.soft_state.proposal
        if prepared is None or proposal is None or prepared.digest != proposal.commit.digest:
            return False
        self.soft_state = replace(self.soft_state, prepared=None)
        if self.lock and self.lock.view >= prepared.view:
            return False
        self.hard_state = replace(self.hard_state, lock=Lock(proposal.commit, prepared))
        self._save_and_send([self.hard_state.leader(self.view)], self._commit_vote(proposal.commit))
        return True

    # both roles

    def _record_vote(self, proposal: Proposal) -> None:
        """Record this peer's vote for a proposal. Lock on its justification if that is higher than the present lock."""
        lock, justification = self.lock, proposal.justification
        if justification and (lock is None or justification.view > lock.view):
            lock = Lock(proposal.commit, justification)
        self.hard_state = replace(self.hard_state, accepted=proposal, lock=lock)

    def _commit_vote(self, commit: Commit) -> Vote:
        """Return this peer's vote to commit the proposal of the current view, on which it is locked."""
        head, digest = self.hard_state.head.digest, commit.digest
        signature = self.signer.sign(statements.commit(self.number, head, self.view, digest))
        return Vote(self.number, head, self.view, COMMIT, digest, UNJUSTIFIED, signature)

    def _refusal(self, proposal: Proposal) -> str:
        """Return why this peer does not vote for a valid proposal, or "" if it does."""
        if self.lock and proposal.justified < self.lock.view:
            return f"ignores in view {proposal.view} that peers are locked on a commit of view {self.lock.view}"
        if proposal.justification:
            return ""
        return vote_refusal(
            self.hard_state, proposal.commit, first=True, absent_rounds=self._absent_rounds, allowed=self._allowed
        )

    def _proposal_error(self, proposal: Proposal) -> str:
        """Return why no peer may vote for a proposal, or "" if peers may."""
        if proposal.justification:
            return self._lock_error(Lock(proposal.commit, proposal.justification))
        return self._commit_error(proposal.commit)

    def _lock_error(self, lock: Lock) -> str:
        """Return why no honest peer can have this lock, or "" if one can."""
        return self._certificate_of_votes_error(lock.certificate) or self._commit_error(lock.commit)

    def _certificate_of_votes_error(self, certificate: PrepareCertificate) -> str:
        roster = self.hard_state.counted_peers([peer for peer, _ in certificate.votes])
        statement = certificate.statement(self.number, self.hard_state.head.digest)
        voters, needed = count_voters(roster, certificate.votes, statement, self.signer), self.quorum.of(roster)
        if voters >= needed:
            return ""
        found = f"valid votes from {voters} of {len(roster)} peers"
        return f"a certificate of view {certificate.view} has {found}, but needs {needed}"
