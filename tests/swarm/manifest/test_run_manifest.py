"""The run manifest is served to any peer, signed, and accepted only if the addressed peer signed or forwarded it."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.manifest.run_manifest import (
    CONTEXT,
    PROTOCOL,
    ManifestService,
    SignedManifest,
    fetch,
    forwarded,
    signed,
    verified,
)
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, anybody
from outerloop.swarm.validation import MAX_MANIFEST_BYTES, MalformedMessage
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run

A, B, C = 1, 2, 3
CONTENT = b'{"format": 1}'


def transport(network: MemoryNetwork, number: int) -> MemoryTransport:
    out = MemoryTransport(network, id_of(number))
    own = trust(number)
    out.trust = AccessControl(own.signatures, own.allow, own.rejections)
    return out


def test_a_peer_serves_its_manifest_to_a_visitor_and_none_if_it_has_none() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        visitor = transport(network, A)
        await ManifestService(transport(network, B), changed()).serve()
        await ManifestService(transport(network, C), signed(trust(C).signatures, run="summer", content=b"")).serve()
        manifest = await fetch(visitor, id_of(B))
        assert manifest == OF_B and (manifest.peer, manifest.content) == (id_of(B), CONTENT)
        assert await fetch(visitor, id_of(C)) is None

    run(scene())


def changed(**changes: Any) -> dict[str, Any]:
    return signed(trust(B).signatures, run="summer", content=CONTENT) | changes


OF_B = SignedManifest(**changed())


def relayed(**changes: Any) -> dict[str, Any]:
    """The answer of C, which forwards the manifest of B."""
    return forwarded(trust(C).signatures, OF_B) | changes


def test_a_signed_manifest_is_accepted() -> None:
    assert verified(changed(), trust(A).signatures, id_of(B)) == OF_B


def test_a_forwarded_manifest_is_that_of_its_author() -> None:
    assert verified(relayed(), trust(A).signatures, id_of(C)) == OF_B


@pytest.mark.parametrize(
    ("answer", "sender", "reason"),
    [
        (relayed(), A, "has not signed that it forwards it"),
        (relayed(), B, "has not signed that it forwards it"),
        (relayed(forwarding=OF_B.signature), C, "has not signed that it forwards it"),
        (relayed(forwarding=None), C, "has not signed that it forwards it"),
        (relayed(peer=id_of(A)), C, "has not signed that it forwards it"),
        (relayed(content=CONTENT + b" "), C, "has not signed that it forwards it"),
        (relayed(run="winter"), C, "has not signed that it forwards it"),
        (relayed(peer=7), C, "must be a peer id"),
        (relayed(more=1), C, "keys"),
        (changed(), C, "not by the peer that sent it"),
        (forwarded(trust(C).signatures, SignedManifest(id_of(B), "summer", CONTENT, bytes(64))), C, "is not valid"),
        (
            forwarded(
                trust(C).signatures,
                SignedManifest(id_of(B), "summer", CONTENT, trust(C).signatures.sign(CONTEXT, "summer", CONTENT)),
            ),
            C,
            "is not valid",
        ),
    ],
)
def test_a_forwarded_manifest_needs_both_signatures(answer: dict[str, Any], sender: int, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        verified(answer, trust(A).signatures, id_of(sender))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (changed(peer=id_of(C)), "not by the peer that sent it"),
        (signed(trust(C).signatures, run="summer", content=CONTENT) | {"peer": id_of(B)}, "signature"),
        (changed(signature=bytes(64)), "signature"),
        (changed(signature=b""), "signature"),
        (changed(run="winter"), "signature"),
        (changed(run=7), "short text"),
        (changed(run="x" * 10_000), "short text"),
        (changed(content=CONTENT + b" "), "signature"),
        (changed(content=CONTENT.decode()), "must be at most"),
        (changed(content=bytes(MAX_MANIFEST_BYTES + 1)), "must be at most"),
        (changed(more=1), "keys"),
        ({"content": CONTENT}, "keys"),
    ],
)
def test_any_other_answer_is_refused(answer: dict[str, Any], reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        verified(answer, trust(A).signatures, id_of(B))


def test_the_signature_is_not_that_of_another_purpose() -> None:
    signature = trust(B).signatures.sign("manifest", "summer", CONTENT)
    with pytest.raises(MalformedMessage, match="signature"):
        verified(changed(signature=signature), trust(A).signatures, id_of(B))
    assert CONTEXT != "manifest"


@pytest.mark.parametrize("answer", [{"content": b"x"}, changed(peer=id_of(C)), changed(content=bytes(1 << 16))])
def test_a_visitor_reports_a_manifest_that_it_cannot_read(answer: dict[str, Any]) -> None:
    async def scene() -> None:
        network = MemoryNetwork()

        async def lie(remote: str, request: Request, stream: Stream) -> None:
            await stream.send_object(answer)
            await stream.ended()

        await transport(network, B).serve(PROTOCOL, allowed=anybody, handler=lie)
        with pytest.raises(Unreadable):
            await fetch(transport(network, A), id_of(B))

    run(scene())
