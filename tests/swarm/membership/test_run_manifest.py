"""The run manifest is served to any peer, signed, and accepted only from the peer that signed it."""

from __future__ import annotations

from typing import Any

import pytest

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.membership.run_manifest import CONTEXT, PROTOCOL, ManifestService, fetch, signed, verified_content
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
    out.trust = AccessControl(own.signatures, own.allow, own.refusals)
    return out


def test_a_peer_serves_its_manifest_to_a_visitor_and_none_if_it_has_none() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        visitor = transport(network, A)
        await ManifestService(transport(network, B), run="summer", content=CONTENT.decode()).serve()
        await ManifestService(transport(network, C), run="summer", content="").serve()
        assert await fetch(visitor, id_of(B)) == CONTENT
        assert await fetch(visitor, id_of(C)) == b""

    run(scene())


def changed(**changes: Any) -> dict[str, Any]:
    return signed(trust(B).signatures, run="summer", content=CONTENT) | changes


def test_a_signed_manifest_is_accepted() -> None:
    assert verified_content(changed(), trust(A).signatures, id_of(B)) == CONTENT


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
        verified_content(answer, trust(A).signatures, id_of(B))


def test_the_signature_is_not_that_of_another_purpose() -> None:
    signature = trust(B).signatures.sign("manifest", "summer", CONTENT)
    with pytest.raises(MalformedMessage, match="signature"):
        verified_content(changed(signature=signature), trust(A).signatures, id_of(B))
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
