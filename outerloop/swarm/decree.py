"""One round's decree: single-decree Paxos over the round's roster, with what one peer remembers and knows of it.

    view 0       leader(0) closes the gather (closing.py), accepts its own proposal, and proposes it to all
    accept       a peer accepts what is proposed in a view that is not before the one it promised, once it is its own
                 head's next commit and every payload named is held
    decided      the leader has accepts of a majority (agreement.py goes on from there)
    view v > 0   begins with one peer's timeout: it promises v to leader(v), which calls all others there (here). With
                 promises of a majority the leader proposes what was accepted in the highest view among them, else its
                 own choice; it holds the payloads and accepts its proposal itself before it proposes

A leader proposes once in a view: its own accept is on disk before anybody hears of the proposal, and is found there
after a crash. That view 0 needs no promises rests on this, and on there being no earlier view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from outerloop.swarm.ballots import Accept, Accepted, Decided, Here, Message, Promise, Propose
from outerloop.swarm.closing import Closing
from outerloop.swarm.commits import Commit, Participant, majority
from outerloop.swarm.gathering import Gathering
from outerloop.swarm.leading import choice
from outerloop.swarm.memory import Memory
from outerloop.swarm.outputs import Output, Refused, Save, Send, Want
from outerloop.swarm.scrutiny import Notary, objection


class Decree:
    """`memory` and `gathering` are immutable values that events replace; `held` are payloads by round."""

    def __init__(
        self, memory: Memory, *, notary: Notary, closing: Closing, absent_rounds: int, most_bytes: int
    ) -> None:
        self.memory = memory
        self.notary = notary
        self.gathering = Gathering()
        self.held: dict[int, frozenset[Participant]] = {}  # replaced, not changed
        self.closing = closing
        self._absent_rounds = absent_rounds
        self._most_bytes = most_bytes
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
        """Whether this peer is in the roster of the round."""
        return self.memory.peer in self.memory.roster

    @property
    def leads(self) -> bool:
        return self.memory.leader(self.view) == self.memory.peer

    @property
    def proposed(self) -> Accepted | None:
        """What this peer has proposed as the leader of the view at hand: its own accept says so, also after a crash."""
        accepted = self.memory.accepted
        return accepted if self.leads and accepted is not None and accepted.view == self.view else None

    @property
    def payloads(self) -> frozenset[Participant]:
        """Those of the round that are held."""
        return self.held.get(self.number, frozenset())

    def _take(self, sender: str, message: Here | Promise | Propose | Accept) -> None:
        """A message about this round, from another peer of its roster."""
        if message.view < self.view:
            self._tell([sender], self._here())
        elif isinstance(message, Promise):
            self._take_promise(sender, message)
        elif isinstance(message, Propose):
            self._take_proposal(sender, message)
        elif isinstance(message, Accept):
            self._take_accept(sender, message)
        elif message.view > self.view:
            self._promise(message.view)

    def _take_promise(self, sender: str, promise: Promise) -> None:
        if self.memory.leader(promise.view) != self.memory.peer:
            self._refuse(sender, f"promises view {promise.view} to a peer that does not lead it")
            return
        if promise.accepted and (reason := self._objection(promise.accepted.commit)):
            self._refuse(sender, f"has accepted what nobody may: {reason}")
            return
        if promise.view > self.view:
            self._promise(promise.view)
        promises = self.gathering.promises | {(sender, promise.accepted)}
        self.gathering = replace(self.gathering, promises=promises)

    def _take_proposal(self, sender: str, propose: Propose) -> None:
        if reason := self._against(sender, propose.accepted):
            self._refuse(sender, reason)
            return
        if propose.view > self.view:
            self._enter(propose.view)
        self.gathering = replace(self.gathering, proposal=propose.accepted)

    def _against(self, sender: str, proposal: Accepted) -> str:
        """Why a proposal is refused for good."""
        accepted = self.memory.accepted
        if self.memory.leader(proposal.view) != sender:
            return f"proposes in view {proposal.view}, which it does not lead"
        if accepted and accepted.view == proposal.view and accepted != proposal:
            return f"proposes two commits in view {proposal.view}"
        return self._objection(proposal.commit)

    def _objection(self, commit: Commit) -> str:
        """Why this cannot be what the round came to, whoever says so; the same on every peer."""
        return objection(self.memory, commit, min_peers=self.closing.min_peers, most_bytes=self._most_bytes)

    def _take_accept(self, sender: str, accept: Accept) -> None:
        if not self.proposed or (accept.view, accept.digest) != (self.view, self.proposed.commit.digest):
            return
        if not self.notary.right(sender, self.number, accept.view, accept.digest, accept.signature):
            self._refuse(sender, f"accepts in view {accept.view} without signing that")
        elif sender not in self.gathering.acceptors:
            accepts = self.gathering.accepts | {(sender, accept.signature)}
            self.gathering = replace(self.gathering, accepts=accepts)

    def _accept(self) -> bool:
        """Accept the proposal that waits, if that is possible now."""
        proposal, leader = self.gathering.proposal, self.memory.leader(self.view)
        if proposal is None or not self._holds_all(proposal.commit, leader):
            return False
        self.memory = replace(self.memory, accepted=proposal)
        self.gathering = replace(self.gathering, proposal=None)
        digest = proposal.commit.digest
        signature = self.notary.sign(self.number, self.view, digest)
        self._tell([leader], Accept(self.number, self.memory.head.digest, self.view, digest, signature))
        return True

    def _propose(self) -> bool:
        """Propose as the leader, if that is possible now."""
        if not self.leads or self.proposed:
            return False
        chosen = choice(
            self.memory, self.gathering, self.payloads, closing=self.closing, absent_rounds=self._absent_rounds
        )
        if chosen is None or not self._holds_all(*chosen):
            return False
        proposal = Accepted(self.view, chosen[0])
        self.memory = replace(self.memory, accepted=proposal)
        self._tell(self.memory.roster, Propose(proposal))
        return True

    def _decided(self) -> Decided | None:
        """What this peer proposed, once a majority has accepted it."""
        proposed, accepts = self.proposed, self.gathering.accepts
        if proposed is None or 1 + len(accepts) < majority(self.memory.roster):
            return None
        own = self.memory.peer, self.notary.sign(self.number, self.view, proposed.commit.digest)
        return Decided(proposed.commit, self.view, tuple(sorted(accepts | {own})))

    def _promise(self, view: int) -> None:
        """On to a later view: tell its leader, or as the leader call the others."""
        self._enter(view)
        if self.leads:
            self._tell(self.memory.roster, self._here())
        else:
            head, accepted = self.memory.head.digest, self.memory.accepted
            self._tell([self.memory.leader(view)], Promise(self.number, head, view, accepted))

    def _enter(self, view: int) -> None:
        self.memory = replace(self.memory, promised=view)
        self.gathering = self.gathering.in_another_view()

    def _holds_all(self, commit: Commit, holder: str) -> bool:
        """Whether every payload is held; asks once a view for those that are not."""
        missing = tuple(one for one in commit.participants if one not in self.payloads)
        if not self.gathering.wanted.issuperset(missing):
            self.gathering = replace(self.gathering, wanted=self.gathering.wanted.union(missing))
            self._out.append(Want(self.number, missing, holder))
        return not missing

    def _here(self) -> Here:
        return Here(self.number, self.memory.head.digest, self.view)

    def _tell(self, peers: Iterable[str], message: Message) -> None:
        """What was promised or accepted is on disk before anybody hears of it."""
        self._save()
        self._send(peers, message)

    def _send(self, peers: Iterable[str], message: Message) -> None:
        self._out += [Send(peer, message) for peer in peers if peer != self.memory.peer]

    def _save(self) -> None:
        if self.memory != self._saved:
            self._saved = self.memory
            self._out.append(Save(self.memory))

    def _refuse(self, sender: str, reason: str) -> None:
        self._out.append(Refused(sender, reason))
