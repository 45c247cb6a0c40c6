"""Count the bytes that a peer has sent since its run began, over all processes that resumed the run."""

from __future__ import annotations

from typing import Any

from outerloop.exchange_protocols import metered
from outerloop.protocols import Exchange


class RunTraffic:
    """Adds the bytes that the exchange has sent to those sent before the run was resumed.

    Args:
        exchange: counts the bytes since it was created.
        saved: the state to resume from, including the entry of `state_dict`; None if the run starts. Without that
            entry, as in states of earlier versions, the earlier bytes are not counted.
    """

    def __init__(self, exchange: Exchange, saved: dict[str, Any] | None) -> None:
        self.traffic, self.earlier = metered(exchange), (saved or {}).get("bytes_sent", 0)

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that this peer has sent since the run began, counting every copy."""
        return self.earlier + self.traffic.bytes_sent

    def state_dict(self) -> dict[str, int]:
        """Return the entry to store next to the state of the outer loop."""
        return {"bytes_sent": self.bytes_sent}
