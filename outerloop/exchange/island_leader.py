"""Provide the base class of exchanges that several processes of an island share.

The leader takes part in the exchange for the whole island, and broadcasts the results to the other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from outerloop.exchange_protocols import (
    Replicated,
    counters,
    first_commit,
    joined_round,
    landed_commit,
    late_joiner,
    metered,
    public_names,
    replicated,
    report_contributors,
    report_refused,
    roster_news,
    shares_rank,
)
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup, uint8_tensor
from outerloop.state import canonical
from outerloop.types import (
    FIRST,
    Capabilities,
    Contribution,
    Contributor,
    LeaderFailed,
    QuorumLost,
    Refusals,
    Round,
    RoundFailed,
    StateTransferRequired,
    UserError,
)

KNOWN = {error.__name__: error for error in (RoundFailed, QuorumLost, UserError)}
"""Error types that all processes of an island raise if its leader does.

If the leader raises an error of any other type, the other processes raise LeaderFailed.
"""


class LeaderExchange:
    """Base class of exchanges that share the leader's exchange with a whole island. The leader is its first process.

    A subclass implements `recover`. Messages that start a round are sent over `launch_ranks`, which has its own tag, so
    that one thread may start a round while another runs inner steps.

    Args:
        exchange: the leader's exchange, already joined; ignored in all other processes.
        ranks: the processes of the island that share the exchange.
    """

    def __init__(self, exchange: Exchange | None, *, ranks: RankGroup) -> None:
        self.ranks, self.exchange = ranks, exchange if ranks.is_leader else None
        self.behind: StateTransferRequired | None = None
        info, self.peer, self.rank, self.size, self.late_joiner, self.shares_rank, joined = self.at_leader(
            lambda x: [asdict(x.info), x.peer, x.rank, x.size, late_joiner(x), shares_rank(x), to_pair(joined_round(x))]
        )
        self.joined_round = Round(*joined) if joined else None
        self.info = Capabilities(**info | {"concurrent": info["concurrent"] and ranks.supports_tags})
        self.launch_ranks = ranks.with_tag() if self.info.concurrent else ranks

    @classmethod
    def joining(cls, join: Callable[[], Exchange], *, ranks: RankGroup) -> Self:
        """Call `join` on the leader and wrap the returned exchange. If this fails, all processes raise an error."""
        try:
            exchange = join() if ranks.is_leader else None
        except Exception as error:
            broadcast_error(error, ranks)
            raise
        return cls(exchange, ranks=ranks)

    @property
    def alive(self) -> int:
        """Number of peers (islands, not processes) expected in the next round."""
        majority = replicated(self.exchange) if self.exchange else None
        return majority.alive if majority else self.size

    @property
    def first_commit(self) -> bytes:
        """The leader's hash of the commit before the first round; empty in the other processes."""
        return first_commit(self.exchange) if self.exchange else b""

    @property
    def landed_commit(self) -> bytes:
        """The leader's hash of the last landed commit; empty in the other processes."""
        return landed_commit(self.exchange) if self.exchange else b""

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by the leader; 0 in the other processes, which send nothing outside the island."""
        return metered(self.exchange).bytes_sent if self.exchange else 0

    @property
    def bytes_received(self) -> int:
        """Bytes received by the leader; 0 in the other processes."""
        return metered(self.exchange).bytes_received if self.exchange else 0

    @property
    def transfer_s(self) -> float:
        """Transfer time of the leader, in seconds; 0 in the other processes, which only wait."""
        return metered(self.exchange).transfer_s if self.exchange else 0.0

    def join(self, first: Round = FIRST) -> None:
        """Do nothing: the leader has already joined."""

    def counters(self) -> dict[str, float]:
        """Return the leader's counters, or an empty dictionary in the other processes."""
        return counters(self.exchange) if self.exchange else {}

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Report the refusals to the leader's exchange. Does nothing in the other processes."""
        if self.exchange:
            report_refused(self.exchange, round, refusals)

    def publish_contributors(self, round: Round, contributors: Sequence[Contributor]) -> None:
        """Report the contributions to the leader's exchange. Does nothing in the other processes."""
        if self.exchange:
            report_contributors(self.exchange, round, contributors)

    def public_names(self) -> Mapping[str, str]:
        """Return the public names that the leader's exchange knows; empty in the other processes."""
        return public_names(self.exchange) if self.exchange else {}

    def roster_news(self) -> Sequence[str]:
        """Return the leader's new lines about peers that joined or left; empty in the other processes."""
        return roster_news(self.exchange) if self.exchange else ()

    def close(self) -> None:
        """Close the leader's exchange."""
        if self.exchange:
            self.exchange.close()

    def abort(self) -> None:
        """Abort the leader's exchange."""
        if self.exchange:
            self.exchange.abort()

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Download the run's state, at most `max_bytes` bytes. Return its last round, and this process's part of it."""
        raise NotImplementedError

    def fetch_state(self, exchange: Exchange, max_bytes: int) -> tuple[Round, bytes]:
        """Download the other peers' state. Called only on the leader.

        If StateTransferRequired was raised since the last download, its `state` function is called; otherwise
        `exchange.recover` is.
        """
        behind, self.behind = self.behind, None
        return (behind.state if behind else replicas_of(exchange).recover)(max_bytes)

    def at_leader(self, work: Callable[[Exchange], Any], ranks: RankGroup | None = None) -> Any:
        """Call `work` on the leader, and return its result, a tree of plain values and tensors, in all processes.

        If `work` raises an error, all processes raise it. However, if the error is neither in KNOWN nor
        StateTransferRequired, it may concern only the leader, so the other processes raise LeaderFailed.

        ranks: the group for the broadcast, or None for `self.ranks`, which only one thread may use.
        """
        ranks = ranks or self.ranks
        if self.exchange is None:
            return self.answer_of(canonical.unpack(ranks.broadcast(b"")))
        try:
            value = work(self.exchange)
        except StateTransferRequired as behind:
            self.behind = behind
            broadcast_error(behind, ranks)
            raise StateTransferRequired(self.recover) from None
        except Exception as error:
            broadcast_error(error, ranks)
            raise
        ranks.broadcast(canonical.pack({"raised": "", "value": value}))
        return value

    def answer_of(self, answer: dict[str, Any]) -> Any:
        """Return the result or raise the error that the leader has sent. Called only in the other processes."""
        if answer["raised"] == StateTransferRequired.__name__:
            raise StateTransferRequired(self.recover)
        if answer["raised"]:
            raise KNOWN.get(answer["raised"], LeaderFailed)(answer["value"])
        return answer["value"]


def replicas_of(exchange: Exchange) -> Replicated:
    """Cast the leader's exchange to Replicated, the type of exchanges whose rounds are decided by majority vote."""
    majority = replicated(exchange)
    assert majority is not None
    return majority


def broadcast_error(error: Exception, ranks: RankGroup) -> None:
    """Send the error that the leader is about to raise to the other processes."""
    kind = type(error).__name__
    ranks.broadcast(canonical.pack({"raised": kind, "value": str(error) if kind in KNOWN else f"{kind}: {error}"}))


def to_pair(round: Round | None) -> list[int]:
    """Convert a round to its number and fragment, and None to an empty list, which can be serialized."""
    return [round.number, round.fragment] if round else []


def to_tree(contributions: Sequence[Contribution]) -> list[Any]:
    """Convert contributions to a tree of plain values and tensors, which can be serialized."""
    return [[c.peer, c.round.number, c.round.fragment, uint8_tensor(c.blob)] for c in contributions]


def from_tree(tree: list[Any]) -> list[Contribution]:
    """Convert a tree created by `to_tree` back to contributions."""
    return [
        Contribution(peer, Round(number, fragment), blob.numpy().tobytes()) for peer, number, fragment, blob in tree
    ]
