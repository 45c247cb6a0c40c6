"""View changes: a peer enters a later view of a round when a majority of the roster has signed a wish for it.

    wish           a peer wants the next view, and notifies all peers: its timeout for the leader has expired, or the
                   leader has proposed what no peer may accept
    certificate    wishes of a majority for this view or later ones: a peer that sees it enters the view and promises
    overdue enough peers want a later view that one of them must be honest: this peer's own timeout starts

An honest peer never wants more than the view after its own, so no view is entered unless a majority is at most one view
behind it. Liars alone move no peer, and move none out of a view whose leader works. A peer that is behind is sent the
certificate. Wishes are not saved across a crash: timeouts make up for missing ones, one view after the other.

This is the pacemaker of HotStuff (Yin et al., PODC 2019, arXiv 1803.05069) with the timeout certificates of Jolteon
(Gelashvili et al., FC 2022, arXiv 2106.10362), for majorities in place of two thirds. The number of wishes that others
join is that of Jolteon and PBFT (Castro and Liskov, OSDI 1999), but here joining starts a timer instead of a view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import majority, most_faulty
from outerloop.swarm.consensus.effects import Output, Persist, Reject, Send
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.consensus.messages import Message, Promise, ViewChange, ViewWish, ViewWishes
from outerloop.swarm.consensus.soft_state import SoftState
from outerloop.swarm.consensus.statements import AcceptSigner


class Pacemaker:
    """The part of a peer that keeps its current view. `memory` and `gathering` are immutable; events replace them."""

    def __init__(self, memory: HardState, notary: AcceptSigner) -> None:
        self.memory = memory
        self.notary = notary
        self.gathering = SoftState()
        self._saved = memory
        self._out: list[Output] = []

    @property
    def number(self) -> int:
        """The round to be decided."""
        return self.memory.number

    @property
    def view(self) -> int:
        return self.memory.promised

    @property
    def votes(self) -> bool:
        """Return whether this peer decides the round with the others of the roster."""
        return self.memory.votes

    @property
    def leads(self) -> bool:
        return self.memory.leader(self.view) == self.memory.peer

    @property
    def wishes_to_leave(self) -> bool:
        """Return whether this peer has announced its wish for a later view than the current one."""
        return any(one.peer == self.memory.peer and one.view > self.view for one in self.gathering.wishes)

    @property
    def overdue(self) -> bool:
        """Return whether enough others want a later view that this peer should start its timeout as well."""
        later = [one for one in self.gathering.wishes if one.view > self.view and one.peer != self.memory.peer]
        return len(later) > most_faulty(self.memory.roster)

    def _take_here(self, sender: str, here: ViewChange) -> None:
        """Process a wish. Prove the current view to a peer that is behind; ask a peer that is ahead for its proof."""
        wish = ViewWish(sender, here.view, here.signature)
        repeated = wish in self.gathering.wishes
        self._take_wishes(sender, (wish,))
        if here.view < self.view or (here.view == self.view and repeated):
            self._send([sender], *self._proof())
        elif here.view > self.view + 1:
            self._send([sender], self._here())

    def _take_wishes(self, sender: str, wishes: Iterable[ViewWish]) -> None:
        """Record wishes of any peers, from whichever sender, and enter the view that a majority now wants."""
        known = {one.peer: one.view for one in self.gathering.wishes}
        later = [one for one in wishes if one.peer in self.memory.roster and one.view > known.get(one.peer, -1)]
        for one in later:
            said = statements.wish(self.number, self.memory.head.digest, one.view)
            if not self.notary.verify(one.peer, said, one.signature):
                self._refuse(sender, f"shows a wish of {one.peer} for view {one.view} that is not signed by it")
                return
        self.gathering = self.gathering.with_wishes(later)
        if (view := reached(self.memory.roster, self.gathering.wishes)) > self.view:
            self._enter(view)
            self._promise()

    def _wish(self) -> None:
        """Notify all peers that this peer wants the next view."""
        number, head, view = self.number, self.memory.head.digest, self.view + 1
        signature = self.notary.sign(statements.wish(number, head, view))
        self._tell(self.memory.roster, ViewChange(number, head, view, signature))
        self._take_wishes(self.memory.peer, (ViewWish(self.memory.peer, view, signature),))

    def _enter(self, view: int) -> None:
        self.memory = replace(self.memory, promised=view)
        self.gathering = self.gathering.in_another_view()

    def _promise(self) -> None:
        """Send the promise for the new view to its leader. As the leader, send the others the proof of the view."""
        if self.leads:
            self._tell(self.memory.roster, *self._proof())
        else:
            self._tell([self.memory.leader(self.view)], self._promised())

    def _promised(self) -> Promise:
        """Return this peer's promise for the current view, in which it has not accepted anything yet."""
        number, head, accepted = self.number, self.memory.head.digest, self.memory.accepted
        said = statements.promise(number, head, self.view, accepted.vote if accepted else None)
        return Promise(number, head, self.view, accepted, self.notary.sign(said))

    def _here(self) -> ViewChange:
        """Return this peer's current view, signed as its wish to be there."""
        number, head, view = self.number, self.memory.head.digest, self.view
        return ViewChange(number, head, view, self.notary.sign(statements.wish(number, head, view)))

    def _proof(self) -> list[ViewWishes]:
        """Return proof that a majority wants the current view: empty in view 0, or if it was lost in a crash."""
        wishes = certificate(self.memory.roster, self.gathering.wishes, self.view) if self.view else ()
        return [ViewWishes(self.number, self.memory.head.digest, wishes)] if wishes else []

    def _tell(self, peers: Iterable[str], *messages: Message) -> None:
        """Send messages after saving: promises and accepts are on disk before any peer receives them."""
        self._save()
        self._send(peers, *messages)

    def _send(self, peers: Iterable[str], *messages: Message) -> None:
        self._out += [Send(peer, one) for peer in peers for one in messages if peer != self.memory.peer]

    def _save(self) -> None:
        if self.memory != self._saved:
            self._saved = self.memory
            self._out.append(Persist(self.memory))

    def _refuse(self, sender: str, reason: str) -> None:
        self._out.append(Reject(sender, reason))


def reached(roster: tuple[str, ...], wishes: Collection[ViewWish]) -> int:
    """Return the latest view such that a majority wants it or a later one; 0 if no majority has sent wishes.

    `wishes`: the last of each peer, signatures checked.
    """
    views = sorted((one.view for one in wishes), reverse=True)
    return views[majority(roster) - 1] if len(views) >= majority(roster) else 0


def certificate(roster: tuple[str, ...], wishes: Collection[ViewWish], view: int) -> tuple[ViewWish, ...]:
    """Return the wishes of a majority for this view or later ones, in order; empty if there is no majority."""
    proving = tuple(sorted(one for one in wishes if one.view >= view))
    return proving if len(proving) >= majority(roster) else ()
