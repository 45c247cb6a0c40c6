"""Decide rounds: by a majority, from a given first round on, and in a chain of commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

from outerloop.protocols import Exchange
from outerloop.types import Round


class Replicated(Protocol):
    """An exchange with `info.replicated`: a majority of the peers decides which messages form a round."""

    @property
    def late_joiner(self) -> bool:
        """True if the run had already started when this peer joined; valid after `join`."""
        ...

    @property
    def shares_rank(self) -> bool:
        """True if a member of the run has the same rank as this late joiner; valid after `join`."""
        ...

    @property
    def alive(self) -> int:
        """Number of peers expected in the next round; valid after `join`."""
        ...

    def decided(self, round: Round) -> bool:
        """Return whether the other peers have already decided a round without waiting for this peer's message.

        Raises StateTransferRequired if this peer is too far behind to land the round.
        """
        ...

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Report that the replica has landed a round.

        `state` serializes the state that all replicas share. It is called if other peers need the state after this
        round.
        """
        ...

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Fetch the shared state from the other peers. Arguments and result are those of `StateTransferRequired.state`.

        Raises QuorumLost if the state does not arrive.
        """
        ...


def replicated(exchange: Exchange) -> Replicated | None:
    """Return the exchange if a majority of its peers decides rounds, else None."""
    return cast(Replicated, exchange) if exchange.info.replicated else None


def decided(exchange: Exchange, round: Round) -> bool:
    """Return whether the other peers have decided a round without this peer; False if the exchange is not replicated.

    Raises StateTransferRequired if this peer is too far behind to land the round.
    """
    majority = replicated(exchange)
    return majority is not None and majority.decided(round)


def report_landed(exchange: Exchange, round: Round, state: Callable[[], bytes]) -> None:
    """Report a landed round if the exchange is replicated. `state` is called if other peers need the shared state."""
    if majority := replicated(exchange):
        majority.landed(round, state)


def late_joiner(exchange: Exchange) -> bool:
    """Return whether the run had already started when this peer joined."""
    majority = replicated(exchange)
    return majority is not None and majority.late_joiner


def shares_rank(exchange: Exchange) -> bool:
    """Return whether this peer joined late and has the same rank as a member of the run."""
    majority = replicated(exchange)
    return majority is not None and majority.late_joiner and majority.shares_rank


@runtime_checkable
class JoinsAtRound(Protocol):
    """An exchange whose first round is the one that was passed to `join`."""

    @property
    def joined_round(self) -> Round | None:
        """The round at which this peer joined with the others; None before `join`, and if it joined late."""
        ...


def joined_round(exchange: Exchange) -> Round | None:
    """Return the round at which this peer joined, or None if it joined late or may start at any round."""
    return exchange.joined_round if isinstance(exchange, JoinsAtRound) else None


@runtime_checkable
class Chained(Protocol):
    """An exchange whose rounds form a chain of commits. Each hash has 32 bytes."""

    @property
    def first_commit(self) -> bytes:
        """Hash of the commit before the round that this peer started with; empty if this peer does not know it.

        Valid after `join`.
        """
        ...

    @property
    def landed_commit(self) -> bytes:
        """Hash of the commit of the last round that this process has landed or loaded; empty before the first one."""
        ...


def first_commit(exchange: Exchange) -> bytes:
    """Return the hash of the commit before the first round, or b"" if it is unknown or there is no chain."""
    return exchange.first_commit if isinstance(exchange, Chained) else b""


def landed_commit(exchange: Exchange) -> bytes:
    """Return the hash of the commit that this process has landed last, or b"" if there is none."""
    return exchange.landed_commit if isinstance(exchange, Chained) else b""
