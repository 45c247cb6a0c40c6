"""A read-only peer: throwaway identity (or the onlooker's key), loopback port, cleans up after itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.utils.multiaddr import Multiaddr

from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.p2p.daemon import DaemonOptions
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.p2p.socket_dir import SocketFolder
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S, limit


class ObserverNode(Node):
    """A peer that can dial one address instead of whatever leads to a peer id."""

    async def dial(self, address: str) -> str:
        """The id of the peer at this full address, proven. Raises Unreachable."""
        assert self._p2p is not None
        where, _, peer_id = address.rpartition("/p2p/")
        try:
            async with limit(OPEN_S):
                await self._p2p._client.connect(PeerID.from_base58(peer_id), [Multiaddr(where)])
        except TimeoutError as error:
            raise Unreachable(f"no answer in {OPEN_S:.0f} s") from error
        except (P2PDaemonError, OSError) as error:
            raise Unreachable(str(error)) from error
        return peer_id


@contextmanager
def visit(
    *,
    initial_peers: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    announce: Sequence[str] = (),
    observer: bool = True,
    identity_path: Path | None = None,
) -> Iterator[ObserverNode]:
    """A visitor for the length of a block. `observer`: it asks the DHT and is not asked. Raises UserError.

    `identity_path`: of a key that others know; else it is a new one that is forgotten.
    """
    folder = SocketFolder()  # the next peer removes it should this process be killed
    try:
        options = DaemonOptions(
            identity_path=identity_path or ensure_identity(folder.path / "identity.key"),
            host=host,
            port=port,
            announce=announce,
            initial_peers=initial_peers,
            open_internet=False,
            observer=observer,
        )
        visitor = ObserverNode(options)
        try:
            yield visitor
        finally:
            visitor.close()
    finally:
        folder.remove()
