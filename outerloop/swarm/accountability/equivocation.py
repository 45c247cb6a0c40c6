"""What the peers of a sitting have signed lately, so that two statements that contradict each other are seen.

It is told each statement whose signature this peer has checked anyway, and compares it with the few that it could
contradict: no signature is checked here, and none is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

from outerloop.swarm.access.signatures import Field
from outerloop.swarm.accountability.evidence import ACCEPT, PAYLOAD, PROMISE, Evidence, Signed, contradiction
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT
from outerloop.swarm.consensus.statements import Statement

VIEWS_KEPT = 64
"""Accepts and promises of one peer in one round, each: the last ones. An honest peer sees few views of a round."""
Place = tuple[int, bytes]
KINDS = (ACCEPT, PROMISE, PAYLOAD)


class EquivocationWatch:
    """Of one sitting. Kept: a statement a peer, kind, round, view and head, of the rounds close to the one at hand."""

    def __init__(self, sitting: str) -> None:
        self._sitting = sitting
        self._number = 0
        self._said: dict[int, dict[tuple[str, str], dict[Place, Signed]]] = defaultdict(lambda: defaultdict(dict))

    def begin(self, number: int) -> None:
        """This round is at hand: what is of much earlier ones is forgotten."""
        self._number = number
        for old in [known for known in self._said if not self._is_close(known)]:
            del self._said[old]

    def saw(self, peer: str, statement: Statement, signature: bytes) -> Evidence | None:
        """Return evidence against a peer (its name) that has signed this, if it has signed the contrary before."""
        context, number = str(statement[0]), int(statement[1])
        if context not in KINDS or not self._is_close(number):
            return None
        signed, of_round = Signed(statement, signature), self._said[number]
        for other in self._comparable(of_round, peer, context):
            if contradiction(statement, other.statement):
                return Evidence.of(self._sitting, peer, signed, other)
        kept = of_round[peer, context]
        kept.setdefault(place_of(statement), signed)
        if len(kept) > VIEWS_KEPT:
            del kept[min(kept)]
        return None

    def heard(self, context: str, run: str | bytes, fields: tuple[Field, ...], signature: bytes) -> Evidence | None:
        """Return the same for whatever was found signed (signatures.py): most of it is nothing of the agreement."""
        if run != self._sitting or context not in KINDS:
            return None
        peer, number = (1, 0) if context == PAYLOAD else (0, 1)
        statement = cast(Statement, (context, fields[number], *fields[2:]))
        return self.saw(str(fields[peer]), statement, signature)

    def _comparable(
        self, of_round: dict[tuple[str, str], dict[Place, Signed]], peer: str, context: str
    ) -> Iterable[Signed]:
        others = {ACCEPT: (ACCEPT, PROMISE), PROMISE: (ACCEPT,), PAYLOAD: (PAYLOAD,)}[context]
        return [signed for kind in others for signed in of_round.get((peer, kind), {}).values()]

    def _is_close(self, number: int) -> bool:
        return abs(number - self._number) <= ROUNDS_KEPT


def place_of(statement: Statement) -> Place:
    """Return the view and the head that a statement is about; the same for all payloads."""
    return (0, b"") if statement[0] == PAYLOAD else (int(statement[3]), cast(bytes, statement[2]))
