"""Context that the parts of one peer's gather rounds share: the peers, the agreement, and its queue of events.

Only round_loop.py changes the agreement. The other parts read it, and report what happens as events.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import Effect
from outerloop.swarm.consensus.messages import Message
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.event_queue import MAX_WAITING, EventQueue
from outerloop.swarm.gather.readmission import ReadmissionBackoff
from outerloop.swarm.validation import id_of

Event = Callable[[CommitChain], list[Effect]]
"""Something that happened, as the call with which the agreement handles it. Returns the effects to carry out."""


class RoundContext:
    """The shared context of one peer's rounds.

    own       this peer's name
    trust     this peer's signatures, allow-list and rejection log
    names     returns peer id -> name of the peers that may take part
    events    what has happened and was not handled yet
    backoff   the peers whose requests to join are ignored for some rounds
    """

    def __init__(self, trust: AccessControl, *, own: str, names: Callable[[], Mapping[str, str]]) -> None:
        self.trust, self.own, self.names = trust, own, names
        self.events: EventQueue[Event] = EventQueue()
        self.backoff = ReadmissionBackoff()
        self._chain: CommitChain | None = None

    @property
    def begun(self) -> bool:
        """Return whether this peer takes part in the rounds."""
        return self._chain is not None

    @property
    def chain(self) -> CommitChain:
        """The agreement of this peer, once the rounds have begun."""
        assert self._chain is not None, "the rounds have not begun"
        return self._chain

    @property
    def session(self) -> str:
        """The id of the session for which all peers sign."""
        return self.chain.hard_state.run

    def begin(self, chain: CommitChain) -> None:
        """Set the agreement that this peer takes part in."""
        assert self._chain is None, "the rounds have begun"
        self._chain = chain

    # events

    def act(self, event: Event) -> None:
        """Add an event of this peer."""
        self.events.put(event)

    def report_stored(self, number: int, participant: Participant) -> None:
        """Report that a payload of a round is on disk."""
        self.act(lambda chain: chain.payload_stored(number, participant))

    def receive(self, sender: str, message: Message, size: int = 0) -> None:
        """Add a message of `size` bytes that a peer has sent. A peer that has too many queued loses one."""

        def handle(chain: CommitChain) -> list[Effect]:
            return [] if self.backoff.ignores(sender, message, chain.number) else chain.receive(sender, message)

        for flooding in self.events.put_from(sender, handle, size):
            self.trust.refusals.note(
                "ballots",
                flooding,
                f"{MAX_WAITING} of its messages are queued already, or the whole queue is full: one is dropped",
            )

    # the peers that take part, and the commits that this peer can send them

    def may_take_part(self, peer_id: str) -> bool:
        """Return whether requests of this peer are answered."""
        return peer_id in self.names()

    def others(self) -> list[str]:
        """Return the allowed peers of the roster except this one, in the order in which to ask them.

        The order starts after this peer's own name. If all peers asked the same one first, they would queue there.
        """
        roster = self.chain.hard_state.roster
        ahead = bisect(roster, self.own)
        others = [peer for peer in (*roster[ahead:], *roster[:ahead]) if peer != self.own]
        return [peer for peer in others if id_of(peer) in self.trust.allow]

    def sources_of(self, participant: Participant, *, first: str) -> list[str]:
        """Return the peers to download a payload from: `first`, its owner, then the rest of the roster."""
        peers = dict.fromkeys([first, participant.peer, *self.chain.hard_state.roster])
        return [peer for peer in peers if peer not in ("", self.own)]

    def commits_since(self, number: int | None) -> tuple[CommitCertificate, ...]:
        """Return the commits after a number. Return the whole log for None, or if it does not reach back that far."""
        if not self.begun:
            return ()
        found = None if number is None else self.chain.commits_since(number)
        return tuple(decided for decided in self.chain.hard_state.log if decided.accepts) if found is None else found
