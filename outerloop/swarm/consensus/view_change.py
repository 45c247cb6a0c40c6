"""View changes: a peer enters a later view of a round when a majority of the roster has signed a wish for it.

The view changes of HotStuff-2 (hotstuff/__init__.py) are the same, with two thirds in place of a majority; what follows
about promises, justifications and accountability is about Paxos (paxos/__init__.py).

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

A proposal carries its justification, the proof that its leader followed the rule of proposer.py, which every recipient
checks. The justification has one link for every view in which the commit was proposed. A link contains the leader's
signed accept and, from view 1 on, the signed promises of a majority for that view, each with the commit that its peer
had accepted.

    first link     belongs to the view of the first proposal; none of its promises reports a commit, so the leader was
                   free to choose
    later links    the latest commit that the promises report is this commit, in the view of the previous link

If the promises report two commits in the latest view, the leader of that view has proposed both. In that case its
promise does not count, the other promises must be a majority without it, and the commit that most of them report is
chosen. So one liar of four peers cannot cause a fork: two of the three other peers have accepted the decided commit,
and both report it.

Accountability. Two decided commits X and Y of one round identify a peer that lied, regardless of how many peers lied.
Let a majority accept X in view v and Y in view w. If v = w, a peer is in both majorities and has accepted two commits
in one view. Otherwise let v < w, and take the first link of Y in a view after v: some peer whose promise is in it has
also accepted X in view v. If its promise reports no commit, a view before v, or another commit in v, that peer lied,
because no honest peer does so. If its promise reports X in v, then the previous link is of view v, and the leader of v
has signed both X and Y in v. All signatures are in the two certificates, except the accept of a leader in view 0, which
its acceptors received with the proposal. (This follows the forensics of Sheng et al., "BFT Protocol Forensics", CCS
2021, arXiv 2010.06785. The promises are those of Paxos, and carry their proof as the view changes of PBFT do, Castro
and Liskov, OSDI 1999.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, leader, majority, max_faulty
from outerloop.swarm.consensus.effects import Effect, Persist, Reject, Send
from outerloop.swarm.consensus.messages import Message, Resigned, ViewChange, ViewWishes
from outerloop.swarm.consensus.quorum import MAJORITY
from outerloop.swarm.consensus.resignation import Resignations, remaining_peers
from outerloop.swarm.consensus.state import HardState, RoundState
from outerloop.swarm.consensus.statements import AcceptSigner, accept, promise
from outerloop.swarm.consensus.votes import Accepted, ChainLink, Pledge, ViewWish


def justification_error(
    head: Commit, proposal: Accepted, signer: AcceptSigner, *, resignations: Resignations = ()
) -> str:
    """Return why the signed links of a proposal do not justify it after commit `head`, or "" if they do.

    `resignations`: valid ones for this round.
    """
    commit, before = proposal.commit, None
    if not proposal.links or proposal.links[0].view != commit.view:
        return f"does not show that commit {commit.number} was proposed in view {commit.view}"
    for link in proposal.links:
        proposer = leader(signer.session, head, link.view)
        if not signer.verify(proposer, accept(commit.number, commit.parent, link.view, commit.digest), link.signature):
            return f"does not show that {proposer}, which leads view {link.view}, proposed commit {commit.number}"
        if link.view and (reason := _link_error(head, commit, link, before, signer, resignations)):
            return f"commit {commit.number} may not be proposed in view {link.view}: {reason}"
        before = link
    return ""


def _link_error(
    head: Commit,
    commit: Commit,
    link: ChainLink,
    before: ChainLink | None,
    signer: AcceptSigner,
    resignations: Resignations,
) -> str:
    roster = head.roster
    promised = {
        pledge.peer
        for pledge in link.pledges
        if pledge.peer in roster
        and signer.verify(
            pledge.peer, promise(commit.number, commit.parent, link.view, pledge.accepted), pledge.signature
        )
    }
    pledges = credible(signer.session, head, link.pledges)
    remaining = remaining_peers(head, resignations, voters=[pledge.peer for pledge in pledges])
    if len(promised) < len(link.pledges) or len(pledges) < majority(remaining):
        return (
            f"{len(promised)} of its {len(link.pledges)} promises are signed by roster peers, but all must be, and"
            f" promises from more than half of the {len(remaining)} roster peers that vote must count"
        )
    view, commits = binding(pledges)
    if before is None:
        return f"the promises report a commit that was accepted in view {view}" if commits else ""
    if view != before.view or commit.digest not in commits:
        return f"the promises do not report this commit as the last accepted one, in view {before.view}"
    return ""


def credible(session: str, head: Commit, pledges: tuple[Pledge, ...]) -> tuple[Pledge, ...]:
    """Return the promises that count.

    If the promises report two commits for the latest view that they report, drop the promise of that view's leader: it
    has proposed both commits.
    """
    reported = {pledge.accepted for pledge in pledges if pledge.accepted}
    latest = max((view for view, _ in reported), default=0)
    if sum(view == latest for view, _ in reported) < 2:
        return pledges
    return tuple(pledge for pledge in pledges if pledge.peer != leader(session, head, latest))


def binding(pledges: Collection[Pledge]) -> tuple[int, set[bytes]]:
    """Return the latest view that the promises report, and the commits that most of them report for that view.

    One of these commits must be proposed again. If the set is empty, the choice is free.
    """
    reported = Counter(pledge.accepted for pledge in pledges if pledge.accepted)
    latest = max((view for view, _ in reported), default=-1)
    counts = {digest: count for (view, digest), count in reported.items() if view == latest}
    return latest, {digest for digest, count in counts.items() if count == max(counts.values())}


class Pacemaker:
    """Tracks one peer's current view: sends and receives wishes, and reports to the leader of a new view.

    `hard_state` and `soft_state` are immutable; each event replaces them. `quorum`: the peers that decide.
    """

    quorum = MAJORITY

    def __init__(self, hard_state: HardState, signer: AcceptSigner, soft_state: RoundState) -> None:
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
        """The number of peers that decide in this round, of those that have not resigned."""
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

        If the sender is behind, send it the proof that a majority wants this peer's view. If it is ahead, ask it for
        the proof of its view.
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
        """Send this peer's report for the new view to its leader; if this peer leads, send the view's proof to all."""
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
        """Send the proof of this peer's view to a peer that is behind."""
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
