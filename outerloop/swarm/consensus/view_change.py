"""View changes: a peer enters a later view of a round when a majority of the roster has signed a wish for it.

Paxos (paxos/) and HotStuff-2 (hotstuff/) both change views in this way, HotStuff-2 with two thirds in place of a
majority, and with a report of the lock in place of the promise.

    wish           a peer notifies all peers that it wants the next view, because its timeout for the leader has expired
                   or the leader has proposed a commit that no peer may accept
    certificate    the wishes of a majority for this view or a later one: a peer that receives it enters the view and
                   sends its promise
    overdue        f + 1 other peers, at least one of them honest, want a later view: this peer starts its own timeout
                   (f: the number of lying peers that is tolerated, commit.max_faulty)

An honest peer never wants a view later than the one after its own, so no view is entered unless a majority is at most
one view behind it. Liars alone cannot move a peer to another view, and so cannot end a view whose leader works. A peer
that is behind receives the certificate. Wishes are lost in a crash; timeouts then renew them, one view at a time.

This is the pacemaker of HotStuff (Yin et al., PODC 2019, arXiv 1803.05069) with the timeout certificates of Jolteon
(Gelashvili et al., FC 2022, arXiv 2106.10362), but with majorities in place of two thirds. As in Jolteon and PBFT
(Castro and Liskov, OSDI 1999), a peer joins once f + 1 peers, at least one of them honest, want a later view, but here
it joins by starting its timer, not by changing its view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import max_faulty
from outerloop.swarm.consensus.effects import Effect, Persist, Reject, Send
from outerloop.swarm.consensus.messages import Message, Resigned, ViewChange, ViewWishes
from outerloop.swarm.consensus.quorum import MAJORITY
from outerloop.swarm.consensus.round_state import RoundState
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import StatementSigner
from outerloop.swarm.consensus.votes import ViewWish


class Pacemaker:
    """State machine for one peer's current view: it sends and receives wishes, and reports to the leader of a new view.

    `hard_state` and `soft_state` are immutable; each event replaces them. `quorum`: how many peers must agree.
    """

    quorum = MAJORITY

    def __init__(self, hard_state: HardState, signer: StatementSigner, soft_state: RoundState) -> None:
        self.hard_state = hard_state
        self.signer = signer
        self.soft_state = soft_state
        self._saved = hard_state
        self._effects: list[Effect] = []

    @property
    def number(self) -> int:
        """The round that is to be decided next."""
        return self.hard_state.number

    @property
    def view(self) -> int:
        return self.hard_state.promised

    @property
    def votes(self) -> bool:
        """Return whether this peer votes in the current round."""
        return self.hard_state.votes

    @property
    def _needed(self) -> int:
        """The number of peers that must agree in this round, out of those that have not resigned."""
        return self.quorum.of(self.hard_state.remaining)

    def _is_quorum(self, voters: Collection[str]) -> bool:
        """Return whether these peers of the roster are enough to decide in this round."""
        return len(voters) >= self.quorum.of(self.hard_state.counted_peers(voters))

    @property
    def _counted_wishes(self) -> list[ViewWish]:
        """The wishes of the peers that vote in this round."""
        return [wish for wish in self.soft_state.wishes if wish.peer in self.hard_state.remaining]

    @property
    def leads(self) -> bool:
        return self.hard_state.leader(self.view) == self.hard_state.peer

    @property
    def leader_resigned(self) -> bool:
        """Return whether the leader of the current view has resigned, so that waiting for it is pointless."""
        return self.hard_state.leader(self.view) in self.hard_state.resigned

    @property
    def wants_next_view(self) -> bool:
        """Return whether this peer has announced its wish for a later view than the current one."""
        return any(wish.peer == self.hard_state.peer and wish.view > self.view for wish in self.soft_state.wishes)

    @property
    def overdue(self) -> bool:
        """Return whether enough other peers want a later view for this peer to start its own timeout."""
        later = [wish for wish in self.soft_state.wishes if wish.view > self.view and wish.peer != self.hard_state.peer]
        return len(later) > max_faulty(self.hard_state.roster)

    def _receive_view_change(self, sender: str, message: ViewChange) -> None:
        """Process a wish of `sender`.

        If the sender is behind, send it the proof that a majority wants this peer's view. If the sender is more than
        one view ahead, ask it for the proof of its view.
        """
        wish = ViewWish(sender, message.view, message.signature)
        repeated = wish in self.soft_state.wishes
        self._receive_wishes(sender, (wish,))
        if message.view < self.view or (message.view == self.view and repeated):
            self._send([sender], *self._view_proof())
        elif message.view > self.view + 1:
            self._send([sender], self._own_view_change())

    def _receive_wishes(self, sender: str, wishes: Iterable[ViewWish]) -> None:
        """Record signed wishes, whichever peer forwarded them. If a majority now wants a later view, enter it."""
        known = {wish.peer: wish.view for wish in self.soft_state.wishes}
        voters, head = self.hard_state.roster, self.hard_state.head.digest
        later = [wish for wish in wishes if wish.peer in voters and wish.view > known.get(wish.peer, -1)]
        for wish in later:
            if not self.signer.verify(wish.peer, statements.wish(self.number, head, wish.view), wish.signature):
                self._reject(sender, f"sent a wish of {wish.peer} for view {wish.view} without a valid signature")
                return
        self.soft_state = self.soft_state.with_wishes(later)
        if (view := reached(self._counted_wishes, self._needed)) > self.view:
            self._enter_view(view)
            self._report_to_leader()

    def _request_next_view(self) -> None:
        """Notify all peers that this peer wants the next view, and of the resignations that it knows."""
        number, head, view = self.number, self.hard_state.head.digest, self.view + 1
        signature = self.signer.sign(statements.wish(number, head, view))
        resignations = self.hard_state.counted_resignations
        resigned = [Resigned(number, head, resignations)] if resignations else []
        self._save_and_send(self.hard_state.remaining, *resigned, ViewChange(number, head, view, signature))
        self._receive_wishes(self.hard_state.peer, (ViewWish(self.hard_state.peer, view, signature),))

    def _enter_view(self, view: int) -> None:
        self.hard_state = replace(self.hard_state, promised=view)
        self.soft_state = self.soft_state.in_another_view()

    def _report_to_leader(self) -> None:
        """Send this peer's report for the new view to the view's leader.

        If this peer itself leads the new view, send the proof of the view to all peers instead.
        """
        if self.leads:
            self._save_and_send(self.hard_state.roster, *self._view_proof())
        else:
            self._save_and_send([self.hard_state.leader(self.view)], self._own_report())

    def _own_report(self) -> Message:
        """Return this peer's report for the current view, in which it has not voted yet."""
        raise NotImplementedError

    def _own_view_change(self) -> ViewChange:
        """Return this peer's signed wish to be in its current view."""
        number, head, view = self.number, self.hard_state.head.digest, self.view
        return ViewChange(number, head, view, self.signer.sign(statements.wish(number, head, view)))

    def _view_proof(self) -> list[ViewWishes]:
        """Return the proof that a majority wants the current view. Empty in view 0, or if a crash lost the wishes."""
        wishes = self._view_certificate()
        return [ViewWishes(self.number, self.hard_state.head.digest, wishes)] if wishes else []

    def _view_certificate(self) -> tuple[ViewWish, ...]:
        return certificate(self._counted_wishes, self.view, self._needed) if self.view else ()

    def _show_view(self, sender: str) -> None:
        """Send a peer that is behind the proof of this peer's view, or this peer's wish for the view if it has none."""
        shown: Sequence[Message] = self._view_proof() or [self._own_view_change()]
        self._send([sender], *shown)

    def _save_and_send(self, peers: Iterable[str], *messages: Message) -> None:
        """Save the hard state, then send, so that promises and accepts are on disk before any peer receives them."""
        self._save()
        self._send(peers, *messages)

    def _send(self, peers: Iterable[str], *messages: Message) -> None:
        self._effects += [Send(peer, message) for peer in peers for message in messages if peer != self.hard_state.peer]

    def _save(self) -> None:
        if self.hard_state != self._saved:
            self._saved = self.hard_state
            self._effects.append(Persist(self.hard_state))

    def _reject(self, sender: str, reason: str) -> None:
        self._effects.append(Reject(sender, reason))


def reached(wishes: Collection[ViewWish], needed: int) -> int:
    """Return the latest view v such that `needed` peers want v or a later view; 0 if fewer peers have sent wishes.

    `wishes`: the last wish of each peer, with verified signatures.
    """
    views = sorted((wish.view for wish in wishes), reverse=True)
    return views[needed - 1] if len(views) >= needed else 0


def certificate(wishes: Collection[ViewWish], view: int, needed: int) -> tuple[ViewWish, ...]:
    """Return the sorted wishes for this view or later ones, or () if they are fewer than `needed`."""
    proving = tuple(sorted(wish for wish in wishes if wish.view >= view))
    return proving if len(proving) >= needed else ()
