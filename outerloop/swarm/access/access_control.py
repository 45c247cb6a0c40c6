"""Access control of one peer: its allow-list, its signatures and its log of rejections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outerloop.swarm.access.rejection_log import RejectionLog
from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

ROSTER = "roster"
"""The service with which a peer serves the roster (listed_roster.py)."""
EXPELLED = "expelled"
"""The service with which a peer serves the list of expelled peers (accusations.py)."""


class AllowList:
    """The ids of the peers that may take part; check an id with `in`. If it is empty, the run is open to all peers.

    Args:
        peers: ids from the configuration.
        own: this peer's id, which is added to a non-empty list.

    Raises:
        UserError: if an entry is not a peer id, or `peers` is a string.
    """

    def __init__(self, peers: Sequence[str] = (), *, own: str = "") -> None:
        if isinstance(peers, str):
            raise UserError(f"exchange.allow={peers} is not a list: set exchange.allow=[{peers}]")
        for peer in peers:
            try:
                public_key_of(str(peer))
            except MalformedMessage as error:
                shown = "run `outerloop doctor --run-dir` to see the ids of the workers of a run directory"
                raise UserError(f"exchange.allow: {error}; {shown}") from error
        self._peers = frozenset(peers) | {own} if peers else frozenset()
        self._expelled: set[str] = set()

    @property
    def listed(self) -> frozenset[str]:
        """The listed ids that are not expelled, including this peer's own id; empty if the run is open."""
        return frozenset(peer for peer in self._peers if peer in self)

    @property
    def closed(self) -> bool:
        """Return whether the run has an allow-list."""
        return bool(self._peers)

    def __contains__(self, peer_id: str) -> bool:
        return peer_id not in self._expelled and (not self._peers or peer_id in self._peers)

    def expel(self, peer_id: str) -> None:
        """Exclude a peer from the run (expulsion.py). This works in an open run as well."""
        self._expelled.add(peer_id)

    def readmit(self, peer_id: str) -> None:
        """Lift the expulsion of a peer."""
        self._expelled.discard(peer_id)

    def why_not(self, peer_id: str) -> str:
        """Return the reason for which a peer that is not `in` this list is refused."""
        return "was expelled from the run" if peer_id in self._expelled else "is not in exchange.allow"

    def lists(self, peer_id: str) -> bool:
        """Return whether the configured list contains this peer or the run is open, ignoring expulsions."""
        return not self._peers or peer_id in self._peers


@dataclass(frozen=True)
class AccessControl:
    """The access control of one peer. Call `admits` before each handler, and `garbled` if a request was malformed.

    `onlooker`: peer id that `outerloop status` uses on this machine. It may read the roster and the expelled peers of a
    run with an allow-list, and nothing else.
    """

    signatures: Signatures
    allow: AllowList
    refusals: RejectionLog
    onlooker: str = ""

    def admits(self, remote: str, protocol: str, allowed: Callable[[str], bool]) -> bool:
        """Return whether to answer a stream of this peer: it must be on the list, and then pass `allowed`.

        Records a refusal in the rejection log.
        """
        looks_on = remote == self.onlooker and protocol.rpartition("/")[2] in (ROSTER, EXPELLED)
        if remote not in self.allow and not looks_on:
            self.refusals.note("outsiders", remote, f"asked for {protocol}, but {self.allow.why_not(remote)}")
            return False
        if not allowed(remote):
            self.refusals.note("outsiders", remote, f"asked for {protocol}, but is not a member")
            return False
        return True

    def garbled(self, remote: str, protocol: str, error: Exception) -> None:
        """Record that a peer sent a handler something that is not a message of the protocol."""
        self.refusals.note("requests", remote, f"{protocol}: {error}")
