"""Create the services of one peer. They decide rounds, exchange messages outside of rounds, and hand over states."""

from __future__ import annotations

from pathlib import Path

from outerloop.exchange.gather_options import GatherOptions
from outerloop.exchange.swarm import Part
from outerloop.exchange.swarm_waiting import OnStatus
from outerloop.swarm.access.hard_state_file import folder_of
from outerloop.swarm.access.public_names import KnownNames
from outerloop.swarm.accountability.contributors import ContributorService
from outerloop.swarm.audit.auditor import Auditor
from outerloop.swarm.audit.desk import AuditDesk
from outerloop.swarm.audit.states import StateStore
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.membership.opening_statements import OpeningStatements
from outerloop.swarm.membership.rendezvous import Rendezvous
from outerloop.swarm.membership.session import PeerSession
from outerloop.swarm.state_transfer.join import StateTransfer
from outerloop.swarm.storage import Folder
from outerloop.swarm.transfer.uploads import RateLimiter
from outerloop.swarm.validation import id_of

MEETING_BYTES = 16 << 20
"""Lower bound, in bytes, on the size limit of messages outside of rounds.

At the start, peers send all settings and shapes, which may take more bytes than a small model.
"""


class SwarmServices:
    """The services of one peer of SwarmGather. The caller starts `parts`.

    rounds          decides which payloads form a round
    meetings        exchanges messages outside of rounds
    opening         exchanges the signed statements with which a session starts
    state_transfer  sends and receives the state for late joiners
    contributors    serves the contributions of all peers
    auditor         audits other peers and answers their audits; None without audits
    """

    def __init__(
        self,
        options: GatherOptions,
        presence: PeerSession,
        *,
        max_blob_bytes: int,
        limiter: RateLimiter,
        on_status: OnStatus,
    ) -> None:
        self._presence, self._limiter, self._on_status = presence, limiter, on_status
        node, members, identity = presence.node, presence.members, Path(options.identity_path)
        run = {"run": options.run, "own": presence.name}
        self.rounds = GatherRunner(
            node,
            **run,
            names=self.names,
            disk=Folder(folder_of(identity)).cleared(),
            rules=options,
            max_blob_bytes=max_blob_bytes,
            limiter=limiter,
            incarnations=presence.incarnations,
        )
        self.meetings = Rendezvous(
            node,
            **run,
            allowed=members.__contains__,
            max_bytes=max(max_blob_bytes, MEETING_BYTES),
        )
        self.opening = OpeningStatements(node, **run, allowed=members.__contains__)
        self.state_transfer = StateTransfer(
            node,
            self.rounds,
            **run,
            session=lambda: members.session,
            allowed=lambda peer_id: peer_id in self.names(),
            disk=Folder(identity.with_suffix(".state"), synced=False).cleared(),
            limiter=limiter,
        )
        self.contributors = ContributorService(
            node,
            run=options.run,
            names=KnownNames(node.trust.signatures, run=str(options.run)),
            file=identity.with_suffix(".names"),
            present=self._names_present,
        )
        self.auditor = self._make_auditor(options, identity.with_suffix(".audit")) if options.audit else None

    def _make_auditor(self, options: GatherOptions, folder: Path) -> Auditor:
        """Return the auditor of this peer. `folder`: receives its states and verdicts."""
        return Auditor(
            self._presence.node,
            self.rounds,
            AuditDesk(StateStore(folder / "states"), every=options.audit_every),
            run=options.run,
            own=self._presence.name,
            probability=options.audit,
            file=folder / "verdicts.jsonl",
            limiter=self._limiter,
            on_status=self._on_status,
        )

    @property
    def parts(self) -> list[Part]:
        """The services that answer requests of other peers."""
        parts: list[Part] = [self.rounds, self.meetings, self.opening, self.state_transfer, self.contributors]
        return [*parts, self.auditor] if self.auditor else parts

    def names(self) -> dict[str, str]:
        """Return a map from id to name of all peers that may take part: those that this peer knows, and the roster."""
        return self._presence.members.known | {id_of(name): name for name in self.rounds.roster}

    def counts_on(self, peer_id: str) -> bool:
        """Return whether a peer was present at the start or takes part in decisions on rounds."""
        return peer_id in self._presence.members.names or peer_id in map(id_of, self.rounds.roster)

    async def _names_present(self) -> list[tuple[str, bytes]]:
        """Return peer id and signed public name of each peer that is present."""
        return [(record.peer_id, record.public_name) for record in await self._presence.roster.read()]
