"""Context that the parts of one peer's gather rounds share: the peers, the agreement, and its queue of events.

Only round_loop.py changes the agreement. The other parts read it, and report what happens as events.

Among them is the back-off after which a peer whose payloads were rejected is re-admitted. It grows exponentially:

    payload rejected in round r    one more strike. With k strikes, the peer cannot become a learner before round
                                   r + min(2^k, MAX_ROUNDS)
    good payload                   one strike less
    payload unusable in landing    two strikes more, because one was taken off when the payload was stored

A peer whose payloads cannot be used counts as absent. It leaves the roster after `absent_rounds` and asks to join
again. Without a back-off, the others would wait out a grace period for it in every round.

Strikes record only what this peer saw itself in the other's own messages, so no third peer can cause them. They are not
shared: they decide whose join requests this peer ignores, which matters while it leads. Acceptors
take the learners that a leader counts in any case (roster_change.py). All peers that ask it for its payload see the
same, so most leaders keep it out as well. A peer in the roster stays there whatever its strikes.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import Effect
from outerloop.swarm.consensus.messages import JoinRequest, Message
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.event_queue import MAX_WAITING, EventQueue
from outerloop.swarm.validation import id_of

MAX_ROUNDS = 64


class ReadmissionBackoff:
    """Strikes and back-off of the peers that this one has asked for payloads, by name. A restart forgets them."""

    def __init__(self) -> None:
        self._strikes: Counter[str] = Counter()
        self._last_judged: dict[str, int] = {}  # peer -> last round judged: each counts once, however often it offers
        self._until: dict[str, int] = {}

    def payload_rejected(self, peer: str, number: int) -> None:
        """Note that the payload that a peer offered for a round was rejected."""
        if self._is_first(peer, number):
            self._strikes[peer] += 1
            self._until[peer] = number + min(2 ** self._strikes[peer], MAX_ROUNDS)

    def payload_stored(self, peer: str, number: int) -> None:
        """Note that the payload that a peer offered for a round is stored."""
        if self._is_first(peer, number):
            self._strikes[peer] = max(0, self._strikes[peer] - 1)

    def payload_unusable(self, peer: str, number: int) -> None:
        """Note that a stored payload does not count: it cannot be decoded, or its norm is out of bounds."""
        self._strikes[peer] += 2
        self._until[peer] = max(self._until.get(peer, 0), number + min(2 ** self._strikes[peer], MAX_ROUNDS))

    def ignores(self, peer: str, message: Message, number: int) -> bool:
        """Return whether to ignore this message: a request to join in the current round, `number`, during back-off.

        A request for an earlier round is not ignored: the peer that sent it is answered with the current round.
        """
        return isinstance(message, JoinRequest) and message.number == number < self._until.get(peer, number)

    def _is_first(self, peer: str, number: int) -> bool:
        new = self._last_judged.get(peer, -1) < number
        self._last_judged[peer] = max(number, self._last_judged.get(peer, -1))
        return new


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
