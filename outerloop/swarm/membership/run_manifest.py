"""Serve and fetch the run manifest: the settings of a run, so that a machine can join with no more than an address.

    outerloop/1/manifest    {} ->   <- {peer, run, content, signature} | {}   ({}: the run has its own training program)

    content      JSON of at most 16 KiB; config/manifest/content.py states and checks its form
    signature    by the key of `peer`, over ["run_manifest", run, content]

The protocol name contains no run, because a newcomer does not know the run yet. The signature lets a third party verify
which peer stated these settings.
"""

from __future__ import annotations

from typing import Any

from outerloop.swarm.access.access_control import MANIFEST
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, anybody
from outerloop.swarm.timeouts import VIEW_S, limit
from outerloop.swarm.validation import MAX_MANIFEST_BYTES, MalformedMessage, fields, quote

PROTOCOL = f"outerloop/1/{MANIFEST}"
CONTEXT = "run_manifest"
ANSWER_BYTES = MAX_MANIFEST_BYTES + 1024
"""Maximum size of an answer: the content, and the other values of the map."""
MAX_RUN = 256


class ManifestService:
    """Serves this peer's run manifest to any peer. `content`: its JSON, or "" if the run has its own program."""

    def __init__(self, transport: Transport, *, run: str, content: str) -> None:
        self._transport = transport
        signatures = transport.trust.signatures
        self._signed = signed(signatures, run=run, content=content.encode()) if content else {}

    async def serve(self) -> None:
        """Start answering requests."""
        await self._transport.serve(PROTOCOL, allowed=anybody, handler=self._answer)

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object(self._signed)
        await stream.ended()


def signed(signatures: Signatures, *, run: str, content: bytes) -> dict[str, Any]:
    """Return a manifest with this peer's signature, as the service sends it."""
    signature = signatures.sign(CONTEXT, run, content)
    return {"peer": signatures.peer_id, "run": run, "content": content, "signature": signature}


async def fetch(transport: Transport, peer_id: str) -> bytes:
    """Fetch the content of a peer's run manifest. Return b"" if the run has its own training program.

    Raises BrokenStream, Unreachable or TimeoutError if the peer does not send a manifest with a valid signature.
    """
    async with limit(VIEW_S), transport.open_stream(peer_id, PROTOCOL) as stream:
        await stream.send_object({})
        answer = await stream.receive_object(at_most=ANSWER_BYTES)
    try:
        return verified_content(answer, transport.trust.signatures, peer_id) if answer else b""
    except MalformedMessage as error:
        raise Unreadable(str(error)) from error


def verified_content(answer: Any, signatures: Signatures, peer_id: str) -> bytes:
    """Return the content of a signed manifest. Raises MalformedMessage unless the peer `peer_id` signed it."""
    found = fields(answer, "a run manifest", ("peer", "run", "content", "signature"))
    if found["peer"] != peer_id:
        raise MalformedMessage(f"the run manifest is signed by {quote(found['peer'])}, not by the peer that sent it")
    run, content = found["run"], found["content"]
    if type(run) is not str or len(run) > MAX_RUN:
        raise MalformedMessage(f"the run id of a run manifest must be a short text; got {quote(run)}")
    if type(content) is not bytes or len(content) > MAX_MANIFEST_BYTES:
        raise MalformedMessage(
            f"the content of a run manifest must be at most {MAX_MANIFEST_BYTES} bytes; got {quote(content)}"
        )
    if not signatures.verify(found["signature"], CONTEXT, run, content, by=peer_id):
        raise MalformedMessage("the signature of the run manifest is not valid")
    return content
