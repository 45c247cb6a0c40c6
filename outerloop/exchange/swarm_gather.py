"""Gather between the peers of a swarm: payloads to everybody, and a majority decides which of them a round is made of.

Who is late or gone is not waited for beyond a grace, and no two peers ever land different rounds (swarm/agreement.py).
Rounds of all fragments form one chain: round r of fragment f has place r * fragments + f.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from outerloop.exchange.swarm import SwarmExchange
from outerloop.exchange.swarm_patience import PatientPending, state_from_others
from outerloop.swarm.disk import Folder
from outerloop.swarm.fields import BadMessage
from outerloop.swarm.handover import Handover
from outerloop.swarm.meetings import Meetings
from outerloop.swarm.outcomes import TooFar
from outerloop.swarm.pace import pace_of
from outerloop.swarm.presence import Presence
from outerloop.swarm.roster import id_of
from outerloop.swarm.rounds import Rounds
from outerloop.swarm.rules import Quorum, Rules
from outerloop.swarm.timeouts import CALL_S, DONATE_S, LINGER_S, MEET_S, TELL_S
from outerloop.types import FIRST, Contribution, Outrun, Refusals, Round, UserError

logger = logging.getLogger(__name__)


class SwarmGather(SwarmExchange):
    """Exchange between `peers` peers of one run. Construction starts this peer; `join` waits for the others.

    run               run id; peers with another one never meet
    peers             how many take part, this one included
    worker            index among the workers of this machine: they rank in this order
    identity_path     file of this peer's key; made if absent; keep it, and the folder that is made beside it for what
                      was agreed on and for the payloads of the last rounds, and the peer can come back
    initial_peers     addresses of running peers, each enough; none: this peer is the first
    host, port        where to listen; port 0 takes a free one
    announce          addresses by which others reach this peer, if not those that it listens on
    open_internet     relays, hole punching and port mapping: for peers behind a NAT
    allow             peer ids: others are answered nothing; none: everybody may take part
    join_timeout_s    how long to wait for the others at the start
    quorum            whom a round waits for beyond the grace: "majority", "all", or no more than "min_peers"
    min_peers         fewer never make a round; None: 2, or 1 in a run of one
    min_fraction      of the peers that are counted on, 0 .. 1: fewer do not close a round before its deadline
    grace_s           how long a round waits for the slower ones once it has enough
    deadline_s        how long a round waits for enough of them after its first payload; then min_peers are enough
    absent_rounds     who missed so many rounds in a row is not counted on any more, until it comes back
    fragments         of the schedule
    fingerprint       hash of all settings that must be equal on every peer
    max_blob_bytes    largest payload that is sent, or accepted from a peer
    max_mbit          what payloads and state may take of the way out, Mbit/s; None: no limit
    patience_s        how long nobody may tell anything of the run to a peer that needs its state, 90 at least
    tell              told, in one line, what a round that takes long is waiting for
    """

    agrees = True
    waits_for_all = False
    lockstep = True

    def __init__(
        self,
        *,
        run: str,
        peers: int,
        worker: int = 0,
        identity_path: str,
        initial_peers: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        announce: Sequence[str] = (),
        open_internet: bool = False,
        allow: Sequence[str] = (),
        join_timeout_s: float = 120.0,
        quorum: Quorum = "majority",
        min_peers: int | None = None,
        min_fraction: float = 0.0,
        grace_s: float = 3.0,
        deadline_s: float = 120.0,
        absent_rounds: int = 2,
        fragments: int = 1,
        fingerprint: str = "",
        max_blob_bytes: int = 1 << 30,
        max_mbit: float | None = None,
        patience_s: float = 600.0,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        rules = Rules(
            peers=peers,
            quorum=quorum,
            min_peers=min_peers,
            min_fraction=min_fraction,
            grace_s=grace_s,
            deadline_s=deadline_s,
            absent_rounds=absent_rounds,
        )
        pace = pace_of(max_mbit)
        presence = Presence(
            run=run,
            peers=peers,
            worker=worker,
            identity_path=identity_path,
            initial_peers=initial_peers,
            host=host,
            port=port,
            announce=announce,
            open_internet=open_internet,
            allow=allow,
            fingerprint=fingerprint,
            remembers=self._remembers,
        )
        super().__init__(presence, max_blob_bytes=max_blob_bytes, tell=tell)
        if not (isinstance(patience_s, int | float) and patience_s > 0):
            raise UserError(
                f"exchange.patience_s={patience_s} must be more than 0 seconds: type exchange.patience_s=600"
            )
        self._join_timeout_s, self._patience_s = join_timeout_s, max(patience_s, DONATE_S)
        self._fragments = fragments
        with self.appearing() as parts:
            self._rounds = Rounds(
                self._node,
                run=run,
                own=self.peer,
                names=self._names,
                disk=Folder(Path(identity_path).with_suffix(".rounds")),
                rules=rules,
                max_blob_bytes=max_blob_bytes,
                pace=pace,
            )
            self._meetings = Meetings(
                self._node, run=run, own=self.peer, allowed=self._members.__contains__, max_bytes=max_blob_bytes
            )
            self._handover = Handover(
                self._node,
                self._rounds,
                run=run,
                own=self.peer,
                allowed=lambda peer_id: peer_id in self._names(),
                disk=Folder(Path(identity_path).with_suffix(".state"), synced=False),
                pace=pace,
            )
            parts += [self._rounds, self._meetings, self._handover]
            self._node.member = self._counts_on
            self._carriers = self._rounds.bulk, self._handover.given, self._handover.taken

    @property
    def rank(self) -> int:
        """Place among the members, once joined; who came late shares one with a member."""
        members = list(self._members.names.values())
        return members.index(self.peer) if self.peer in members else zlib.crc32(self.peer.encode()) % len(members)

    @property
    def alive(self) -> int:
        """Of the members, those that the next round counts on."""
        return len(self._rounds.roster)

    @property
    def head(self) -> str:
        return self._rounds.head

    @property
    def came_late(self) -> bool:
        return self._members.came_late

    def join(self, first: Round = FIRST) -> None:
        """Wait until all peers are there and see the same members, or go back among those who go on without this one.

        Raises UserError, telling who is missing.
        """
        self._presence.form(timeout_s=self._join_timeout_s)
        self._node.call(self._begin(self._place(first)), timeout_s=CALL_S)

    def decided(self, round: Round) -> bool:
        """Whether a majority has settled a round. Raises Outrun when this peer has missed too much."""
        try:
            return self._rounds.decided(self._place(round))
        except TooFar:
            raise Outrun(self.recovery) from None

    def landed(self, round: Round, state: Callable[[], bytes]) -> None:
        """Copied here, hashed and given beside the training."""
        place = self._place(round)
        self._node.spawn(self._handover.landed(place, state() if self._handover.wants(place) else None))

    def refused(self, round: Round, refusals: Refusals) -> None:
        """A strike for each of the others (swarm/penalties.py)."""
        reasons = {peer: why.removeprefix(f"{peer}: ") for peer, why in refusals.items() if peer != self.peer}
        self._node.spawn(self._rounds.asking.unusable(self._place(round), reasons))

    def start(self, blob: bytes, round: Round) -> PatientPending:
        self._check_size(blob)
        place = self._place(round)
        gather = self._node.spawn(self._gather(place, blob, round))
        pending = PatientPending(
            gather, waits_for=lambda: self._rounds.waits_for(place), tell=self._tell, take_over=self.recovery
        )
        self._follow(pending)
        return pending

    def meet(self, blob: bytes, number: int, timeout_s: float) -> list[Contribution]:
        """Those that are counted on, without who is gone or does not come."""
        meeting = self._meetings.meet(number, blob, self._rounds.roster)
        met = self._node.call(meeting, timeout_s=MEET_S + CALL_S)
        return [Contribution(name, Round(number), content) for name, content in met.items()]

    def counters(self) -> dict[str, float]:
        """What was refused, by kind (swarm/refusals.py)."""
        return self._node.trust.refusals.counters()

    def linger(self) -> None:
        """Until all have met at the end, or do not come."""
        self._node.call(self._meetings.linger(), timeout_s=2 * LINGER_S)

    async def _begin(self, place: int) -> None:
        members = self._members
        if not members.came_late:
            await self._rounds.begin(run=members.sitting, roster=members.names.values(), number=place)
        elif self._remembers(members.sitting) and (memory := self._rounds.memory_file.read(run=members.sitting)):
            self._rounds.go_on(memory)

    def recovery(self, at_most: int) -> tuple[Round, bytes]:
        """The others' state, however long it takes to come: people see how far it is. Raises Deserted."""
        told_s = time.monotonic()

        def progress(here: int, size: int) -> None:
            nonlocal told_s
            if here == size or time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                self._tell(f"state of the run: {here / 1e6:.1f} of {size / 1e6:.1f} MB are here")

        self._tell("not where the others are: taking over the state of the run")
        work = self._handover.take_over(
            self._names().values(), sitting=self._members.sitting, at_most=at_most, progress=progress
        )
        self._handover.listen()
        place, content = state_from_others(
            self._node.spawn(work), silent_s=self._handover.silent_s, patience_s=self._patience_s, tell=self._tell
        )
        return Round(*divmod(place, self._fragments)), content

    def _names(self) -> dict[str, str]:
        """Peer id -> name of everybody who may take part: known here, or counted on by the others."""
        return self._members.known | {id_of(name): name for name in self._rounds.peers}

    def _counts_on(self, peer_id: str) -> bool:
        """Whether this is the id of a peer that was there at the start, or that decides rounds."""
        return peer_id in self._members.names or peer_id in map(id_of, self._rounds.peers)

    async def _gather(self, place: int, blob: bytes, round: Round) -> list[Contribution]:
        if not self._rounds.decided(place):
            await self._rounds.offer(place, blob)
        return [Contribution(name, round, content) for name, content in await self._rounds.outcome(place)]

    def _remembers(self, sitting: str) -> bool:
        try:
            return self._rounds.memory_file.read(run=sitting) is not None
        except BadMessage:
            return False

    def _place(self, round: Round) -> int:
        return round.number * self._fragments + round.fragment
