"""Serve a corpus: its index by service `corpus`, and its shards by service `bulk` of RUN/corpus.

    outerloop/1/RUN/corpus    {} ->   <- one frame: the index

A machine downloads the corpus before it is a member of the run. Requests for the index are public requests, which
admission.py limits in number and in bytes. Requests for shards have the limits of a newcomer's requests: they are
limited in number, and the shards are sent at a limited upload rate.
"""

from __future__ import annotations

from outerloop.swarm.access.access_control import CORPUS
from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.p2p.transport import Request, RpcService, Transport
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.uploads import RateLimiter

UPLOAD_SHARE = 0.5
"""Share of exchange.max_mbit that shards may use, so that payloads never wait long for them."""


class CorpusService(RpcService):
    """Serves the corpus in a folder to any peer that the allow-list admits.

    `limiter`: rate limit of all uploads of this peer, of which shards use at most UPLOAD_SHARE. `bulk` uploads the
    shards.
    """

    service = CORPUS

    def __init__(self, transport: Transport, folder: CorpusFolder, *, run: str, limiter: RateLimiter) -> None:
        super().__init__(transport, run=run)
        self._index = folder.index.to_bytes()
        self.bulk = Bulk(transport, folder, run=shards_of(run), allowed=as_newcomer, limiter=limiter.part(UPLOAD_SHARE))

    async def serve(self) -> None:
        """Start answering requests for the index and the shards."""
        await super().serve()
        await self.bulk.serve()

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send(self._index)
        await stream.ended()


def as_newcomer(peer_id: str) -> bool:
    """Admit every peer, with the limits of a newcomer (`transport.anybody` would apply those of public requests)."""
    return True


def shards_of(run: str) -> str:
    """Return the run name to use for bulk transfers (bulk.py) of shards."""
    return f"{run}/corpus"
