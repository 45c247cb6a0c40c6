"""Consensus on the commit of each round: a chain of decisions, as a state machine without clock or network.

Events arrive as method calls, and every method returns the effects to carry out, in order (effects.py). No method
raises an error because of data that a peer sent, and no method waits. A majority of the roster M_r, which commit r - 1
names, decides round r (paxos/). A peer's head is the last commit that it has applied. When a peer receives the commit
after its head, it applies that commit.

Two protocols decide a round: Paxos (paxos/chain.py, exchange.trust=members), which the rest of this text is about, and
HotStuff-2 (hotstuff/__init__.py, exchange.trust=nobody), which withstands liars. The chain is the same for both.

Why no two peers ever apply different commits of a round. Within a round, Paxos guarantees this: if a majority accepted
commit X in view v, the leader of a later view needs the promises of a majority. The two majorities share a peer, and
that peer reports X to the leader. Between rounds, M_r and M_r+1 need not share a majority, or even a single peer. But
no peer votes in round r + 1 before commit r is its head. There is only one commit r, so all voters of round r + 1 count
majorities of the same M_r+1, and no vote in round r + 1 can undo commit r. Rosters change only for the sake of
liveness: each round needs a majority of its own roster to be up, and one running peer that can report the head.

Two things must survive a crash. First, Persist effects: each must be on disk before a later effect is carried out.
Second, payloads, from `payload_stored` until their round is ROUNDS_KEPT rounds old, because a peer that accepts a
commit promises to serve its payloads. A commit is applied and passed on before it is saved. This is safe because the
accepts of a majority are on disk, so a peer that loses the commit in a crash learns the same commit again. A peer that
has lost its saved state must return under a new identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import ApplyCommit, CatchUp, Effect, Reject
from outerloop.swarm.consensus.forks import ForkResolver
from outerloop.swarm.consensus.messages import JoinRequest, Message, Resigned, RoundMessage
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.round_state import RoundState
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.statements import StatementSigner
from outerloop.swarm.consensus.votes import CommitCertificate, digests
from outerloop.swarm.validation import MAX_AMOUNT, MAX_PEERS, id_of


class Chain(ForkResolver):
    """One peer's state machine for the chain of commits, with any protocol for a round.

    Three arguments must be equal on all peers: `gather_policy`, `absent_rounds` (a peer that misses this many commits
    in a row leaves the roster) and `max_bytes` (maximum size of a payload). `allowed` returns whether this peer
    currently allows the named peer to take part.

    The caller must read `number` and `view` after every event, because each timer belongs to one round and view.
    Events of outdated timers have no effect. `explain.waiting_for` describes what the round is waiting for.
    """

    _round_state: type[RoundState]
    _ballot: type[RoundMessage]

    def __init__(
        self,
        hard_state: HardState,
        *,
        signer: StatementSigner,
        gather_policy: GatherPolicy,
        absent_rounds: int,
        max_bytes: int = MAX_AMOUNT,
        allowed: Callable[[str], bool] = lambda name: True,
    ) -> None:
        """Start from `hard_state`, which must be on disk: HardState.first, HardState.joining, or the saved state."""
        if not 1 <= absent_rounds <= ROUNDS_KEPT:
            raise ValueError(f"absent_rounds must be 1 to {ROUNDS_KEPT}; got {absent_rounds}")
        super().__init__(
            hard_state,
            signer=signer,
            soft_state=self._round_state(),
            gather_policy=gather_policy,
            absent_rounds=absent_rounds,
            max_bytes=max_bytes,
            allowed=allowed,
        )

    def receive(self, sender: str, message: Message) -> list[Effect]:
        """Process a message from `sender`, a peer name that the network layer has authenticated."""
        if isinstance(message, Resigned):
            self._receive_resignations(sender, message.resignations)
        if isinstance(message, CommitCertificate):
            self._learn(sender, message)
        elif message.number > self.number:
            self._effects.append(CatchUp(message.number, sender))
        elif message.number < self.number:
            if not isinstance(message, self._ballot):  # the sender of a late vote will get the certificate anyway
                self._save_and_send([sender], self._own_view_change())
            if digests(self.hard_state.log).get(message.number - 1, message.head) != message.head:
                self._reject_other_chain(sender, message.number)
        elif message.head != self.hard_state.head.digest:
            self._reject_other_chain(sender, message.number)
        elif isinstance(message, Resigned):
            pass  # recorded at the top of this method
        elif isinstance(message, JoinRequest):
            self._record_join_request(sender, message)
        elif sender not in self.hard_state.roster or sender == self.hard_state.peer:
            self._reject(sender, f"is not another peer in the roster of commit {self.number}")
        elif self.votes:
            self._receive_vote(sender, message)
        return self._step()

    def payload_stored(self, number: int, participant: Participant) -> list[Effect]:
        """Record that a payload of round `number` is on disk. After a restart, call this for every stored payload."""
        if number >= self.number:
            self.stored = {**self.stored, number: self.stored.get(number, frozenset()) | {participant}}
        return self._step()

    def grace(self, number: int) -> list[Effect]:
        """Record that the grace period of round `number` has ended."""
        if number == self.number:
            self.soft_state = replace(self.soft_state, grace=True)
        return self._step()

    def deadline(self, number: int) -> list[Effect]:
        """Record that the gather deadline of round `number` has passed."""
        if number == self.number:
            self.soft_state = replace(self.soft_state, deadline=True)
        return self._step()

    def reconsider(self) -> list[Effect]:
        """Check again which steps are possible, e.g. after an expulsion: the remaining peers may now be enough."""
        return self._step()

    def timeout(self, number: int, view: int) -> list[Effect]:
        """Ask for the next view, because the current view has taken too long or an earlier request was lost.

        Does nothing unless `number` and `view` are the current ones.
        """
        if (number, view) == (self.number, self.view) and self.votes:
            self._request_next_view()
        return self._step()

    def reports_over(self, number: int, view: int) -> list[Effect]:
        """Stop waiting, as the leader of a view, for the other peers' reports (`collects_reports`): time is up.

        Does nothing unless `number` and `view` are the current ones.
        """
        if (number, view) == (self.number, self.view):
            self._stop_collecting()
        return self._step()

    def resign(self) -> list[Effect]:
        """Begin to leave: resign in the current round, or in the next round if this peer has voted in the current one.

        This peer does not resign while the other peers could not continue without it (resignation.py).
        """
        self.leaving = True
        return self._step()

    def request_join(self) -> list[Effect]:
        """Ask the roster peers to count this peer's payload although this peer is not in the roster.

        Does nothing if this peer votes in the round. This peer must hold the run's state as of the head. The caller
        must repeat the request in each round, and periodically within a round. If this peer has resigned and is still
        in the roster, it sends its resignation again instead: it may ask once a commit has dropped it from the roster.
        """
        if self.hard_state.peer in self.hard_state.resigned:
            self._send_resignations()
        elif not self.votes:
            number, head = self.number, self.hard_state.head.digest
            signature = self.signer.sign(statements.ask(number, head))
            self._save_and_send(self.hard_state.roster, JoinRequest(number, head, signature))
        return self._step()

    def install_snapshot(self, decided: CommitCertificate) -> list[Effect]:
        """Move the head to a later commit. Use this if no peer's log reaches back to the current head.

        The caller must download the run's state as of that commit.
        """
        if decided.commit.number >= self.number:
            self._begin(self.hard_state.moved_to(decided))
            self._record_resignations(self.hard_state.peer, decided.resignations)
        return self._step()

    def next_commit_error(self, decided: CommitCertificate) -> str:
        """Return why `decided` cannot be applied as the commit after the head, or "" if it can.

        It counts the resignations that this peer knows, and those in the certificate.
        """
        error = self._certificate_error(self.hard_state.head, decided)
        return error or self._commit_error(decided.commit, decided.resignations)

    def commits_since(self, number: int) -> tuple[CommitCertificate, ...] | None:
        """Return the commits after commit `number`, oldest first, or None if the log does not reach back that far.

        If the result is None, a peer that lacks these commits must download the run's state.
        """
        first = self.hard_state.log[0]
        if number < first.commit.number - bool(first.accepts):  # the first entry may have no proof (forks.py)
            return None
        return tuple(decided for decided in self.hard_state.log if decided.commit.number > number)

    # implemented by each protocol (paxos/, hotstuff/)

    def _receive_vote(self, sender: str, message: RoundMessage) -> None:
        """Process a message about this round from another roster peer."""
        raise NotImplementedError

    def _advance(self) -> bool:
        """Vote or propose if this has become possible. Return whether anything changed."""
        raise NotImplementedError

    def _decided(self) -> CommitCertificate | None:
        """Return the certificate of this peer's proposal if enough peers have voted for it, else None."""
        raise NotImplementedError

    def _stop_collecting(self) -> None:
        """Stop waiting for reports: propose with those that have arrived. No effect if the protocol needs no wait."""

    # shared by all protocols

    def _step(self) -> list[Effect]:
        """Take every step that has become possible, save the hard state, and return the effects to carry out."""
        while self.votes and (self._resign() or self._advance() or self._decide()):
            pass
        self._save()
        out, self._effects = self._effects, []
        return out

    def _learn(self, sender: str, decided: CommitCertificate) -> None:
        """Apply a decided commit of this round. Request the commits before it if it is of a later round.

        The certificate is checked first: it has one signature per roster peer, whereas any peer can make up a commit
        that contains many valid requests to join. The log keeps the certificate with all resignations that this peer
        knows for the round (resignation.py).
        """
        number = decided.commit.number
        self._record_resignations(sender, decided.resignations)
        if number > self.number:
            self._effects.append(CatchUp(number, sender))
        known = {entry.commit.number: entry.commit for entry in self.hard_state.log}
        if known.get(number, decided.commit) != decided.commit:
            self._effects.append(
                Reject(sender, f"sent commit {number}, which differs from the local one", compare_logs=True)
            )
        if number != self.number:
            return
        reason = self._certificate_error(self.hard_state.head, decided) or self._commit_error(decided.commit)
        if reason:
            self._effects.append(
                Reject(sender, reason, compare_logs=decided.commit.parent != self.hard_state.head.digest)
            )
        else:
            self._apply(replace(decided, resignations=self.hard_state.counted_resignations))

    def _decide(self) -> bool:
        """Apply this peer's proposal if enough peers have accepted it. Return whether it was applied.

        Send the certificate to the old roster, the new roster, and the peers that asked to be counted.
        """
        decided = self._decided()
        if decided is None:
            return False
        concerned = {*self.hard_state.roster, *decided.commit.roster, *self.soft_state.asked}
        self._apply(decided)
        self._send(sorted(concerned), decided)
        return True

    def _apply(self, decided: CommitCertificate) -> None:
        """Apply a decided commit without saving it first.

        The accepts of a majority are on disk, so a peer that loses the commit in a crash learns it again.
        """
        self._begin(self.hard_state.learned(decided))
        self._effects.append(ApplyCommit(decided.commit))

    def _reject_other_chain(self, sender: str, number: int) -> None:
        reason = f"its commit {number} follows another one than this peer's: their histories differ"
        self._effects.append(Reject(sender, reason, compare_logs=True))

    def _begin(self, hard_state: HardState) -> None:
        """Replace the hard state, and start the round after its head with an empty soft state."""
        self.hard_state, self.soft_state = hard_state, self._round_state()
        self.stored = {number: payloads for number, payloads in self.stored.items() if number >= self.number}

    def _record_join_request(self, sender: str, asking: JoinRequest) -> None:
        """Record a peer's request to be counted, unless a roster peer or another requester already uses its key."""
        taken = {id_of(peer) for peer in self.soft_state.asked.union(self.hard_state.roster)}
        if id_of(sender) in taken or not self._allowed(sender) or len(self.soft_state.asks) == MAX_PEERS:
            return
        if not self.signer.verify(sender, statements.ask(asking.number, asking.head), asking.signature):
            self._reject(sender, f"asks to join in commit {asking.number} without a valid signature")
            return
        self.soft_state = replace(self.soft_state, asks=self.soft_state.asks | {(sender, asking.signature)})
