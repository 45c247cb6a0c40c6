"""State machine of one pair in a gossip round, as seen by one of its two peers. It uses no clock and no network.

    PROPOSED    The proposer waits for an answer.                        Then ACCEPTED or TURNED_DOWN.
    ACCEPTED    Each peer fetches the other's payload.                   Then BOUND, APPLIED or DROPPED.
    BOUND       The proposer has confirmed that it has the payload.      Then APPLIED, DROPPED or IN_DOUBT.

The proposer starts in PROPOSED and the acceptor in ACCEPTED. Only the acceptor decides whether the pair counts, and
only a BOUND proposer learns the decision. A proposer that is not BOUND drops the pair without asking: the acceptor
cannot have applied the pair, because it waits for the proposer's confirmation. So the pair ends in the same state on
both peers, with one exception: if the acceptor applies the pair and then stays unreachable, the proposer does not apply
it and ends in IN_DOUBT.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from enum import Enum

from outerloop.types import Round

MAX_DECISIONS = 100  # maximum number of decisions that an acceptor remembers per proposer


class PairState(Enum):
    """The state of a pair. The last four are final."""

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    BOUND = "bound"
    TURNED_DOWN = "turned down"
    APPLIED = "applied"
    DROPPED = "dropped"
    IN_DOUBT = "in doubt"


_SUCCESSORS = {
    PairState.PROPOSED: (PairState.ACCEPTED, PairState.TURNED_DOWN),
    PairState.ACCEPTED: (PairState.BOUND, PairState.APPLIED, PairState.DROPPED),
    PairState.BOUND: (PairState.APPLIED, PairState.DROPPED, PairState.IN_DOUBT),
}
_ON_LOSS = {
    PairState.PROPOSED: PairState.TURNED_DOWN,
    PairState.ACCEPTED: PairState.DROPPED,
    PairState.BOUND: PairState.IN_DOUBT,
}


@dataclass(eq=False)
class Pair:
    """One pair. Every transition asserts that the current state allows it.

    partner         peer id of the other peer
    token           identifies the proposal among all of the proposer's proposals
    is_proposer     whether this peer proposed the pair
    round           the partner's round, once it is known
    payload         the partner's payload; set when the proposer enters BOUND, or when the acceptor decides, and
                    removed when the pair is lost
    partner_ready   whether the partner, having turned this pair down, is still looking for a partner
    """

    partner: str
    token: bytes
    is_proposer: bool
    state: PairState
    round: Round | None = None
    payload: bytes | None = None
    partner_ready: bool = False

    @classmethod
    def proposed_to(cls, acceptor: str, token: bytes) -> Pair:
        """Return a new pair as seen by its proposer."""
        return cls(acceptor, token, is_proposer=True, state=PairState.PROPOSED)

    @classmethod
    def accepted_from(cls, proposer: str, token: bytes, round: Round) -> Pair:
        """Return a new pair as seen by its acceptor. `round`: the proposer's round."""
        return cls(proposer, token, is_proposer=False, state=PairState.ACCEPTED, round=round)

    @property
    def is_open(self) -> bool:
        """Return whether the pair is still in progress."""
        return self.state in _SUCCESSORS

    def accept(self, round: Round) -> None:
        """Record that the partner accepts the pair. `round`: the partner's round."""
        self._enter(PairState.ACCEPTED)
        self.round = round

    def turn_down(self, *, partner_ready: bool) -> None:
        """Record that the partner declines, and whether it is still looking for a partner."""
        self._enter(PairState.TURNED_DOWN)
        self.partner_ready = partner_ready

    def bind(self, payload: bytes) -> None:
        """Record the partner's payload. The proposer calls this just before it confirms that it has the payload."""
        assert self.is_proposer, "an acceptor decides and is never bound"
        self._enter(PairState.BOUND)
        self.payload = payload

    def learn(self, *, applied: bool) -> None:
        """Record the acceptor's decision on whether the pair counts. Only a bound proposer may call this."""
        assert self.state is PairState.BOUND, f"a pair that is {self.state.value} does not depend on the acceptor"
        self._enter(PairState.APPLIED if applied else PairState.DROPPED)

    def decide(self, payload: bytes, *, applied: bool) -> None:
        """Record the acceptor's decision on whether the pair counts. Only the acceptor may call this.

        `payload`: the proposer's payload.
        """
        assert not self.is_proposer, "only the acceptor decides"
        self._enter(PairState.APPLIED if applied else PairState.DROPPED)
        self.payload = payload

    def lose(self) -> None:
        """End the pair because its partner or its round is lost. Does nothing if the pair has already ended."""
        if self.is_open:
            self._enter(_ON_LOSS[self.state])
            self.payload = None

    def _enter(self, state: PairState) -> None:
        assert state in _SUCCESSORS.get(self.state, ()), f"a pair that is {self.state.value} cannot be {state.value}"
        self.state = state


class Decisions:
    """One peer's decisions as acceptor, by proposer and token. A decision is final while it is remembered.

    The limit applies per proposer, so that a member that asks about many tokens does not displace others' decisions.
    """

    def __init__(self) -> None:
        self._applied: defaultdict[str, OrderedDict[bytes, bool]] = defaultdict(OrderedDict)

    def decide(self, proposer: str, token: bytes, *, applied: bool) -> bool:
        """Return the decision on whether a pair counts. If there is none yet, `applied` becomes the decision.

        Pass `applied=False` if the proposer asks for the decision before this peer has decided.
        """
        decisions = self._applied[proposer]
        applied = decisions.setdefault(token, applied)
        if len(decisions) > MAX_DECISIONS:
            decisions.popitem(last=False)
        return applied
