"""Track one peer of a swarm by the records that it publishes. A record is signed, but its content is a mere claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outerloop.watch.model.advice import cure_of_peer
from outerloop.watch.model.page import Number, Peer, PeerPhase
from outerloop.watch.model.timeline import Ready
from outerloop.watch.model.values import peer_id, rounded, shown, text
from outerloop.watch.model.worker import CIRCUIT

if TYPE_CHECKING:
    from outerloop.swarm.membership.roster import Record
    from outerloop.swarm.membership.status import Status
    from outerloop.swarm.p2p.round_trips import Link

SILENT_S = 30.0
"""Age in seconds of a record above which its peer is shown as silent. A peer refreshes its record every 20 s; a record
expires after 60 s.
"""

BEHIND_S = 45.0
"""A peer is shown as behind if others have been ahead of it for more seconds than this. The limit is not lower, because
records may be 20 s old and arrive late.
"""


@dataclass
class SwarmPeer:
    """One peer.

    written_s: when it wrote its newest record, in seconds since 1970.
    expelled: why it has been expelled by the peer that this machine observes the run through, or "".
    behind: number of rounds by which others are ahead of it, if they have been ahead for more than BEHIND_S; else 0.
    link: the link from this machine to the peer; None: this machine has not asked it for an answer.
    """

    record: Record
    written_s: float
    present: bool = True
    expelled: str = ""
    behind: int = 0
    link: Link | None = None

    @property
    def answers(self) -> bool:
        """Return whether the peer is present and not lost. A lost peer used to answer this machine, but has stopped."""
        return self.present and not (self.link and self.link.is_lost)

    @property
    def status(self) -> Status | None:
        """Return the peer's newest status, or None if it has not published one."""
        return self.record.status

    @property
    def round(self) -> int:
        """Return the last round that landed or failed at this peer, or 0 if it has not reported one."""
        return self.status.round if self.status else 0

    @property
    def bytes_sent(self) -> int:
        """Return the payload bytes that it has sent since it started, or 0 if it has not reported any."""
        return self.status.bytes_sent if self.status else 0

    @property
    def ready(self) -> Ready:
        """Return when it reported its last round, or why its payload did not count in that round."""
        if self.status and not self.status.peers:
            return "failed"
        return "absent" if self.status and not self.status.counted else self.written_s

    @property
    def round_trip_s(self) -> Number:
        """Return the round-trip time in seconds, to two digits so that the page changes rarely; None if not known."""
        known = self.link.round_trip_s if self.link else None
        return None if known is None else float(f"{known:.2g}")

    def phase(self, now_s: float) -> tuple[PeerPhase, str]:
        """Return the state of the peer, and the reason for this state ("" if it needs none)."""
        if self.expelled:
            return "expelled", text(self.expelled)
        if not self.present:
            return "left", "it withdrew its record, or did not refresh it for a minute"
        if not self.answers:
            return "silent", "it no longer answers: its process has ended, or its network has failed"
        if now_s - self.written_s > SILENT_S:
            return "silent", f"no record for more than {SILENT_S:.0f} s"
        if self.status and self.status.loading is not None:
            return "catching up", f"it downloads the state of the run: {100 * self.status.loading:.0f} % received"
        if self.status is None or (not self.round and self.status.loss is None):
            return "starting", ""
        if self.behind:
            return "catching up", f"{self.behind} rounds behind the others for more than {BEHIND_S:.0f} s"
        if self.round and not self.status.peers:
            return "failed", f"round {self.round} did not complete at this peer"
        if self.status.counted:
            return "training", ""
        return "training", f"round {self.round} landed without its payload, which came late or was refused"

    def page(self, now_s: float, *, step: int | None, late_s: float | None) -> Peer:
        """Return the row of the table of peers."""
        state, reason = self.phase(now_s)
        status, address = self.status, text(self.record.addresses[0]) if self.record.addresses else ""
        return {
            "name": text(self.record.name),
            "id": peer_id(text(self.record.name)),
            "public_name": text(self.record.title),
            "state": state,
            "reason": reason,
            "cure": cure_of_peer(state),
            "round": self.round,
            "step": step,
            "loss": rounded(status.loss) if status else None,
            "tokens_per_s": rounded(status.tokens_per_s) if status else None,
            "samples": None,
            "bytes_sent": status.bytes_sent if status else None,
            "bytes_received": status.bytes_received if status else None,
            "address": address if CIRCUIT in address else address.partition("/p2p/")[0],
            "relayed": CIRCUIT in address if address else None,
            "round_trip_s": self.round_trip_s,
            "refused": None,
            "late_s": late_s,
            "age_s": shown(round(now_s - self.written_s)),
        }
