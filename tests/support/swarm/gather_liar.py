"""A member of a swarm in memory that follows no protocol but serves what a test makes it say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.messages import Accept, JoinRequest, Message, Propose, ViewChange
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import Accepted, ChainLink
from outerloop.swarm.gather.ballot_rpc import send_message
from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.signed_payload import sign_payload
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

Said = Callable[[int], Any]
"""Round -> what stands behind "payload" in the answer; None: nothing yet."""


class Liar:
    """`held`: what it gives to whoever asks for a sha256. `asked`: how often its payload of a round was asked for."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.name = name
        self.link = MemoryTransport(network, name.partition("-")[2])
        self.held: dict[bytes, bytes] = {}
        self.bulk = Bulk(self.link, self.held, run=RUN, allowed=lambda peer: True)
        self.asked: dict[int, int] = {}
        self.keys = KeySigner(self.link.trust.signatures, session=RUN, own=name)

    async def serve(self, says: Said) -> None:
        async def tell(remote: str, request: Any, stream: Stream) -> None:
            number = request["number"]
            self.asked[number] = self.asked.get(number, 0) + 1
            await stream.send_object({"payload": said} if (said := says(number)) is not None else {})
            await stream.ended()

        async def listen(remote: str, request: Any, stream: Stream) -> None:
            await stream.ended()

        await self.bulk.serve()
        await self.link.serve(f"outerloop/1/{RUN}/payload", allowed=lambda peer: True, handler=tell)
        for protocol in ("ballot", "commits", "expelled"):
            await self.link.serve(f"outerloop/1/{RUN}/{protocol}", allowed=lambda peer: True, handler=listen)

    def offer(self, content: bytes) -> list[Any]:
        """Hold this, and what to say of it."""
        sha = hashlib.sha256(content).digest()
        self.held[sha] = content
        return [sha, len(content)]

    def seal(self, payload: bytes, number: int, *, name: str = "", by: MemoryTransport | None = None) -> bytes:
        """A payload of a round under a name, its own unless told otherwise, signed by itself or another."""
        signatures = (by or self.link).trust.signatures
        return sign_payload(payload, signatures, session=RUN, number=number, peer=name or self.name)

    def ask(self, hard_state: HardState) -> JoinRequest:
        """To be counted in the round that is at hand in this memory."""
        number, head = hard_state.number, hard_state.head.digest
        return JoinRequest(number, head, self.keys.sign(statements.ask(number, head)))

    def here(self, hard_state: HardState, view: int) -> ViewChange:
        """That it wants to be in a view of the round that is at hand in this memory."""
        number, head = hard_state.number, hard_state.head.digest
        return ViewChange(number, head, view, self.keys.sign(statements.wish(number, head, view)))

    def propose(self, commit: Commit) -> Propose:
        """As the leader of view 0."""
        signature = self.keys.sign(statements.accept(commit.number, commit.parent, 0, commit.digest))
        return Propose(Accepted(commit, (ChainLink(0, (), signature),)))

    def accept(self, hard_state: HardState, digest: bytes) -> Accept:
        """Of a commit of the round that is at hand in this memory, in view 0."""
        number, head = hard_state.number, hard_state.head.digest
        return Accept(number, head, 0, digest, self.keys.sign(statements.accept(number, head, 0, digest)))

    async def say(self, to: str, message: Message) -> None:
        async with self.link.open_stream(to, f"outerloop/1/{RUN}/ballot") as stream:
            await stream.send_object({})
            await send_message(stream, message)
            await stream.ended()


async def swarm_with_liar(says: Callable[[Liar, Swarm], Said], **options: Any) -> tuple[Swarm, Liar]:
    """Three honest peers, and "003-d", which all of them count on."""
    swarm = Swarm("abcd", **options)
    liar = Liar(swarm.network, swarm["d"].name)
    await liar.serve(says(liar, swarm))
    del swarm.nodes["d"]
    await swarm.start()
    return swarm, liar
