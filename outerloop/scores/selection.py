"""Choose whose payloads to score in a round: first those that other peers accuse, then random ones.

A peer that scores one payload per round would need about as many rounds as there are peers to score each of them once.
With exclude_accused=true, messages list accused peers (aggregate/exclusion_votes.py), so that all peers can check an
accusation in the next round. Liars may accuse honest peers to distract others, so an accusation is checked only if

    this peer does not already accuse the accused peer itself, and
    the accuser has not been wrong: none of the peers that it accused had a score that counts as honest
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from outerloop import wire


class Selection:
    """Chooses the payloads that one peer scores.

    Args:
        peer: name of this peer.
        payloads: mean number of payloads per round. If it is not a whole number, it is rounded up or down at random.
        random: others must not know its state.

    Attributes:
        wrong: peers whose accusations are not checked any more.
    """

    def __init__(self, peer: str, *, payloads: float, random: Random) -> None:
        self.peer, self.payloads, self.random = peer, payloads, random
        self.wrong: set[str] = set()

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
        others.sort(key=lambda message: not self.is_suspect(message.header.peer, accusers, accused))
        return others[:count]

    def is_suspect(self, peer: str, accusers: Mapping[str, Collection[str]], accused: Collection[str]) -> bool:
        """Return whether an accusation of `peer` is to be checked."""
        return peer not in accused and bool(set(accusers.get(peer, ())) - self.wrong - {self.peer})

    def learn(self, honest: Collection[str], accusers: Mapping[str, Collection[str]]) -> None:
        """Record whose accusations were wrong. `honest`: scored peers whose scores count as honest."""
        for peer in honest:
            self.wrong.update(set(accusers.get(peer, ())) - {self.peer})
