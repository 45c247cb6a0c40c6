"""Access control of one peer: its allow-list, its signatures and its rejection log.

The rejection log counts, by kind, the messages and streams that this peer refused, and logs the sender and the reason
at a limited rate. The kinds are:

    outsiders   a stream from a peer that is neither listed nor invited, or may not use the protocol, or from a second
                process with a peer's key (incarnations.py); an invite that is not accepted
    records     a roster record not signed by its owner, too large, valid for too long, or about a peer outside the run
    requests    stream data that is not a message of the protocol or is too long; a request that exceeds a limit
    payloads    a payload that is not signed by its owner for this round, is too large, cannot be decoded, or has a norm
                far above those of the other payloads
    ballots     a consensus message that cannot be accepted, or a history without proof
    manifests   the hash of a state manifest that lacks a valid signature by the donor that sent it

Remote peers control how often refusals occur. So a (kind, sender) pair is logged at most once per QUIET_S. Its next log
line contains the number of refusals since the previous one. Only the NAMES most recent pairs are remembered.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from outerloop.swarm.access.signatures import Signatures, public_key_of
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import UserError, printable

logger = logging.getLogger(__name__)
Kind = Literal["outsiders", "records", "requests", "payloads", "ballots", "manifests"]
QUIET_S = 30.0
"""Minimum time between two log lines about the same (kind, sender) pair."""
NAMES = 1024
"""Maximum number of (kind, sender) pairs that are remembered."""


def how_to_return(peer_id: str) -> str:
    """Return what an excluded peer must do to take part again."""
    return (
        f"ask the organizer of the run to readmit it (outerloop expelled RUN_DIR --lift {peer_id}), and then run its"
        " outerloop join command again"
    )


class RejectionLog:
    """Counts this peer's refusals by kind since its start, and logs them at a limited rate."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.of_kind: Counter[str] = Counter()
        # (kind, sender) -> (time of the last log line, number of refusals since then)
        self._remembered: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def note(self, kind: Kind, who: str, why: str) -> None:
        """Count a refusal, and log it unless a refusal of `who` of the same kind was logged within QUIET_S.

        `who`: the sender's name or peer id, already verified. `why`: the reason, in one line.
        """
        self.of_kind[kind] += 1
        logged_s, unlogged = self._remembered.pop((kind, who), (-QUIET_S, 0))
        is_due = self._now_s() - logged_s >= QUIET_S
        self._remembered[kind, who] = (self._now_s(), 0) if is_due else (logged_s, unlogged + 1)
        while len(self._remembered) > NAMES:
            self._remembered.popitem(last=False)
        if is_due:
            logger.warning(
                "refused (%s) %s: %s%s",
                kind,
                printable(who),
                printable(why),
                f", and {unlogged} before that" if unlogged else "",
            )

    @property
    def logged(self) -> list[tuple[str, str]]:
        """The remembered (kind, sender) pairs, sorted by the time of their last refusal."""
        return list(self._remembered)

    def counters(self) -> dict[str, float]:
        """Return a mapping from metric name to number of refusals, in total and per kind."""
        by_kind = {f"refused_{kind}": float(self.of_kind[kind]) for kind in get_args(Kind)}
        return {"refused_messages": sum(by_kind.values()), **by_kind}


ROSTER = "roster"
"""Name of the service that serves the roster (listed_roster.py)."""
EXPELLED = "expelled"
"""Name of the service that serves the list of expelled peers (accusations.py)."""
CONTRIBUTORS = "contributors"
"""Name of the service that serves what each peer has contributed (contributors.py)."""
MANIFEST = "manifest"
"""Name of the service that serves the run manifest (run_manifest.py)."""
CORPUS = "corpus"
"""Name of the service that serves the index of the run's training data (corpus/service.py)."""
INVITES = "invites"
"""Name of the service that accepts invites (invite_service.py). In a run with an allow-list, it is the only service
that answers any peer outside the list; it checks what these peers send."""
EXCLUSIONS = {"expelled": "was expelled from the run", "removed": "was removed from the run with outerloop expel"}
"""Word with which a peer refuses an excluded peer -> the reason, to be shown after the excluded peer's name."""
MAX_VISITORS = 16
"""Maximum number of peers that may read the settings of a run with an allow-list because they showed a valid token."""


