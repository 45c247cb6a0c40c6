"""Shared context of the components that run one peer's gather rounds: peers, consensus, and event queue.

Only consensus_loop.py changes the state of the consensus. The other components read it, and report what happens as
events.

The context also keeps the back-off: the number of rounds before a peer whose payloads were rejected is admitted again.
It grows exponentially with the number of strikes against the peer (strikes.py). During the back-off, the peer cannot
become a learner.

A peer whose payloads cannot be used counts as absent. It leaves the roster after `absent_rounds` rounds and asks to
join again. Without a back-off, the others would wait for it for a grace period in every round.

This peer records strikes only for messages that it received directly from the other peer, so no third peer can cause
them. Strikes are not shared: they decide whose join requests this peer ignores, which matters only while it is the
leader. Acceptors accept any learners that a leader counts (roster_change.py). Every peer that requests the payload of a
misbehaving peer sees the same fault, so most leaders exclude that peer as well. Strikes do not remove a peer that is
already in the roster.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.effects import Effect
from outerloop.swarm.consensus.messages import JoinRequest, Message
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.event_queue import MAX_WAITING, EventQueue
from outerloop.swarm.strikes import LOSS, UNUSABLE, Strikes
from outerloop.swarm.validation import id_of
from outerloop.types import Round


class ReadmissionBackoff:
    """Records strikes against peers, given by name, and ignores their join requests during the back-off."""

    def __init__(self) -> None:
        self._strikes = Strikes()
        self._last_judged: dict[str, int] = {}  # peer -> last round judged, so that each round counts only once

    def payload_rejected(self, peer: str, number: int) -> None:
        """Record that the payload that `peer` offered for round `number` was rejected."""
        if self._is_first(peer, number):
            self._strikes.add(peer, LOSS, number=number)

    def payload_stored(self, peer: str, number: int) -> None:
        """Record that the payload that `peer` offered for round `number` was valid and is stored."""
        if self._is_first(peer, number):
            self._strikes.remove_one(peer)

    def payload_unusable(self, peer: str, number: int) -> None:
        """Record that a stored payload proved unusable: it cannot be decoded, or its norm is out of bounds."""
        self._strikes.add(peer, UNUSABLE, number=number)

    def ignores(self, peer: str, message: Message, number: int) -> bool:
        """Return whether to ignore `message`, because it asks to join the current round during the back-off of `peer`.

        `number` is the current round. A request for an earlier round is not ignored, because the answer informs `peer`
        of the current round.
        """
        is_current = isinstance(message, JoinRequest) and message.number == number
        return is_current and self._strikes.excludes(peer, number=number)

    def _is_first(self, peer: str, number: int) -> bool:
        new = self._last_judged.get(peer, -1) < number
        self._last_judged[peer] = max(number, self._last_judged.get(peer, -1))
        return new


Event = Callable[[Chain], list[Effect]]
"""An event, as the function that handles it: it updates the chain and returns the effects to carry out."""


class RoundContext:
    """The shared context of the components that run one peer's gather rounds.

    own       this peer's name
    trust     this peer's signatures, allow-list and rejection log
    names     returns a map from id to name of the peers that may take part
    fragments number of fragments, each of which has a commit in each round
    events    the events that have not been handled yet
    backoff   decides which peers' join requests are ignored
    """

    def __init__(
        self, trust: AccessControl, *, own: str, names: Callable[[], Mapping[str, str]], fragments: int
    ) -> None:
        self.trust, self.own, self.names, self.fragments = trust, own, names, fragments
        self.events: EventQueue[Event] = EventQueue()
        self.backoff = ReadmissionBackoff()
        self._chain: Chain | None = None

    @property
    def begun(self) -> bool:
        """Return whether this peer has begun to take part in rounds."""
        return self._chain is not None

    @property
    def chain(self) -> Chain:
        """The consensus state machine of this peer. Available once the rounds have begun."""
        assert self._chain is not None, "the rounds have not begun"
        return self._chain

    @property
    def session(self) -> str:
        """The session id that every signature of the run covers."""
        return self.chain.hard_state.session

    def round_of(self, number: int) -> Round:
        """Return the round, and its fragment, that commit `number` decides. Messages to the user contain it."""
        return Round(*divmod(number, self.fragments))

    def begin(self, chain: Chain) -> None:
        """Set the consensus state machine. From now on, this peer takes part in the rounds."""
        assert self._chain is None, "the rounds have already begun"
        self._chain = chain

    # events

    def act(self, event: Event) -> None:
        """Queue one of this peer's own events."""
        self.events.put(event)

    def report_stored(self, number: int, participant: Participant) -> None:
        """Report to the consensus that a payload of round `number` is on disk."""
        self.act(lambda chain: chain.payload_stored(number, participant))

    def receive(self, sender: str, message: Message, size: int = 0) -> None:
        """Queue a message of `size` bytes from `sender`. Log each message that is dropped because the queue is full."""

        def handle(chain: Chain) -> list[Effect]:
            return [] if self.backoff.ignores(sender, message, chain.number) else chain.receive(sender, message)

        for flooding in self.events.put_from(sender, handle, size):
            self.trust.rejections.note(
                "ballots",
                flooding,
                f"dropped one of its messages: {MAX_WAITING} of them are already queued, or the whole queue is full",
            )

    # the peers that take part, and the commits that this peer can send them

    def may_take_part(self, peer_id: str) -> bool:
        """Return whether this peer answers requests from `peer_id`."""
        return peer_id in self.names()

    def others(self) -> list[str]:
        """Return the allowed roster peers except this peer, in the order in which to ask them.

        The order starts after this peer's name and wraps around, so that not all peers ask the same peer first.
        """
        roster = self.chain.hard_state.roster
        ahead = bisect(roster, self.own)
        others = [peer for peer in (*roster[ahead:], *roster[:ahead]) if peer != self.own]
        return [peer for peer in others if id_of(peer) in self.trust.allow]

    def sources_of(self, participant: Participant, *, first: str) -> list[str]:
        """Return the peers from which to download a payload: `first`, then its owner, then the rest of the roster."""
        peers = dict.fromkeys([first, participant.peer, *self.chain.hard_state.roster])
        return [peer for peer in peers if peer not in ("", self.own)]

    def commits_since(self, number: int | None) -> tuple[CommitCertificate, ...]:
        """Return the commits after `number`, or the whole log if it starts later or `number` is None."""
        if not self.begun:
            return ()
        found = None if number is None else self.chain.commits_since(number)
        return tuple(decided for decided in self.chain.hard_state.log if decided.accepts) if found is None else found
