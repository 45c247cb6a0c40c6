"""Context that the parts of one peer's gather rounds share: the peers, the consensus, and its queue of events.

Only round_loop.py changes the state of the consensus. The other parts read it, and report what happens as events.

The context also keeps the back-off: the time before a peer whose payloads were rejected is admitted again. It grows
exponentially with the number of strikes against the peer:

    payload rejected in round r    one more strike. With k strikes, the peer cannot become a learner before round
                                   r + min(2^k, MAX_ROUNDS)
    good payload                   one strike less
    payload unusable at landing    two strikes more, because one was taken off when the payload was stored

A peer whose payloads cannot be used counts as absent. It leaves the roster after `absent_rounds` rounds and asks to
join again. Without a back-off, the others would wait out a grace period for it in every round.

This peer gives strikes only for messages that it received from the other peer directly, so no third peer can cause
them. Strikes are not shared: they decide whose join requests this peer ignores, which matters only while it is the
leader. Acceptors accept whichever learners a leader counts (roster_change.py). Every peer that requests the payload of
a misbehaving peer sees the same fault, so most leaders keep that peer out as well. Strikes do not remove a peer that
is already in the roster.
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
    """Strikes and back-off of the peers that this peer has asked for payloads, by name. A restart clears them."""

    def __init__(self) -> None:
        self._strikes: Counter[str] = Counter()
        self._last_judged: dict[str, int] = {}  # peer -> last round judged: a peer is judged once per round
        self._until: dict[str, int] = {}

    def payload_rejected(self, peer: str, number: int) -> None:
        """Record that the payload that a peer offered for a round was rejected."""
        if self._is_first(peer, number):
            self._strikes[peer] += 1
            self._until[peer] = number + min(2 ** self._strikes[peer], MAX_ROUNDS)

    def payload_stored(self, peer: str, number: int) -> None:
        """Record that the payload that a peer offered for a round is stored."""
        if self._is_first(peer, number):
            self._strikes[peer] = max(0, self._strikes[peer] - 1)

    def payload_unusable(self, peer: str, number: int) -> None:
        """Record that a stored payload is unusable: it cannot be decoded, or its norm is out of bounds."""
        self._strikes[peer] += 2
        self._until[peer] = max(self._until.get(peer, 0), number + min(2 ** self._strikes[peer], MAX_ROUNDS))

    def ignores(self, peer: str, message: Message, number: int) -> bool:
        """Return whether to ignore a message, i.e. whether `peer` asks to join the current round during its back-off.

        `number` is the current round. A request for an earlier round is not ignored: its answer reports the current
        round to the peer that sent it.
        """
        return isinstance(message, JoinRequest) and message.number == number < self._until.get(peer, number)

    def _is_first(self, peer: str, number: int) -> bool:
        new = self._last_judged.get(peer, -1) < number
        self._last_judged[peer] = max(number, self._last_judged.get(peer, -1))
        return new


Event = Callable[[CommitChain], list[Effect]]
"""An event, represented by the function that handles it: it updates the chain and returns the effects to carry out."""


class RoundContext:
    """The shared context of one peer's rounds.

    own       this peer's name
    trust     this peer's signatures, allow-list and rejection log
    names     returns peer id -> name of the peers that may take part
    events    the events that have not been handled yet
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
        """The consensus state machine of this peer, once the rounds have begun."""
        assert self._chain is not None, "the rounds have not begun"
        return self._chain

    @property
    def session(self) -> str:
        """The session id that every signature of the run covers."""
        return self.chain.hard_state.run

    def begin(self, chain: CommitChain) -> None:
        """Set the consensus state machine, with which this peer takes part in the rounds."""
        assert self._chain is None, "the rounds have already begun"
        self._chain = chain

    # events

    def act(self, event: Event) -> None:
        """Queue an event of this peer itself."""
        self.events.put(event)

    def report_stored(self, number: int, participant: Participant) -> None:
        """Report to the consensus that a payload of a round is on disk."""
        self.act(lambda chain: chain.payload_stored(number, participant))

    def receive(self, sender: str, message: Message, size: int = 0) -> None:
        """Queue a message of `size` bytes from a peer. Log each message that is dropped because the queue is full."""

        def handle(chain: CommitChain) -> list[Effect]:
            return [] if self.backoff.ignores(sender, message, chain.number) else chain.receive(sender, message)

        for flooding in self.events.put_from(sender, handle, size):
            self.trust.refusals.note(
                "ballots",
                flooding,
                f"{MAX_WAITING} of its messages are queued already, or the whole queue is full: one message is dropped",
            )

    # the peers that take part, and the commits that this peer can send them

    def may_take_part(self, peer_id: str) -> bool:
        """Return whether this peer answers requests from `peer_id`."""
        return peer_id in self.names()

    def others(self) -> list[str]:
        """Return the allowed peers of the roster except this peer, in the order in which to ask them.

        The order starts after this peer's own name and wraps around, so that not all peers ask the same peer first.
        """
        roster = self.chain.hard_state.roster
        ahead = bisect(roster, self.own)
        others = [peer for peer in (*roster[ahead:], *roster[:ahead]) if peer != self.own]
        return [peer for peer in others if id_of(peer) in self.trust.allow]

    def sources_of(self, participant: Participant, *, first: str) -> list[str]:
        """Return the peers to download a payload from: `first`, the payload's owner, then the rest of the roster."""
        peers = dict.fromkeys([first, participant.peer, *self.chain.hard_state.roster])
        return [peer for peer in peers if peer not in ("", self.own)]

    def commits_since(self, number: int | None) -> tuple[CommitCertificate, ...]:
        """Return the commits after `number`; the whole log if it does not reach back that far or `number` is None."""
        if not self.begun:
            return ()
        found = None if number is None else self.chain.commits_since(number)
        return tuple(decided for decided in self.chain.hard_state.log if decided.accepts) if found is None else found
