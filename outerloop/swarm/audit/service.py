"""Serve this peer's leaves and states to its auditors, and receive the verdicts that a second auditor must check.

    {number} ->                   <- {sizes: [3 sizes of the window's state]}, leaves of the round, leaves of the
                                     round before; or {}: this peer has no record of that round
    {number, peer, verdict} ->    a notice from the first auditor of `peer` to the second; no answer

Only the auditors that the commit of the round picked for this peer get an answer. They download the state with the
`bulk` service of the run id RUN/audit, which serves these auditors only. A request waits until this peer knows the
commit, for at most half of POLL_S.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from outerloop.swarm.audit.desk import AuditDesk, Record
from outerloop.swarm.audit.leaves import LEAF_BYTES, MAX_LEAVES, Leaf, leaves_from, root_of
from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport
from outerloop.swarm.timeouts import AUDIT_S, POLL_S, PULL_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.uploads import RateLimiter
from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MalformedMessage, checked_int, id_of, row

UPLOAD_SHARE = 0.5
"""Share of exchange.max_mbit for uploads of states to auditors, so that these do not delay payloads for long."""
Answer = tuple[list[Leaf], list[Leaf], tuple[bytes, bytes, bytes]]
"""The leaves of a round, those of the round before, and the state before the picked window."""


class AuditRpc(RpcService):
    """Client and server of audits.

    allowed    returns whether a peer (id) may take part in the run
    picks_of   waits until this peer knows the commit of a round, and returns its audits by name of the audited peer
    judged     called with the id of a first auditor, the audit, and the verdict that it sent to this peer, unchecked
    """

    service = "audit"

    def __init__(
        self,
        transport: Transport,
        desk: AuditDesk,
        *,
        run: str,
        allowed: Callable[[str], bool],
        own: str,
        picks_of: Callable[[int], Awaitable[Mapping[str, Pick]]],
        judged: Callable[[str, Pick, Any], None],
        limiter: RateLimiter,
    ) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._desk, self._own, self._picks_of, self._judged = desk, own, picks_of, judged
        self.auditors: dict[str, int] = {}  # id -> last round in which it audits this peer
        self.bulk = Bulk(
            transport,
            desk.store,
            run=f"{run}/audit",
            allowed=self.auditors.__contains__,
            limiter=limiter.part(UPLOAD_SHARE),
        )

    async def serve(self) -> None:
        """Start answering requests."""
        await super().serve()
        await self.bulk.serve()

    async def fetch(self, pick: Pick, before: tuple[int, bytes]) -> Answer:
        """Fetch leaves and state from the audited peer, and check them against the roots in its payloads' headers.

        `before`: number of the peer's previous round and the root of its leaves, or a root of zeros to ignore them.
        Raises BrokenStream, Unreachable, TimeoutError, ContentUnavailable or MalformedMessage if the peer does not send
        matching data. Requires that this peer has recorded a state, whose sizes bound those of the fetched one.
        """
        bounds = self._desk.state_bytes
        async with limit(AUDIT_S):
            async with self._stream_to(id_of(pick.peer)) as stream:
                await stream.send_object({"number": pick.number})
                answer = await stream.receive_object(patience_s=POLL_S)
                sizes = row(answer.get("sizes"), 3, "an answer to an auditor must have three sizes")
                leaves, earlier = [leaves_from(await stream.receive(at_most=MAX_LEAVES * LEAF_BYTES)) for _ in range(2)]
            if len(leaves) != pick.header.leaves or root_of(pick.number, leaves) != pick.header.root:
                raise MalformedMessage("the leaves do not have the root that the payload's header names")
            if any(before[1]) and root_of(before[0], earlier) != before[1]:
                raise MalformedMessage("the leaves of the previous round do not have the root of its payload's header")
            state = [
                await self._get(pick, sha, checked_int(size, "a size", maximum=MAX_AMOUNT), at_most)
                for sha, size, at_most in zip(leaves[pick.window].hashes, sizes, bounds, strict=True)
            ]
        return leaves, earlier if any(before[1]) else [], (state[0], state[1], state[2])

    async def notify(self, peer: str, pick: Pick, verdict: list[Any]) -> None:
        """Send this peer's verdict to the second auditor."""
        async with limit(POLL_S), self._stream_to(id_of(peer)) as stream:
            await stream.send_object({"number": pick.number, "peer": pick.peer, "verdict": verdict})
            await stream.ended()

    async def _get(self, pick: Pick, sha: bytes, size: int, at_most: int) -> bytes:
        return await self.bulk.get(sha, size, [id_of(pick.peer)], at_most=at_most, timeout_s=PULL_S)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        try:
            number = checked_int(request.get("number"), "the round of an audit", maximum=MAX_NUMBER)
        except MalformedMessage as error:
            raise Unreadable(str(error)) from error
        picks = await self._known_picks(number)
        if "verdict" in request:
            pick = picks.get(str(request.get("peer")))
            if pick and list(map(id_of, pick.auditors)) == [remote, id_of(self._own)]:
                self._judged(remote, pick, request["verdict"])
            return
        pick, record = picks.get(self._own), self._desk.record(number)
        if pick and record and record.leaves and remote in map(id_of, pick.auditors):
            self.auditors[remote] = number
            await self._send(stream, record, pick.window)
        else:
            await stream.send_object({})
        await stream.ended()

    async def _send(self, stream: Stream, record: Record, window: int) -> None:
        """Send the leaves of a round and of the round before, and the sizes of the state before the window."""
        await stream.send_object({"sizes": list(record.sizes[window])})
        earlier = self._desk.record(record.number - 1)
        for leaves in (record.leaves, earlier.leaves if earlier else ()):
            await stream.send(b"".join(leaf.to_bytes() for leaf in leaves))

    async def _known_picks(self, number: int) -> Mapping[str, Pick]:
        """Return the audits of a round, or none if the round's commit does not arrive within half of POLL_S."""
        try:
            async with limit(POLL_S / 2):
                return await self._picks_of(number)
        except TimeoutError:
            return {}
