"""Serve and fetch the run manifest: the settings of a run, so that a machine can join with no more than an address.

    outerloop/1/manifest    {} ->   <- {peer, run, content, signature} | {}   ({}: the run has its own training program)

    content       JSON of at most 16 KiB; config/manifest/content.py states and checks its form
    signature     by the key of `peer`, over ["run_manifest", run, content]
    forwarding    only if another peer than `peer` answers: signature by the answering peer's key, over
                  ["forwarded_manifest", run, peer, content]

The protocol name contains no run, because a newcomer does not know the run yet. The signature lets a third party verify
which peer stated these settings. A relay (`outerloop relay`) has no settings of its own: it forwards the manifest of a
peer of the run. The newcomer trusts the peer whose id is in the address that it was given, so that peer must have
signed the manifest, or must have signed that it forwards the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outerloop.swarm.access.access_control import MANIFEST
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, anybody
from outerloop.swarm.timeouts import VIEW_S, limit
from outerloop.swarm.validation import MAX_MANIFEST_BYTES, MalformedMessage, fields, quote

PROTOCOL = f"outerloop/1/{MANIFEST}"
CONTEXT = "run_manifest"
FORWARDED_CONTEXT = "forwarded_manifest"
FORWARDING = "forwarding"
ANSWER_BYTES = MAX_MANIFEST_BYTES + 1024
"""Maximum size of an answer: the content, and the other values of the map."""
MAX_RUN = 256


@dataclass(frozen=True)
class SignedManifest:
    """The settings of a run as stated by the peer `peer` (id). `content`: JSON. `signature`: made by that peer."""

    peer: str
    run: str
    content: bytes
    signature: bytes


class ManifestService:
    """Serves a run manifest to any peer. `answer`: what `signed` or `forwarded` returned."""

    def __init__(self, transport: Transport, answer: Mapping[str, Any]) -> None:
        self._transport = transport
        self.answer = answer

    async def serve(self) -> None:
        """Start answering requests."""
        await self._transport.serve(PROTOCOL, allowed=anybody, handler=self._answer)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object(dict(self.answer))
        await stream.ended()


def signed(signatures: Signatures, *, run: str, content: bytes) -> dict[str, Any]:
    """Return a peer's answer: its own manifest with its signature, or {} if the run has its own training program."""
    if not content:
        return {}
    return asdict(SignedManifest(signatures.peer_id, run, content, signatures.sign(CONTEXT, run, content)))


def forwarded(signatures: Signatures, manifest: SignedManifest) -> dict[str, Any]:
    """Return a relay's answer: the manifest of another peer, and the relay's signature over the forwarding."""
    scope = manifest.run, manifest.peer, manifest.content
    return asdict(manifest) | {FORWARDING: signatures.sign(FORWARDED_CONTEXT, *scope)}


async def fetch(transport: Transport, peer_id: str) -> SignedManifest | None:
    """Fetch the run manifest that a peer serves. Return None if the run has its own training program.

    Raises BrokenStream, Unreachable or TimeoutError if the peer does not send a manifest with valid signatures.
    """
    async with limit(VIEW_S), transport.open_stream(peer_id, PROTOCOL) as stream:
        await stream.send_object({})
        answer = await stream.receive_object(at_most=ANSWER_BYTES)
    try:
        return verified(answer, transport.trust.signatures, peer_id) if answer else None
    except MalformedMessage as error:
        raise Unreadable(str(error)) from error


def verified(answer: Mapping[str, Any], signatures: Signatures, sender: str) -> SignedManifest:
    """Return the manifest in the answer of the peer `sender` (id).

    Raises MalformedMessage unless `sender` signed the manifest, or signed that it forwards it and its author signed it.
    """
    is_forwarded = FORWARDING in answer
    found = fields(answer, "a run manifest", (*SignedManifest.__dataclass_fields__, *[FORWARDING] * is_forwarded))
    forwarding = found.get(FORWARDING)
    manifest = _well_formed(SignedManifest(**{name: found[name] for name in SignedManifest.__dataclass_fields__}))
    author, run, content = manifest.peer, manifest.run, manifest.content
    if not is_forwarded and author != sender:
        raise MalformedMessage(f"the run manifest is signed by {quote(author)}, not by the peer that sent it")
    if is_forwarded and not signatures.verify(forwarding, FORWARDED_CONTEXT, run, author, content, by=sender):
        raise MalformedMessage("the peer that sent the run manifest has not signed that it forwards it")
    if not signatures.verify(manifest.signature, CONTEXT, run, content, by=author):
        raise MalformedMessage("the signature of the run manifest is not valid")
    return manifest


def _well_formed(manifest: SignedManifest) -> SignedManifest:
    """Return the manifest, if its texts and its content have valid types and sizes. Raises MalformedMessage if not."""
    if type(manifest.peer) is not str:
        raise MalformedMessage(f"the peer of a run manifest must be a peer id; got {quote(manifest.peer)}")
    if type(manifest.run) is not str or len(manifest.run) > MAX_RUN:
        raise MalformedMessage(f"the run id of a run manifest must be a short text; got {quote(manifest.run)}")
    if type(manifest.content) is not bytes or len(manifest.content) > MAX_MANIFEST_BYTES:
        raise MalformedMessage(
            f"the content of a run manifest must be at most {MAX_MANIFEST_BYTES} bytes; got {quote(manifest.content)}"
        )
    return manifest
