"""Carry out the audits for which a commit picks this peer as an auditor, and answer the auditors of this peer.

    commit landed -> picks (picks.py) -> the first auditor fetches leaves and state -> its trainer replays the window
    leaf differs  -> the second auditor is notified and replays the same window
    both differ in the same leaf -> evidence -> every peer that knows the picks expels the audited peer

All verdicts are written to a file, one JSON line each. A peer that commits to no states, or does not send the states
that it committed to, gets the verdict "refused". It has no further effect, because a slow link or a restart looks the
same. An auditor that cannot audit gives no verdict, for example if it has recorded no state since its restart, or if
its earlier audits took too long.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.audit.desk import AUDIT_ROUNDS_KEPT, AuditDesk, Order
from outerloop.swarm.audit.leaves import NO_ROOT, REFUSED, Header, split
from outerloop.swarm.audit.picks import Pick, picks
from outerloop.swarm.audit.service import Answer, AuditRpc
from outerloop.swarm.audit.verdict import Verdict
from outerloop.swarm.gather.runner import GatherRunner
from outerloop.swarm.notifier import Notifier
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.swarm.resource_exhaustion import EXHAUSTION
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from outerloop.swarm.validation import MalformedMessage

logger = logging.getLogger(__name__)
Contents = Sequence[tuple[str, bytes | memoryview]]
PICKS_KEPT = 64
"""Number of rounds whose picks are remembered, so that evidence about them can be checked."""
QUEUED = 4
"""Maximum number of audits of this peer that wait or are in progress. Further audits are dropped."""
COUNTS = ("audits_matching", "audits_differing", "audits_refused")
"""Names of the counters of this peer's verdicts."""
FAILURES = (BrokenStream, Unreachable, TimeoutError, ContentUnavailable, MalformedMessage)


