"""Define what the launcher needs from an exchange whose processes find each other over a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from outerloop.swarm.audit.desk import AuditDesk
    from outerloop.swarm.membership.status import Status  # imports hivemind, which other exchanges do not need


@runtime_checkable
class NetworkPeer(Protocol):
    """An exchange that peers on other machines can see from its construction until it is closed."""

    @property
    def address(self) -> list[str]:
        """Full addresses of this peer. Another peer can use any of them as an initial peer."""
        ...

    def form(self, held: Mapping[int, str]) -> int | None:
        """Wait for the other peers. Return the step of the checkpoint to resume from, or None to start from scratch.

        `held`: inner step -> hash of the slow weights, for each checkpoint of this peer.

        Raises UserError if peers are missing, or if they cannot resume from the same checkpoint.
        """
        ...

    def publish_status(self, status: Status) -> None:
        """Publish this peer's status to other machines."""
        ...

    def on_close(self, act: Callable[[], None]) -> None:
        """Register a function that is called once this peer has left."""
        ...


@runtime_checkable
class NeedsQuorum(Protocol):
    """An exchange in which a round is decided only while enough peers are reachable."""

    def lacks_quorum(self) -> str:
        """Return a one-line message if too few peers are reachable to decide the current round, else ""."""
        ...


@runtime_checkable
class Audited(Protocol):
    """An exchange whose peers audit each other's inner steps."""

    @property
    def audits(self) -> AuditDesk | None:
        """Connects the trainer with the audits, or None if the run has none."""
        ...
