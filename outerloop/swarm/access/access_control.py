"""Access control of one peer: its allow-list, its signatures and its rejection log.

The rejection log counts, by kind, the messages and streams that this peer refused, and logs the sender and the reason
at a limited rate. The kinds are:

    outsiders   a stream from a peer that is not on the allow-list or may not use the protocol, or from a second
                process with a peer's key (incarnations.py)
    records     a roster record not signed by its owner, too large, valid for too long, or about a peer outside the run
    requests    stream data that is not a message of the protocol or is too long; a request that exceeds a limit
    payloads    a payload that is not signed by its owner for this round, is too large, cannot be decoded, or has a norm
                far above those of the other payloads
    ballots     a consensus message that cannot be accepted, or a history without proof
    manifests   the hash of a state manifest that lacks a valid signature by the donor that sent it

Remote peers control how often refusals occur. So each (kind, sender) pair is logged at most once per QUIET_S, with the
number of unlogged refusals since its previous line, and only the NAMES most recent pairs are remembered.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError, printable

logger = logging.getLogger(__name__)
Kind = Literal["outsiders", "records", "requests", "payloads", "ballots", "manifests"]
QUIET_S = 30.0
NAMES = 1024


class RejectionLog:
    """Counts this peer's refusals by kind since its start, and logs them at a limited rate."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.of_kind: Counter[str] = Counter()
        self._told: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # (last log time, refusals since)

    def note(self, kind: Kind, who: str, why: str) -> None:
        """Count a refusal, and log it unless a refusal of `who` of the same kind was logged within QUIET_S.

        `who`: the sender's name or peer id, already verified. `why`: the reason, in one line.
        """
        self.of_kind[kind] += 1
        told_s, more = self._told.pop((kind, who), (-QUIET_S, 0))
        loud = self._now_s() - told_s >= QUIET_S
        self._told[kind, who] = (self._now_s(), 0) if loud else (told_s, more + 1)
        while len(self._told) > NAMES:
            self._told.popitem(last=False)
        if loud:
            logger.warning(
                "refused (%s) %s: %s%s",
                kind,
                printable(who),
                printable(why),
                f", and {more} before that" if more else "",
            )

    @property
    def logged(self) -> list[tuple[str, str]]:
        """The remembered (kind, sender) pairs, sorted by the time of their last refusal."""
        return list(self._told)

    def counters(self) -> dict[str, float]:
        """Return a mapping from metric name to number of refusals, in total and per kind."""
        by_kind = {f"refused_{kind}": float(self.of_kind[kind]) for kind in get_args(Kind)}
        return {"refused_messages": sum(by_kind.values()), **by_kind}


ROSTER = "roster"
"""Name of the service that serves the roster (listed_roster.py)."""
EXPELLED = "expelled"
"""Name of the service that serves the list of expelled peers (accusations.py)."""


class AllowList:
    """The ids of the peers that may take part; test an id with `in`. An empty list means that the run is open to all.

    Args:
        peers: ids from the configuration.
        own: this peer's id; added to the list if the list is not empty.

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
        """Exclude a peer from the run, even if the run is open (expulsion.py)."""
        self._expelled.add(peer_id)

    def readmit(self, peer_id: str) -> None:
        """Lift the expulsion of a peer."""
        self._expelled.discard(peer_id)

    def why_not(self, peer_id: str) -> str:
        """Return the reason for refusing `peer_id`, a peer that is not `in` this list."""
        return "was expelled from the run" if peer_id in self._expelled else "is not in exchange.allow"

    def lists(self, peer_id: str) -> bool:
        """Return whether the configuration admits `peer_id`: the run is open or lists it. Expulsions are ignored."""
        return not self._peers or peer_id in self._peers


@dataclass(frozen=True)
class AccessControl:
    """The access control of one peer. Call `admits` before each handler, and `garbled` if a request is malformed.

    `onlooker`: peer id of the read-only observer, which `outerloop status` uses on this machine. In a run with an
    allow-list, it may read only the roster and the expelled peers.
    """

    signatures: Signatures
    allow: AllowList
    refusals: RejectionLog
    onlooker: str = ""

    def admits(self, remote: str, protocol: str, allowed: Callable[[str], bool]) -> bool:
        """Return whether to answer a stream from `remote`. If not, record the refusal in the rejection log.

        `allowed(remote)` must be true. In addition, `remote` must be on the allow-list, or be the read-only observer
        (`onlooker`) and use a protocol that it may read.
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
        """Record that a peer sent data that is not a valid message of the protocol."""
        self.refusals.note("requests", remote, f"{protocol}: {error}")
