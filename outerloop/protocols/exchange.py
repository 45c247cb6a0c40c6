"""The protocol of an exchange. exchange_protocols defines the optional ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from outerloop.types import Capabilities, Contribution, Round


class Pending(Protocol):
    """An exchange in progress."""

    def wait(self, timeout_s: float) -> list[Contribution]:
        """Return the contributions to the round; this peer's own contribution may be missing.

        Raises RoundFailed if the round did not complete, QuorumLost if too few peers were present for too long, and
        StateTransferRequired if this replica must first load the state of another peer.
        """
        ...

    def arrived(self) -> bool:
        """Return whether `wait` would return or fail immediately."""
        ...


@runtime_checkable
class ReportsArrival(Protocol):
    """A `Pending` that reports when the contributions to its round have arrived."""

    def on_arrival(self, act: Callable[[list[Contribution]], None]) -> None:
        """Call `act`, in any thread, with the contributions that `wait` returns, as soon as it would return them.

        `act` is never called if the round fails. Call this at most once.
        """
        ...


class Exchange(Protocol):
    """AXIS exchange: sends this peer's message of a round and returns the messages of other peers.

    exchange_protocols defines the optional protocols.
    """

    info: Capabilities
    """Facts about the exchange. This is a class attribute, so that they are known before an exchange is constructed."""
    peer: str
    """This peer's name, unique in the run."""

    @property
    def rank(self) -> int:
        """This peer's index among the peers of the run; valid after `join`."""
        ...

    @property
    def size(self) -> int:
        """Number of peers in the run; valid after `join`."""
        ...

    def join(self, first: Round = ...) -> None:
        """Wait until the run's peers are present. Raises UserError if they do not appear.

        `first`: the round that this peer launches next. After a restart this is not round 0.
        """
        ...

    def start(self, blob: bytes, round: Round) -> Pending:
        """Start sending one wire message, and return immediately.

        If the round is already decided, the message is not included, but `Pending.wait` returns the contributions.
        """
        ...

    def close(self) -> None:
        """Complete the transfers that other peers still need from this peer, then leave. Idempotent."""
        ...

    def abort(self) -> None:
        """Leave immediately, even if other peers still need data from this peer. Idempotent."""
        ...
