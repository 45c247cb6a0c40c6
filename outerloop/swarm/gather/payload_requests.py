"""Ask each peer for its payload of the current round until the payload is stored or rejected.

    {number} ->   <- {payload: [sha256, bytes, state ...]}, or {} if the owner has passed that round without a payload

Peers request payloads; there are no announcements, which could be lost. A peer answers a request once it has its
payload for that round. The content itself is downloaded by its hash (payload_downloads.py) and contains its owner's
signature (signed_payload.py).

    answer to the request                     what this peer does
    no answer, or a broken stream             asks again
    {}                                        fetches commits from the answering peer, which is ahead
    hash and size of the payload              downloads the payload, and rejects it if it is too large, not signed, or
                                              does not match the hash

A payload is also rejected when the round is applied, if it cannot be decoded or its norm differs too much from the
norms of the others.

A peer whose payload is rejected does not take part in the round, and is asked again in the next round. `backoff`
(round_context.py) counts the rejections. The round does not wait for peers that could not be reached when last tried.

This peer offers its own payloads to the others, and reports stored payloads to the consensus:

    payload of the trainer -> signed for this round -> on disk -> offered and reported as stored
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.gather.catch_up import CatchUpTask
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.gather.state_roots import StateRoots
from outerloop.swarm.membership.mailbox import Mailbox
from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import POLL_S, RETRY_S, limit
from outerloop.swarm.transfer.signed_payload import offload, sign_payload
from outerloop.swarm.validation import MalformedMessage, id_of

logger = logging.getLogger(__name__)
NETWORK_ERRORS = (BrokenStream, Unreachable, TimeoutError)


class PayloadRpc(RpcService):
    """Client and server of the payload RPC. The server answers from `own`: round -> this peer's payload."""

    service = "payload"

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self.own: Mailbox[Participant] = Mailbox(keep=ROUNDS_KEPT)

    async def ask(self, peer: str, number: int, *, reached: Callable[[], None]) -> Participant | None:
        """Return the description of a peer's payload for a round; None if the peer passed the round without a payload.

        Calls `reached` as soon as the stream is open. Raises BrokenStream, Unreachable or TimeoutError if the peer does
        not answer or its answer is malformed.
        """
        async with self._stream_to(id_of(peer)) as stream:
            reached()
            await stream.send_object({"number": number})
            answer = await stream.receive_object(patience_s=POLL_S)
        try:
            return Participant.from_list([peer, *answer["payload"]]) if answer else None
        except (MalformedMessage, KeyError, TypeError) as error:
            self._transport.trust.rejections.note("payloads", peer, f"the response has no payload: {error}")
            raise Unreadable(f"the response has no payload: {error}") from error

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if not isinstance(number, int):
            raise Unreadable("a request without a round number")
        async with limit(POLL_S):
            payload = await self.own.read(number)
        await stream.send_object({} if payload is None else {"payload": payload.to_list()[1:]})
        await stream.ended()


class PayloadRequests:
    """The payload requests of the current round, one task per peer.

    `unreachable`: the peers that could not be reached at the last attempt in this round.
    """

    def __init__(
        self, context: RoundContext, rpc: PayloadRpc, downloads: PayloadDownloads, catch_up: CatchUpTask
    ) -> None:
        self._context, self._rpc, self._downloads, self._catch_up = context, rpc, downloads, catch_up
        self.unreachable: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}  # peer -> its task in the current round, even if finished

    def ask_all(self, number: int, peers: Iterable[str]) -> None:
        """Ask each of these peers for its payload of round `number`, unless it has already been asked in this round."""
        for peer in peers:
            if peer not in self._running:
                self._running[peer] = asyncio.create_task(self.ask(number, peer))

    def begin_round(self, number: int) -> None:
        """Cancel the requests of the previous round."""
        self.cancel()
        self.unreachable.clear()

    def cancel(self) -> None:
        """Cancel all requests."""
        for task in self._running.values():
            task.cancel()
        self._running = {}

    async def ask(self, number: int, peer: str) -> None:
        """Ask a peer repeatedly until its payload for round `number` is stored or rejected.

        The next round cancels this task.
        """
        pause_s = RETRY_S[0]
        while True:
            try:
                reached = partial(self.unreachable.discard, peer)
                participant = await self._rpc.ask(peer, number, reached=reached)
                if participant is None:
                    self._catch_up.fetch_from(peer)
                elif await self._get(number, participant):
                    return
            except NETWORK_ERRORS as error:
                if isinstance(error, Unreachable):
                    self.unreachable.add(peer)
                    self._context.act(lambda chain: [])  # any event makes consensus_loop.py check the round
                round = self._context.round_of(number)
                logger.debug("%s: asking %s for its payload failed: %s", round, peer, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def unusable(self, number: int, reasons: Mapping[str, str]) -> None:
        """Record strikes against the peers whose payloads were unusable when round `number` landed.

        `reasons`: peer -> why its payload was unusable.
        """
        for peer, reason in reasons.items():
            self._downloads.log_rejection(number, peer, reason)
            self._context.backoff.payload_unusable(peer, number)

    async def _get(self, number: int, participant: Participant) -> bool:
        """Download a payload. Return whether it is now stored or rejected. If not, the caller must ask again."""
        peer, backoff = participant.peer, self._context.backoff
        await asyncio.wait([self._downloads.start(number, participant, [peer])])
        if self._downloads.is_stored(number, participant):
            backoff.payload_stored(peer, number)
            return True
        lied = self._downloads.has_wrong_hash(participant)
        if lied:
            self._downloads.log_rejection(number, peer, "its payload does not match the sha256 that it announced")
        if lied or self._downloads.is_rejected(number, participant):
            backoff.payload_rejected(peer, number)
            return True
        return False


class OwnPayloads:
    """Signs, stores and offers this peer's payloads.

    `rpc` answers other peers' requests with the hash and size of a payload. `roots` determines which state it names.
    """

    def __init__(self, context: RoundContext, store: RoundStore, rpc: PayloadRpc, roots: StateRoots) -> None:
        self._context, self._store, self._rpc, self._roots = context, store, rpc, roots

    async def offer(self, number: int, blob: bytes) -> None:
        """Sign and store `blob` as this peer's payload for round `number`, and offer it to the other peers.

        Does nothing if the round is over, or if this peer has already signed a payload for it, e.g. before a restart: a
        peer never signs two payloads for the same round, not even on different chains.
        """
        own, chain = self._context.own, self._context.chain
        if self._store.has_signed(own, number) or number < chain.number:
            return
        session, state = self._context.session, await self._roots.named_in(number)

        def seal() -> tuple[bytes, Participant]:
            signatures = self._context.trust.signatures
            content = sign_payload(blob, signatures, session=session, number=number, peer=own, state=state)
            return content, Participant.of(own, content, state=state)

        content, participant = await offload(len(blob), seal)
        await self._store.put(number, participant, content)
        self._rpc.own.post(number, participant)
        self._context.report_stored(number, participant)

    def resume(self, number: int) -> None:
        """Report the payloads stored for round `number` and later to the consensus, and offer this peer's own."""
        for known, participant in self._store.since(number):
            self._context.report_stored(known, participant)
            if participant.peer == self._context.own:
                self._rpc.own.post(known, participant)

    def begin_round(self, number: int) -> None:
        """Answer the pending requests for earlier rounds: this peer will not have a payload for them."""
        self._rpc.own.over(number - 1)

    def restart(self, number: int) -> None:
        """Follow another chain from round `number` on. Keep stored payloads, which may be valid on that chain."""
        self._rpc.own.take_back(number)
        self.resume(number)
