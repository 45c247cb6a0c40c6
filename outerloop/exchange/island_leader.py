"""Common parts of exchanges for an island of several processes: the leader takes part and broadcasts the results."""

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
"""Errors that the other processes raise as the same type; other errors become LeaderFailed there."""


class LeaderExchange:
    """Base of an Exchange that wraps the exchange of the leader, which is the first process of the island.

    A subclass implements `recovered`. A round is begun with messages under a separate tag (`beginning`), so that a
    thread other than that of the inner steps may begin it.

    Args:
        exchange: already joined; ignored at all processes but the leader.
        ranks: the processes of the island that share it.
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
        """Let the leader join an exchange and wrap it. If the leader fails to join, all processes raise."""
        try:
            exchange = join() if ranks.leads else None
        except Exception as error:
            tell_of(error, ranks)
            raise
        return cls(exchange, ranks=ranks)

    @property
    def alive(self) -> int:
        """Return how many peers (islands, not processes) the next round counts on."""
        return self.exchange.alive if self.exchange else self.size

    @property
    def bytes_sent(self) -> int:
        """Return the leader's count; the other processes send nothing out of the island."""
        return self.exchange.bytes_sent if self.exchange else 0

    @property
    def bytes_received(self) -> int:
        """Return the leader's count; 0 at the other processes."""
        return self.exchange.bytes_received if self.exchange else 0

    @property
    def moving_s(self) -> float:
        """Return the leader's transfer time; 0 at the other processes, which only wait."""
        return self.exchange.moving_s if self.exchange else 0.0

    def join(self, first: Round = FIRST) -> None:
        """Do nothing: the leader has already joined."""

    def counters(self) -> dict[str, float]:
        """Return the leader's counters; none at the other processes."""
        return self.exchange.counters() if self.exchange else {}

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Pass the refusals to the leader's exchange."""
        if self.exchange:
            self.exchange.refused(round, refusals)

    def close(self) -> None:
        """Close the leader's exchange."""
        if self.exchange:
            self.exchange.close()

    def abort(self) -> None:
        """Abort the leader's exchange."""
        if self.exchange:
            self.exchange.abort()

    def recovered(self, most_bytes: int) -> tuple[Round, bytes]:
        """Return the state of the other peers, of at most `most_bytes`, as this process needs it."""
        raise NotImplementedError

    def fetched(self, exchange: Exchange, most_bytes: int) -> tuple[Round, bytes]:
        """Return the state of the other peers, at the leader: from a StateTransferRequired, or else from `exchange`."""
        state = self.outrun_by.state if self.outrun_by else exchange.recovery
        assert state is not None
        self.outrun_by = None
        return state(most_bytes)

    def together(self, work: Callable[[Exchange], Any], ranks: RankGroup | None = None) -> Any:
        """Run `work` at the leader and return its result, a tree of plain values and tensors, at all processes.

        `ranks`: the group to broadcast in, if another thread than usual calls. What `work` raises is raised at all. An
        error that is not in KNOWN may concern the leader alone: it becomes LeaderFailed at the other processes.
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
        """Return, or raise, what the leader has sent; for the other processes."""
        if told["raised"] == StateTransferRequired.__name__:
            raise StateTransferRequired(self.recovered)
        if told["raised"]:
            raise KNOWN.get(told["raised"], LeaderFailed)(told["value"])
        return told["value"]


def tell_of(error: Exception, ranks: RankGroup) -> None:
    """Send the other processes the error that the leader is about to raise."""
    kind = type(error).__name__
    ranks.spread(canonical.pack({"raised": kind, "value": str(error) if kind in KNOWN else f"{kind}: {error}"}))


def listed(contributions: Sequence[Contribution]) -> list[Any]:
    """Convert contributions to a tree of plain values and tensors."""
    return [[one.peer, one.round.number, one.round.fragment, tensor_of(one.blob)] for one in contributions]


def unlisted(tree: list[Any]) -> list[Contribution]:
    """Convert the tree of `listed` back to contributions."""
    return [
        Contribution(peer, Round(number, fragment), blob.numpy().tobytes()) for peer, number, fragment, blob in tree
    ]
