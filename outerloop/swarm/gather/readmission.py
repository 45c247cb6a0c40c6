"""How long a peer whose payloads were refused is not let in again: twice as long every time.

    refused in round r, k strikes by now    it is no learner before round r + 2^k, r + MOST_ROUNDS at most
    a good payload of it                    one strike less
    a payload that turned out useless       two strikes more: one is what it was forgiven when the payload came

Who gives what nobody can use is absent, leaves the roster after `absent_rounds`, and asks: the others would wait out a
grace for it in every round. Strikes are what this peer saw itself, of what the other itself said, so no third one can
bring them about. They are nobody else's business: they decide whose asking this peer hears (runner.py), which matters
while it leads, and acceptors take the learners that a leader counts in any case (roster_change.py). All who ask it for
its payload see the same, so most leaders keep it out alike. Who is in the roster stays in it whatever its strikes.
"""

from __future__ import annotations

from collections import Counter

from outerloop.swarm.consensus.messages import JoinRequest, Message

MOST_ROUNDS = 64


class ReadmissionBackoff:
    """Of the peers that this one has asked for payloads, by name; forgotten in a restart."""

    def __init__(self) -> None:
        self._strikes: Counter[str] = Counter()
        self._judged: dict[str, int] = {}  # the last round for which a peer was: once each, however often it offers
        self._until: dict[str, int] = {}

    def refused(self, peer: str, number: int) -> None:
        """What it offered for a round cannot be used."""
        if self._first(peer, number):
            self._strikes[peer] += 1
            self._until[peer] = number + min(2 ** self._strikes[peer], MOST_ROUNDS)

    def good(self, peer: str, number: int) -> None:
        """What it offered for a round is held."""
        if self._first(peer, number):
            self._strikes[peer] = max(0, self._strikes[peer] - 1)

    def unusable(self, peer: str, number: int) -> None:
        """What was held of it for a round does not count: it cannot be decoded, or its norm is out of bounds."""
        self._strikes[peer] += 2
        self._until[peer] = max(self._until.get(peer, 0), number + min(2 ** self._strikes[peer], MOST_ROUNDS))

    def silence(self, peer: str, message: Message, number: int) -> bool:
        """Whether this asks to be let in by the commit of round `number`, which is at hand, and is not heard.

        Who asks in an earlier round is heard: it is told where the others are.
        """
        return isinstance(message, JoinRequest) and message.number == number < self._until.get(peer, number)

    def _first(self, peer: str, number: int) -> bool:
        new = self._judged.get(peer, -1) < number
        self._judged[peer] = max(number, self._judged.get(peer, -1))
        return new
