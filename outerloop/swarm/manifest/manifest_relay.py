"""Forward the run manifest of another peer, and keep a copy on disk for the time when that peer does not answer."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import msgpack

from outerloop.state.checkpoint import write_atomically
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.manifest.run_manifest import ManifestService, SignedManifest, fetch, forwarded, verified
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.swarm.validation import MalformedMessage, unpacked

logger = logging.getLogger(__name__)


class ManifestRelay:
    """Serves a manifest that the peer `source` (id) sent. The copy on disk is in `folder`."""

    def __init__(self, transport: Transport, manifest: SignedManifest, *, source: str, folder: Path) -> None:
        self._transport, self._source, self._folder = transport, source, folder
        self._service = ManifestService(transport, {})
        self._forward(manifest)

    async def serve(self) -> None:
        """Start answering requests."""
        await self._service.serve()

    async def refresh(self) -> None:
        """Ask the source again, because a run that is extended has a new manifest. Keep the old one if that fails."""
        try:
            manifest = await fetch(self._transport, self._source)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s sent no manifest: %s", self._source, error)
            return
        if manifest is not None and manifest != self.manifest and manifest.run == self.manifest.run:
            self._forward(manifest)

    def _forward(self, manifest: SignedManifest) -> None:
        self.manifest = manifest
        self._service.answer = forwarded(self._transport.trust.signatures, manifest)
        write_atomically(_copy_file(self._folder, self._source), msgpack.packb(asdict(manifest)))


def read_copy(folder: Path, source: str, signatures: Signatures) -> SignedManifest | None:
    """Return the manifest that the peer `source` sent last, or None if `folder` has no valid copy of it."""
    try:
        answer = unpacked(_copy_file(folder, source).read_bytes(), "the copy of a run manifest")
        return verified(answer, signatures, answer["peer"])
    except (OSError, MalformedMessage, TypeError, KeyError):
        return None


def _copy_file(folder: Path, source: str) -> Path:
    return folder / f"{source}.manifest"