class Auditor:
    """The audits of one peer. Use it from the network thread, except for `desk`.

    `probability`: exchange.audit. `file`: receives the verdicts. `on_status`: called with a line for each verdict other
    than a match. The attribute `picks` maps the last PICKS_KEPT rounds to their audits, by name of the audited peer.
    """

    def __init__(
        self,
        transport: Transport,
        rounds: GatherRunner,
        desk: AuditDesk,
        *,
        run: str,
        own: str,
        probability: float,
        file: Path,
        limiter: RateLimiter,
        on_status: Callable[[str], None],
    ) -> None:
        self._transport, self._rounds, self._own, self._probability = transport, rounds, own, probability
        self._round_of = rounds.context.round_of
        self.desk, self._file, self._on_status = desk, file, on_status
        self.rpc = AuditRpc(
            transport,
            desk,
            run=run,
            allowed=rounds.context.may_take_part,
            own=own,
            picks_of=self._picks_of,
            judged=self._repeat,
            limiter=limiter,
        )
        rounds.witness.expelled.picked = self.confirms
        self.counters = dict.fromkeys(COUNTS, 0)
        self.picks: dict[int, dict[str, Pick]] = {}
        self._headers: dict[int, Mapping[str, Header]] = {}
        self._parents: dict[int, bytes] = {}
        self._news = Notifier()
        self._repeated: set[tuple[int, str]] = set()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._tasks = BackgroundTasks()

    async def serve(self) -> None:
        """Start answering other peers."""
        await self.rpc.serve()

    def landing(self, number: int, contents: Contents) -> list[tuple[str, bytes | memoryview]]:
        """Return the wire messages in the payloads of a decided round, and begin the audits that its commit demands.

        For a payload without a valid header, an empty message is returned. It cannot be decoded, so the payload does
        not count. Otherwise, a peer could omit the header to avoid audits.
        """
        parts = [(peer, *split(content)) for peer, content in contents]
        headers = {peer: header for peer, header, _ in parts if header}
        commit, parent = self._rounds.head_of(number), self._rounds.commit_before(number)
        if commit and parent:
            self._headers[number], self._parents[number] = headers, parent
            self.picks[number] = picks(number, commit, headers, probability=self._probability)
            self._forget(number - PICKS_KEPT)
            for pick in self.picks[number].values():
                self._begin(pick)
            self._news.notify()
        for peer, header, _ in parts:
            if header is None:
                logger.warning(
                    "%s: the payload of %s has no audit header: it is left out", self._round_of(number), peer
                )
        return [(peer, message if header else b"") for peer, header, message in parts]

    def confirms(self, evidence: Evidence) -> bool:
        """Return whether evidence is about an audit that this peer knows, by the auditors that its commit picked."""
        pick = self.picks.get(evidence.number, {}).get(evidence.peer)
        if pick is None or set(evidence.auditors) != set(pick.auditors):
            return False
        _, _, _, commit, root, _ = evidence.first.statement
        return (commit, root) == (pick.commit, pick.header.root)

    def _begin(self, pick: Pick) -> None:
        """Begin an audit if this peer is the first auditor."""
        if not pick.auditors:
            round = self._round_of(pick.number)
            logger.info("%s: %s is not audited: no other peer has its machine class", round, pick.peer)
        elif pick.auditors[0] == self._own:
            self._start(pick, None)

    def _start(self, pick: Pick, first: Verdict | None) -> None:
        if self._waiting < QUEUED:
            self._waiting += 1
            self._tasks.start(self._audit(pick, first))

    async def _audit(self, pick: Pick, first: Verdict | None) -> None:
        """Audit a peer. `first`: the verdict of the first auditor if this peer is the second one."""
        try:
            async with self._turn:
                leaf = await self._examine(pick)
        finally:
            self._waiting -= 1
        if leaf is None:
            return
        session, signatures = self._rounds.context.session, self._transport.trust.signatures
        verdict = Verdict.sign(pick, leaf, signatures, session=session, own=self._own)
        await self._record(verdict)
        if first and verdict.differs:
            evidence = Evidence.of(session, pick.peer, first.signed, verdict.signed)
            await self._rounds.witness.accusations.accuse(evidence)
        elif verdict.differs and len(pick.auditors) > 1:
            await self._notify(pick, verdict)

    async def _examine(self, pick: Pick) -> int | None:
        """Fetch the window of an audit, and let the trainer replay it.

        Return the leaf of the verdict, or None if this peer cannot give one.
        """
        round = self._round_of(pick.number)
        if why := self._cannot_audit(pick):
            logger.info("%s: %s is not audited: %s", round, pick.peer, why)
            return None
        if not pick.header.leaves:
            return REFUSED
        parent = self._parents[pick.number]
        try:
            leaves, before, state = await self._fetch(pick)
        except FAILURES as error:
            why = str(error) or "too late"
            logger.warning("%s: %s did not answer its auditor: %s", round, pick.peer, why)
            return REFUSED
        order = Order(pick, parent, leaves, before, state)
        self.desk.put(order)
        return await asyncio.wrap_future(order.leaf)

    def _cannot_audit(self, pick: Pick) -> str:
        """Return why this peer cannot carry out an audit now, through no fault of the audited peer, or "" if it can."""
        if not self.desk.state_bytes:
            return "this peer has not recorded a state since its start, so it does not know the size of a valid one"
        if max(self.picks) >= pick.number + AUDIT_ROUNDS_KEPT:
            return "earlier audits took so long that the audited peer may have deleted the state"
        return ""

    async def _fetch(self, pick: Pick) -> Answer:
        """Fetch the window of an audit like `AuditRpc.fetch`, so that a slow peer does not block later rounds' audits.

        Also raises TimeoutError once so many rounds have landed that the peer may have deleted the state.
        """
        earlier = self._headers.get(pick.number - 1, {}).get(pick.peer)
        fetch = self._tasks.start(self.rpc.fetch(pick, (pick.number - 1, earlier.root if earlier else NO_ROOT)))
        late = self._tasks.start(self._picks_of(pick.number + AUDIT_ROUNDS_KEPT))
        try:
            await asyncio.wait((fetch, late), return_when=asyncio.FIRST_COMPLETED)
            if not fetch.done():
                raise TimeoutError
            return fetch.result()
        finally:
            fetch.cancel()
            late.cancel()

    async def _notify(self, pick: Pick, verdict: Verdict) -> None:
        try:
            await self.rpc.notify(pick.auditors[1], pick, verdict.to_list())
        except FAILURES as error:
            logger.warning("%s did not receive the verdict on %s: %s", pick.auditors[1], pick.peer, error)

    def _repeat(self, remote: str, pick: Pick, value: Any) -> None:
        """Repeat an audit in which the first auditor, `remote`, found a differing leaf. This peer is the second one."""
        session, signatures = self._rounds.context.session, self._transport.trust.signatures
        try:
            verdict = Verdict.of(value, pick, pick.auditors[0], signatures, session=session)
        except MalformedMessage as error:
            self._transport.trust.rejections.note("ballots", remote, f"sent an invalid verdict: {error}")
            return
        if verdict.differs and (pick.number, pick.peer) not in self._repeated:
            self._repeated.add((pick.number, pick.peer))
            self._start(pick, verdict)

    async def _record(self, verdict: Verdict) -> None:
        """Count a verdict, write it to the file, and report it unless it is a match."""
        pick = verdict.pick
        matching, differing, refused = COUNTS
        kind = differing if verdict.differs else refused if verdict.leaf == REFUSED else matching
        self.counters[kind] += 1
        round = self._round_of(pick.number)
        line = f"audit of {round}, window {pick.window} of {pick.peer}: {verdict.outcome}"
        logger.info(line)
        if kind != matching:
            self._on_status(line)
        line = json.dumps(verdict.to_row()) + "\n"
        await EXHAUSTION.wait_out(lambda: asyncio.to_thread(_append, self._file, line), where=str(self._file))

    async def _picks_of(self, number: int) -> dict[str, Pick]:
        """Wait until this peer knows the commit of a round. Return its picks."""
        while number not in self.picks and number >= max(self.picks, default=0):
            await self._news.wait()
        return self.picks.get(number, {})

    def _forget(self, number: int) -> None:
        for known in (self.picks, self._headers, self._parents):
            for old in [older for older in known if older < number]:
                del known[old]
        self._repeated = {repeated for repeated in self._repeated if repeated[0] >= number}
        for peer, last in list(self.rpc.auditors.items()):
            if last < number:
                del self.rpc.auditors[peer]


def _append(file: Path, line: str) -> None:
    with file.open("a") as opened:
        opened.write(line)
