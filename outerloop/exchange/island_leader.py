"""What exchanges share that several processes have together: the first of them takes part, the others hear of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Self

from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup, tensor_of
from outerloop.state import canonical
from outerloop.types import (
    FIRST,
    Contribution,
    LeaderFailed,
    QuorumLost,
    Refusals,
    Round,
    RoundFailed,
    StateTransferRequired,
    UserError,
)

KNOWN = {error.__name__: error for error in (RoundFailed, QuorumLost, UserError)}
"""Errors that mean the same at all processes."""


class LeaderExchange:
    """Part of an Exchange around that of the leader, which is the first of the processes.

    A subclass says what `recovered` gives each of them. They begin a round with words apart, so that another thread
    than that of their inner steps may do it.

    Args:
        exchange: has been joined; not looked at but at the leader.
        ranks: the processes that speak through it.
    """

    def __init__(self, exchange: Exchange | None, *, ranks: RankGroup) -> None:
        self.ranks, self.exchange = ranks, exchange if ranks.leads else None
        self.outrun_by: StateTransferRequired | None = None
        facts = attrgetter(
            "agrees", "waits_for_all", "lockstep", "tells_moving", "concurrent", "peer", "rank", "size", "came_late"
        )
        told = self.together(lambda x: [*facts(x), x.recovery is not None])
        self.agrees, self.waits_for_all, self.lockstep, self.tells_moving, concurrent = told[:5]
        self.peer, self.rank, self.size, self.came_late = told[5:-1]
        self.recovery: Callable[[int], tuple[Round, bytes]] | None = self.recovered if told[-1] else None
        self.concurrent = concurrent and ranks.threads
        self.beginning = ranks.apart() if self.concurrent else ranks

    @classmethod
    def joining(cls, join: Callable[[], Exchange], *, ranks: RankGroup) -> Self:
        """The same, of an exchange that the leader has yet to join; where it cannot, all raise."""
        try:
            exchange = join() if ranks.leads else None
        except Exception as error:
            tell_of(error, ranks)
            raise
        return cls(exchange, ranks=ranks)

    @property
    def alive(self) -> int:
        """How many peers the next round counts on; islands, not processes."""
        return self.exchange.alive if self.exchange else self.size

    @property
    def bytes_sent(self) -> int:
        """Of the leader; nothing leaves the island from the others."""
        return self.exchange.bytes_sent if self.exchange else 0

    @property
    def bytes_received(self) -> int:
        """Of the leader."""
        return self.exchange.bytes_received if self.exchange else 0

    @property
    def moving_s(self) -> float:
        """The leader's; the others' waiting is all for others."""
        return self.exchange.moving_s if self.exchange else 0.0

    def join(self, first: Round = FIRST) -> None:
        """The leader has joined."""

    def counters(self) -> dict[str, float]:
        """The leader's."""
        return self.exchange.counters() if self.exchange else {}

    def refused(self, round: Round, refusals: Refusals) -> None:
        """The leader's exchange hears of it."""
        if self.exchange:
            self.exchange.refused(round, refusals)

    def close(self) -> None:
        """The leader leaves."""
        if self.exchange:
            self.exchange.close()

    def abort(self) -> None:
        """The leader leaves at once."""
        if self.exchange:
            self.exchange.abort()

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """The others' state, of at most so many bytes, as this process wants it."""
        raise NotImplementedError

    def fetched(self, exchange: Exchange, most_bytes: int) -> tuple[Round, bytes]:
        """At the leader: the state, from where it was told to ask when outrun, else through its exchange."""
        state = self.outrun_by.state if self.outrun_by else exchange.recovery
        assert state is not None
        self.outrun_by = None
        return state(most_bytes)

    def together(self, work: Callable[[Exchange], Any], ranks: RankGroup | None = None) -> Any:
        """What `work` gives at the leader (a tree of plain values and tensors), at all; or what it raises there.

        `ranks`: where another thread speaks, these apart. Raises LeaderFailed at the others when
        that is none of KNOWN, and may be of the leader alone.
        """
        ranks = ranks or self.ranks
        if self.exchange is None:
            return self.heard(canonical.unpack(ranks.spread(b"")))
        try:
            value = work(self.exchange)
        except StateTransferRequired as outrun:
            self.outrun_by = outrun
            tell_of(outrun, ranks)
            raise StateTransferRequired(self.recovered) from None
        except Exception as error:
            tell_of(error, ranks)
            raise
        ranks.spread(canonical.pack({"raised": "", "value": value}))
        return value

    def heard(self, told: dict[str, Any]) -> Any:
        """What the leader has told, at another process."""
        if told["raised"] == StateTransferRequired.__name__:
            raise StateTransferRequired(self.recovered)
        if told["raised"]:
            raise KNOWN.get(told["raised"], LeaderFailed)(told["value"])
        return told["value"]


def tell_of(error: Exception, ranks: RankGroup) -> None:
    """The leader tells the others what it is about to raise."""
    kind = type(error).__name__
    ranks.spread(canonical.pack({"raised": kind, "value": str(error) if kind in KNOWN else f"{kind}: {error}"}))


def listed(contributions: Sequence[Contribution]) -> list[Any]:
    """Contributions as a tree."""
    return [[one.peer, one.round.number, one.round.fragment, tensor_of(one.blob)] for one in contributions]


def unlisted(tree: list[Any]) -> list[Contribution]:
    """The inverse of `listed`."""
    return [
        Contribution(peer, Round(number, fragment), blob.numpy().tobytes()) for peer, number, fragment, blob in tree
    ]
