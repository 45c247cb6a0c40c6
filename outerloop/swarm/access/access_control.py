"""Whom a peer answers, what it signs with, and where it notes what it refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outerloop.swarm.access.rejection_log import RejectionLog
from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError

ROSTER = "/roster"
"""End of the protocol in which a peer tells the roster (listed_roster.py)."""
EXPELLED = "/expelled"
"""End of the protocol in which a peer tells whom it has expelled (accusations.py)."""


class AllowList:
    """Peer ids; `in` tells whether a peer may take part. An empty list: everybody, the run is open.

    Args:
        peers: ids as the user typed them.
        own: this peer's id, which need not be typed.

    Raises:
        UserError: for what is no peer id.
    """

    def __init__(self, peers: Sequence[str] = (), *, own: str = "") -> None:
        if isinstance(peers, str):
            raise UserError(f"exchange.allow={peers} is no list: type exchange.allow=[{peers}]")
        for peer in peers:
            try:
                public_key_of(str(peer))
            except MalformedMessage as error:
                shown = "`outerloop doctor --run-dir` shows the ids of a run directory's workers"
                raise UserError(f"exchange.allow: {error}; {shown}") from error
        self._peers = frozenset(peers) | {own} if peers else frozenset()
        self._expelled: set[str] = set()

    @property
    def listed(self) -> frozenset[str]:
        """The ids that are on it, with the own one; none where the run is open."""
        return frozenset(peer for peer in self._peers if peer in self)

    @property
    def closed(self) -> bool:
        """Whether there is a list."""
        return bool(self._peers)

    def __contains__(self, peer_id: str) -> bool:
        return peer_id not in self._expelled and (not self._peers or peer_id in self._peers)

    def expel(self, peer_id: str) -> None:
        """This peer may take part no longer (expulsion.py), in an open run either."""
        self._expelled.add(peer_id)

    def readmit(self, peer_id: str) -> None:
        """This peer is expelled no longer."""
        self._expelled.discard(peer_id)

    def why_not(self, peer_id: str) -> str:
        """Why a peer that is not in this list is turned away."""
        return "was expelled from the run" if peer_id in self._expelled else "is not in exchange.allow"

    def lists(self, peer_id: str) -> bool:
        """Return whether the list as it was typed has this peer, or there is none, whatever it has done since."""
        return not self._peers or peer_id in self._peers


@dataclass(frozen=True)
class AccessControl:
    """One peer's. `admits` comes before every handler, and `garbled` after one that was told nonsense.

    `onlooker`: id of this machine's `outerloop status`, which may read the roster of a listed run and who was expelled
    from it, and nothing else.
    """

    signatures: Signatures
    allow: AllowList
    refusals: RejectionLog
    onlooker: str = ""

    def admits(self, remote: str, protocol: str, allowed: Callable[[str], bool]) -> bool:
        """Whether a stream of this peer is answered: it is on the list, and then `allowed`."""
        looks_on = remote == self.onlooker and protocol.endswith((ROSTER, EXPELLED))
        if remote not in self.allow and not looks_on:
            self.refusals.note("outsiders", remote, f"asked for {protocol}, and {self.allow.why_not(remote)}")
            return False
        if not allowed(remote):
            self.refusals.note("outsiders", remote, f"asked for {protocol}, and is not a member")
            return False
        return True

    def garbled(self, remote: str, protocol: str, error: Exception) -> None:
        """What this peer said to a handler is no message of the protocol."""
        self.refusals.note("requests", remote, f"{protocol}: {error}")
