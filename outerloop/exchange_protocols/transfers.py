"""Transfer bytes outside of rounds, and count bytes, seconds and other quantities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outerloop.protocols import Exchange
from outerloop.types import Contribution, StateHandoff, UserError


@runtime_checkable
class Meeting(Protocol):
    """An exchange whose peers can exchange bytes outside of rounds."""

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Return the bytes that all live peers sent to this all-gather, including this peer's, sorted by peer name.

        All peers must call this with the same values of `number`, in increasing order. Raises RoundFailed if the
        all-gather fails.
        """
        ...


def meeting(exchange: Exchange) -> Meeting:
    """Return the exchange as a Meeting. Raises UserError if it has no `all_gather`."""
    if not isinstance(exchange, Meeting):
        raise UserError(
            f"{type(exchange).__name__} has no all_gather, which peers use to compare their states: add it, or set"
            " exchange=swarm_gather"
        )
    return exchange


@runtime_checkable
class StateSender(Protocol):
    """An exchange with its own method to send the initial state from peers that have it to peers that need it."""

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Return the state of `way.givers` if this peer is one of `way.takers`, else empty bytes.

        All peers must call this with the same `way`, after an all-gather. `state` serializes this peer's state and is
        called only if needed. Raises RoundFailed or QuorumLost if the state does not arrive.
        """
        ...


def hand_over(exchange: Exchange, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
    """Call `StateSender.hand_over`. If the exchange lacks it, send the first giver's state in an all-gather."""
    if isinstance(exchange, StateSender):
        return exchange.hand_over(way, state)
    if not way.takers:
        return b""
    own = state() if exchange.peer == way.givers[0] else b""
    met = {c.peer: bytes(c.blob) for c in meeting(exchange).all_gather(own, way.number, way.timeout_s)}
    return met[way.givers[0]] if exchange.peer in way.takers else b""


@runtime_checkable
class Metered(Protocol):
    """An exchange that counts the bytes and seconds of its transfers."""

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this peer has sent, counting every copy."""
        ...

    @property
    def bytes_received(self) -> int:
        """Payload bytes that this peer has received."""
        ...

    @property
    def transfer_s(self) -> float:
        """Seconds so far during which at least one payload was being transferred to or from this peer."""
        ...


@dataclass(frozen=True)
class Unmetered:
    """The counters of an exchange that counts nothing."""

    bytes_sent: int = 0
    bytes_received: int = 0
    transfer_s: float = 0.0


def metered(exchange: Exchange) -> Metered:
    """Return the exchange itself, or `Unmetered` if the exchange counts nothing."""
    return exchange if isinstance(exchange, Metered) else Unmetered()


@runtime_checkable
class Counted(Protocol):
    """An exchange with additional counters."""

    def counters(self) -> dict[str, float]:
        """Return the additional counters since the start; their names contain their units."""
        ...


def counters(exchange: Exchange) -> dict[str, float]:
    """Return the additional counters of the exchange; empty if it has none."""
    return exchange.counters() if isinstance(exchange, Counted) else {}
