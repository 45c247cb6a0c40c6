"""A swarm in memory whose peers give their state: `b"state 7"` as of commit 7, from whoever has landed it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from outerloop.swarm.access.signatures import KeySigner
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import send_message
from outerloop.swarm.state_transfer.donor import Donor
from outerloop.swarm.state_transfer.join import StateTransfer
from outerloop.swarm.state_transfer.manifest import Manifest
from outerloop.swarm.transfer.bulk import Bulk
from tests.support.swarm.gather_liar import Liar
from tests.support.swarm.gather_scene import RUN, MemoryDisk, Node, Swarm
from tests.support.swarm.memory_network import MemoryTransport

FAR = 1000
"""A round that the run does not come to."""


def state_transfer_of(node: Node, *, allow: Iterable[str] = ()) -> StateTransfer:
    link = MemoryTransport(node.network, node.id, allow=allow)
    return StateTransfer(
        link, node.rounds, run=RUN, own=node.name, session=lambda: RUN, allowed=lambda peer: True, disk=MemoryDisk()
    )


async def donate(swarm: Swarm, *, forgers: str = "") -> None:
    """All of them give their state from now on; each counts its copies in `copies`.

    `forgers`: ids of peers that name the true state in their payloads, but give b"forged".
    """
    for node in swarm.nodes.values():
        node.names["e"] = "004-e"
        transfer = state_transfer_of(node)
        node.copies = []  # type: ignore[attr-defined]
        node.land = landing(node, transfer, forges=node.id in forgers)  # type: ignore[method-assign]
        await transfer.serve()


def landing(node: Node, transfer: StateTransfer, *, forges: bool = False) -> Any:
    """What the trainer does at a landing; hashed at once, since a thread knows no virtual clock."""

    async def land(number: int) -> int:
        after_it, donor = await Node.land(node, number), transfer.donor
        wanted, head = donor.wants(number), node.rounds.head_of(number)
        donor.landed(number, copied=wanted)
        if wanted and head is not None:
            content = b"state %d" % number
            manifest = Manifest.of(content, number=number, head=head)
            node.copies.append(number)  # type: ignore[attr-defined]
            node.rounds.roots.name(number, manifest.sha)
            if forges:
                content = b"forged"
                manifest = Manifest.of(content, number=number, head=head)
            donor.hold(content, manifest)
        return after_it

    return land


async def newcomer(swarm: Swarm, names: Iterable[str], *, allow: Iterable[str] = ()) -> tuple[Node, StateTransfer]:
    """ "004-e", which takes part in nothing yet."""
    like = next(iter(swarm.nodes.values()))
    node = Node(swarm.network, "004-e", [*names, "004-e"], like.rules, inner_s=10)
    node.allow = allow
    await node.appear()
    return node, state_transfer_of(node, allow=allow)


def taking(at: StateTransfer, names: Iterable[str]) -> asyncio.Task[tuple[int, bytes]]:
    """`names` may change meanwhile."""
    work = at.install_state(lambda: list(names), session=RUN, at_most=1 << 20, progress=lambda here, size: None)
    return asyncio.create_task(work)


async def lead_astray(liar: Liar) -> None:
    """Tell a history of its own, which ends after FAR, to whoever asks, and give its weights as the state there."""
    keys = KeySigner(liar.link.trust.signatures, session=RUN, own=liar.name)

    def signed(commit: Commit) -> CommitCertificate:
        return CommitCertificate(
            commit, 0, ((liar.name, keys.sign(accept(commit.number, commit.parent, 0, commit.digest))),)
        )

    first = Commit(FAR, b"p" * 32, 0, (), (liar.name,))
    chain = [signed(first), signed(Commit(FAR + 1, first.digest, 0, (), (liar.name,)))]

    async def tell(remote: str, request: Any, stream: Any) -> None:
        after = request["after"]
        told = chain[:1] if after is None else [one for one in chain if one.commit.number > after]
        await stream.send_object({"commits": len(told)})
        for one in told:
            await send_message(stream, one)
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/commits", allowed=lambda peer: True, handler=tell)
    donor = Donor(liar.link, run=RUN, session=lambda: RUN, allowed=lambda peer: True)
    await donor.serve()
    content = b"weights of the liar"
    donor.hold(content, Manifest.of(content, number=FAR + 1, head=chain[1].commit.digest))


async def false_states(liar: Liar, swarm: Swarm) -> None:
    """Give another state as of whatever is asked for, at once."""

    async def tell(remote: str, request: Any, stream: Any) -> None:
        number = request["number"]
        head = swarm["a"].rounds.head_of(number) or bytes(32)
        manifest = Manifest.of(b"weights of the liar", number=number, head=head)
        told = manifest.to_bytes()
        donor = giving(liar, b"weights of the liar", told)
        signature = liar.link.trust.signatures.sign("manifest", RUN, number, manifest.sha, len(told))
        await donor.serve()
        await stream.send_object({"manifest": [manifest.sha, len(told), signature]})
        await stream.ended()

    await liar.link.serve(f"outerloop/1/{RUN}/snapshot", allowed=lambda peer: True, handler=tell)


def giving(liar: Liar, *contents: bytes) -> Bulk:
    held = {sha256(content).digest(): content for content in contents}
    return Bulk(liar.link, held, run=f"{RUN}/state", allowed=lambda peer: True)
