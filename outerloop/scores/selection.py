"""Choose whose payloads to score in a round: first those of peers that others accuse, then random ones.

A peer that scores one random payload per round scores a given peer once in about as many rounds as there are peers.
With exclude_accused=true, messages list accused peers (aggregate/exclusion_votes.py). So all peers learn of an
accusation in the next round, and can check it by scoring a payload of the accused peer.

Liars may accuse honest peers to distract others. So at most half of the payloads, on average, are chosen because of
accusations, and another peer's accusation is checked only if both hold:

    this peer does not accuse the same peer itself
    the accuser has not been wrong in the last LASTING rounds. It was wrong if this peer scored a peer that it accused,
    and the score was honest
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from outerloop import wire

LASTING = 64
"""Number of rounds for which an accusation lasts (scorer.py), and for which the accusations of a peer are not checked
after one of them was wrong."""


class Selection:
    """Chooses the payloads that one peer scores.

    Args:
        peer: name of this peer.
        payloads: mean number of payloads per round. If it is not a whole number, it is rounded up or down at random.
        random: source of the choices. Other peers must not be able to predict them.

    Attributes:
        wrong: peer whose accusations are not checked -> round in which it was last wrong.
    """

    def __init__(self, peer: str, *, payloads: float, random: Random) -> None:
        self.peer, self.payloads, self.random = peer, payloads, random
        self.wrong: dict[str, int] = {}

    def choose(
        self, messages: Sequence[wire.Message], accusers: Mapping[str, Collection[str]], accused: Collection[str]
    ) -> list[wire.Message]:
        """Return the messages to score.

        Args:
            messages: those that may be scored; this peer's own one is never chosen.
            accusers: peer -> peers that accuse it in this round.
            accused: peers that this peer accuses.
        """
        count = int(self.payloads + self.random.random())
        others = [message for message in messages if message.header.peer != self.peer]
        self.random.shuffle(others)
        suspects = [message for message in others if self.is_suspect(message.header.peer, accusers, accused)]
        first = suspects[: int(count / 2 + self.random.random())]
        chosen = {message.header.peer for message in first}
        return [*first, *(message for message in others if message.header.peer not in chosen)][:count]

    def is_suspect(self, peer: str, accusers: Mapping[str, Collection[str]], accused: Collection[str]) -> bool:
        """Return whether an accusation of `peer` is to be checked."""
        return peer not in accused and bool(set(accusers.get(peer, ())) - self.wrong.keys() - {self.peer})

    def learn(self, number: int, honest: Collection[str], accusers: Mapping[str, Collection[str]]) -> None:
        """Record whose accusations in round `number` were wrong. `honest`: scored peers that count as honest."""
        self.wrong = {peer: last for peer, last in self.wrong.items() if number - last < LASTING}
        for peer in honest:
            self.wrong.update(dict.fromkeys(set(accusers.get(peer, ())) - {self.peer}, number))
