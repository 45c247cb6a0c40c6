"""Exponential back-off for re-admitting a peer whose payloads were rejected.

    payload rejected in round r    one more strike. With k strikes, the peer cannot become a learner before round
                                   r + min(2^k, MAX_ROUNDS)
    good payload                   one strike less
    payload unusable in landing    two strikes more, because one was taken off when the payload was stored

A peer whose payloads cannot be used counts as absent. It leaves the roster after `absent_rounds` and asks to join
again. Without a back-off, the others would wait out a grace period for it in every round.

Strikes record only what this peer saw itself in the other's own messages, so no third peer can cause them. They are not
shared: they decide whose join requests this peer ignores (round_context.py), which matters while it leads. Acceptors
take the learners that a leader counts in any case (roster_change.py). All peers that ask it for its payload see the
same, so most leaders keep it out as well. A peer in the roster stays there whatever its strikes.
"""

from __future__ import annotations

from collections import Counter

from outerloop.swarm.consensus.messages import JoinRequest, Message

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