class AllowList:
    """The ids of the peers that may take part; test an id with `in`. An empty list means that the run is open to all.

    In a run with an allow-list, invited peers may take part as well (invite_register.py), some of them only up to a
    certain round.

    Args:
        peers: ids from the configuration.
        own: this peer's id; added to the list if the list is not empty.

    Attributes:
        configured: `peers`, as a set.
        current_number: function that returns the number that limits of invites count, or None until this peer knows it:
            that of the commit that decides its current round (in a gossip run, that of the round, from 0).

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
        self.configured = frozenset(peers)
        self.current_number: Callable[[], int | None] = lambda: None
        self._peers = self.configured | {own} if peers else frozenset()
        self._expelled: set[str] = set()
        self._invited: Mapping[str, int | None] = {}
        self._known: frozenset[str] = frozenset()
        self._removed: frozenset[str] = frozenset()
        self._too_late: frozenset[str] = frozenset()

    @property
    def listed(self) -> frozenset[str]:
        """The listed ids that are neither expelled nor removed, including this peer's own id; empty if the run is open.

        Invited peers are not included: they are not voters in the proof of a run's history (proof.py).
        """
        return frozenset(peer for peer in self._peers if peer in self)

    @property
    def admitted(self) -> frozenset[str]:
        """The listed and invited ids that may take part now, including this peer's own id; empty if the run is open."""
        return self.listed | frozenset(peer for peer in self._invited if peer in self)

    @property
    def closed(self) -> bool:
        """Return whether the run has an allow-list."""
        return bool(self._peers)

    def __contains__(self, peer_id: str) -> bool:
        return not self.why_not(peer_id)

    def expel(self, peer_id: str) -> None:
        """Exclude a peer from the run, even if the run is open (expulsion.py)."""
        self._expelled.add(peer_id)

    def readmit(self, peer_id: str) -> None:
        """Lift the expulsion of a peer."""
        self._expelled.discard(peer_id)

    def set_register(
        self,
        last: Mapping[str, int | None],
        *,
        known: frozenset[str],
        removed: frozenset[str],
        too_late: frozenset[str] = frozenset(),
    ) -> None:
        """Replace the invited and the removed peers.

        last       invited peer -> number of the last commit in which it may take part; None: no limit
        known      all peers that were ever named in an invite
        removed    the peers, invited or listed, that were removed
        too_late   those of `known` that used an invite after it had been withdrawn
        """
        self._invited, self._known, self._removed, self._too_late = last, known, removed, too_late

    def exclusion(self, peer_id: str) -> str:
        """Return the key of EXCLUSIONS that applies to `peer_id`, or "" if it is neither expelled nor removed."""
        if peer_id in self._expelled:
            return "expelled"
        return "removed" if peer_id in self._removed else ""

    def why_not(self, peer_id: str) -> str:
        """Return the reason for refusing `peer_id`, or "" if it may take part."""
        if excluded := self.exclusion(peer_id):
            return EXCLUSIONS[excluded]
        if not self._peers or peer_id in self.configured:
            return ""
        if peer_id in self._invited:
            last, number = self._invited[peer_id], self.current_number()
            return "" if last is None or number is None or number <= last else "was invited for earlier rounds only"
        if peer_id in self._known & self._too_late:
            return "used an invite that had been withdrawn"
        if peer_id in self._known:
            return "used an invite that another machine had used before"
        return "" if peer_id in self._peers else "is not in exchange.allow"

    def may_be_past_limit(self, peer_id: str) -> bool:
        """Return whether `peer_id` was invited up to a certain round, and this peer does not know the current round."""
        return self._invited.get(peer_id) is not None and self.current_number() is None

    def may_ever_be_member(self, peer_id: str) -> bool:
        """Return whether the run is open, lists `peer_id`, or has ever invited it. Excluded peers count."""
        return not self._peers or peer_id in self._peers or peer_id in self._known


@dataclass(frozen=True)
class AccessControl:
    """The access control of one peer. Call `admits` before each handler, and `garbled` if a request is malformed.

    `onlooker`: peer id of the read-only observer, which `outerloop status` uses on this machine. In a run with an
    allow-list, this observer and the visitors (peers that showed a valid token) may read only the roster, the expelled
    peers, the contributions, the manifest and the index of the training data.
    """

    signatures: Signatures
    allow: AllowList
    rejections: RejectionLog
    onlooker: str = ""
    _visitors: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def let_look(self, visitor: str) -> None:
        """Let a peer that showed a valid token read what the observer may read.

        If there are more than MAX_VISITORS visitors, the one that showed its token first loses this permission.
        """
        self._visitors[visitor] = None
        if len(self._visitors) > MAX_VISITORS:
            self._visitors.popitem(last=False)

    def admits(self, remote: str, protocol: str, allowed: Callable[[str], bool]) -> bool:
        """Return whether to answer a stream from `remote`. If not, record the refusal in the rejection log.

        The answer is True if both hold:

            `remote` may take part in the run, or uses a protocol that is open to it: that for invites is open to all
            peers, and those of the services that an observer may read are open to the observer and to visitors
            `allowed(remote)` is true
        """
        service, observes = protocol.rpartition("/")[2], remote == self.onlooker or remote in self._visitors
        open_to = (INVITES, ROSTER, EXPELLED, CONTRIBUTORS, MANIFEST, CORPUS) if observes else (INVITES,)
        if remote not in self.allow and service not in open_to:
            self.rejections.note("outsiders", remote, f"asked for {protocol}, but {self.allow.why_not(remote)}")
            return False
        if not allowed(remote):
            self.rejections.note("outsiders", remote, f"asked for {protocol}, but is not a member")
            return False
        return True

    def garbled(self, remote: str, protocol: str, error: Exception) -> None:
        """Record that a peer sent data that is not a valid message of the protocol."""
        self.rejections.note("requests", remote, f"{protocol}: {error}")
