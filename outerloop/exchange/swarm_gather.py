"""Gather among the peers of a swarm: payloads go to all peers, and a majority decides which of them form a round.

Peers wait for late or lost peers only during a grace period, and no two peers ever land different results of one round
(swarm/consensus/chain.py). The rounds of all fragments form one chain of commits: commit r * fragments + f decides
fragment f of round r.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from outerloop.exchange.gather_options import GatherOptions
from outerloop.exchange.roster_news import RosterNews
from outerloop.exchange.swarm import SwarmExchange
from outerloop.exchange.swarm_services import SwarmServices
from outerloop.exchange.swarm_state import SwarmState
from outerloop.exchange.swarm_waiting import PatientPending
from outerloop.swarm.audit.desk import AuditDesk
from outerloop.swarm.gather.committed_rounds import LogTruncated
from outerloop.swarm.membership.common_checkpoint import ANY, Held
from outerloop.swarm.timeouts import CALL_S, DONATE_S, LINGER_S, MEET_S, RESIGN_S
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import (
    FIRST,
    Capabilities,
    Contribution,
    Contributor,
    Refusals,
    Round,
    StateHandoff,
    StateTransferRequired,
)

logger = logging.getLogger(__name__)


class SwarmGather(SwarmExchange):
    """Exchange among the peers of one run. The constructor starts this peer; `join` waits for the others.

    The keyword arguments are the fields of GatherOptions. `state_transfer` sends and receives the state for late
    joiners. `audits` connects the trainer with the audits of this run, or is None without audits.
    """

    info = Capabilities(
        agrees=True, waits_for_all=False, lockstep=True, measures_transfer=True, concurrent=True, replicated=True
    )
    __signature__ = signature(GatherOptions)

    def __init__(self, **named: Any) -> None:
        options = GatherOptions(**named)
        super().__init__(options, on_status=options.on_status or logger.warning, remembers=self._remembers)
        self._join_timeout_s = options.join_timeout_s
        self._formed = False
        self.first_commit = self.landed_commit = b""
        self.joined_round: Round | None = None
        if options.reform:
            self._on_status(
                "exchange.reform=true removes all absent peers from this run: make sure that they have stopped"
            )
        self._fragments = options.fragments
        with self.appearing() as parts:
            self._build(options)
            parts += self._services.parts
            self.node.member = self._services.counts_on
            self._carriers = self._rounds.bulk, self.state_transfer.uploads, self.state_transfer.downloads

    def _build(self, options: GatherOptions) -> None:
        """Create the services of this peer."""
        self._services = SwarmServices(
            options,
            self._presence,
            max_blob_bytes=self._max_blob_bytes,
            limiter=self._rate,
            on_status=self._on_status,
        )
        self._rounds, self._meetings = self._services.rounds, self._services.meetings
        self.state_transfer, self._auditor = self._services.state_transfer, self._services.auditor
        self._news = RosterNews(
            own=self.peer,
            fragments=self._fragments,
            allow=self.node.trust.allow,
            contributors=self._services.contributors,
        )
        self._state = SwarmState(
            node=self.node,
            transfer=self.state_transfer,
            meetings=self._meetings,
            own=self.peer,
            roster=lambda: self._rounds.roster,
            spawn=self._under_way,
            on_status=self._on_status,
            on_loading=self.publish_loading,
            patience_s=max(options.patience_s, DONATE_S),
        )

    @property
    def audits(self) -> AuditDesk | None:
        return self._auditor.desk if self._auditor else None

    @property
    def rank(self) -> int:
        """This peer's index among the members; valid after `join`. A late joiner shares its index with a member."""
        members = list(self.members.names.values())
        return zlib.crc32(self.peer.encode()) % len(members) if self.shares_rank else members.index(self.peer)

    @property
    def shares_rank(self) -> bool:
        return self.peer not in self.members.names.values()

    @property
    def alive(self) -> int:
        """Size of the roster: the number of peers expected in the next round."""
        return len(self._rounds.roster)

    @property
    def head(self) -> str:
        commit = self._rounds.last_commit
        return commit.digest.hex() if commit else ""

    @property
    def late_joiner(self) -> bool:
        return self.members.late_joiner

    def form(self, held: Held | None = None) -> int | None:
        """Wait until all peers are present and see the same members, or until the run has continued without this peer.

        Return the inner step of the checkpoint from which more than half of the peers resume (common_checkpoint.py). If
        this peer joins late, return the step of its own newest checkpoint. Return None if there is no checkpoint.

        held: inner step -> hash of the slow weights, for each checkpoint of this peer; None if the caller provides the
            state, so that this peer cannot choose a checkpoint.

        Raises UserError if peers are missing (the message lists the peers that are present), if more than half of the
        peers do not have a checkpoint in common, or if this peer does not have the common checkpoint.
        """
        self._presence.form()
        self._formed = True
        return max(held or (), default=None) if self.late_joiner else self._common_step(ANY if held is None else held)

    def _common_step(self, own: Held | str) -> int | None:
        patience_s = max(self._join_timeout_s, MEET_S)
        choosing = self._services.opening.common_checkpoint(
            own,
            session=self.members.session,
            members=self.members.names.values(),
            patience_s=patience_s,
            on_status=self._on_status,
        )
        return self.node.call(
            self._presence.incarnations.unless_stopped(choosing), timeout_s=2 * patience_s + MEET_S + CALL_S
        )

    def join(self, first: Round = FIRST) -> None:
        """Start at round `first` once the swarm has formed, or rejoin a run that has continued without this peer.

        Calls `form` if it has not been called yet, and raises its errors.
        """
        if not self._formed:
            self.form()
        self.node.call(self._begin(self._commit_number(first)), timeout_s=CALL_S)
        self.joined_round = None if self.late_joiner else first

    def decided(self, round: Round) -> bool:
        """Return whether a majority has decided a round.

        Raises StateTransferRequired if this peer is too far behind.
        """
        try:
            return self._rounds.decided(self._commit_number(round))
        except LogTruncated:
            raise StateTransferRequired(self.recover) from None

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Serialize the state if a peer needs it. The network thread hashes and serves it while training continues."""
        number = self._commit_number(round)
        self.landed_commit = self._rounds.pop_landed_digest(number)
        self.node.spawn(self.state_transfer.landed(number, state() if self.state_transfer.wants(number) else None))

    def publish_contributors(self, round: Round, contributors: Sequence[Contributor]) -> None:
        """Serve the contributions of all peers to those who ask for them, such as `outerloop status`."""
        self.node.spawn(self._services.contributors.publish(round.number, tuple(contributors)))

    def public_names(self) -> dict[str, str]:
        return self._services.contributors.names.texts()

    def roster_news(self) -> list[str]:
        return self._news.take()

    def refused(self, round: Round, refusals: Refusals) -> None:
        """Record a strike against each peer whose payload was unusable (swarm/gather/payload_requests.py)."""
        reasons = {peer: why.removeprefix(f"{peer}: ") for peer, why in refusals.items() if peer != self.peer}
        self.node.spawn(self._rounds.requests.unusable(self._commit_number(round), reasons))

    def start(self, blob: bytes, round: Round) -> PatientPending:
        number = self._commit_number(round)
        if self._auditor and blob:
            blob = self._auditor.desk.header(number).to_bytes() + blob
        self._check_size(blob)
        gather = self._under_way(self._gather(number, blob, round))
        pending = PatientPending(
            gather,
            waits_for=lambda: self._rounds.waits_for(number),
            on_status=self._on_status,
            recover=self.recover,
        )
        self._follow(pending)
        return pending

    def all_gather(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Return the messages of the peers in the roster, except those of peers that are lost or late.

        In the first all-gather, every peer waits up to `timeout_s`, because some peers take a long time to build the
        model, and all must begin with the same weights. Later all-gathers wait up to 60 s (MEET_S).
        """
        patience_s = timeout_s if number == 1 else MEET_S
        meeting = self._meetings.meet(number, blob, self._rounds.roster, patience_s=patience_s)
        met = self.node.call(meeting, timeout_s=patience_s + CALL_S)
        return [Contribution(name, Round(number), content) for name, content in met.items()]

    def hand_over(self, way: StateHandoff, state: Callable[[], bytes]) -> bytes:
        """Transfer the initial state from all givers to the takers. Return it if this peer is a taker, otherwise b"".

        Raises QuorumLost if it does not arrive.
        """
        return self._state.hand_over(way, state)

    def lacks_quorum(self) -> str:
        """Return a one-line message if too few peers are reachable to decide the current round, else ""."""
        return self._rounds.lacks_quorum()

    def counters(self) -> dict[str, float]:
        """Return the rejections of each kind (access_control.py), the verdicts of audits, and the state bytes sent."""
        audits = {name: float(count) for name, count in self._auditor.counters.items()} if self._auditor else {}
        sent = {"state_bytes_sent": float(self.state_transfer.uploads.bytes_sent)}
        return self.node.trust.rejections.counters() | audits | sent

    def linger(self) -> None:
        """Wait up to LINGER_S until the other peers have received this peer's message of the last all-gather."""
        self.node.call(self._meetings.linger(), timeout_s=2 * LINGER_S)

    def abort(self) -> None:
        """Give up this peer's votes, so that the others can continue without it, and leave (GatherRunner.resign)."""
        try:
            if self._formed and not self._closed and not self._presence.incarnations.stopped:
                self.node.call(self._rounds.resign(), timeout_s=RESIGN_S + CALL_S)
        finally:
            super().abort()

    async def _begin(self, number: int) -> None:
        members = self.members
        if not members.late_joiner:
            await self._rounds.begin(session=members.session, roster=members.names.values(), number=number)
        elif self._remembers(members.session) and (
            hard_state := self._rounds.hard_state_file.read(session=members.session)
        ):
            self._rounds.resume(hard_state)
        if log := self._rounds.log:
            self._news.follow(log)
        self.first_commit = self._rounds.commit_before(number)

    def recover(self, max_bytes: int) -> tuple[Round, bytes]:
        """Download the run's state from other peers, and report progress. The total time is not limited.

        Raises QuorumLost if no peer sends anything about the run for `patience_s` seconds.
        """
        number, content = self._state.of_run(
            lambda: self._services.names().values(), session=self.members.session, max_bytes=max_bytes
        )
        self.landed_commit = self._rounds.pop_landed_digest(number)
        return self._rounds.context.round_of(number), content

    async def _gather(self, number: int, blob: bytes, round: Round) -> list[Contribution]:
        if not self._rounds.decided(number):
            await self._rounds.offer(number, blob)
        contents = await self._rounds.outcome(number)
        self._news.follow(self._rounds.log)
        if self._auditor:
            contents = self._auditor.landing(number, contents)
        return [Contribution(name, round, content) for name, content in contents]

    def _remembers(self, session: str) -> bool:
        try:
            return self._rounds.hard_state_file.read(session=session) is not None
        except MalformedMessage:
            return False

    def _commit_number(self, round: Round) -> int:
        return round.number * self._fragments + round.fragment
