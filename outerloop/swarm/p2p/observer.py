"""A temporary read-only peer. It uses a new key or a known key file, and listens on loopback by default."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
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

P2P = b"\xa5\x03"
"""Code of the protocol p2p in an encoded multiaddr: 421, as a varint."""


class ObserverNode(Node):
    """A node that can also dial a specific address, not only a peer id at its known addresses."""

    async def dial(self, address: str, *, within_s: float = OPEN_S) -> str:
        """Connect to the peer at a full multiaddr, and return its peer id, which libp2p has authenticated.

        Raises Unreachable if the address is malformed, or if there is no connection after `within_s` seconds.
        """
        assert self._p2p is not None
        where, _, peer_id = address.rpartition("/p2p/")
        try:
            async with limit(within_s):
                await self._p2p._client.connect(PeerID.from_base58(peer_id), [encoded(where)])
        except TimeoutError as error:
            raise Unreachable(f"no answer within {within_s:.0f} s") from error
        except (ValueError, P2PDaemonError, OSError, EOFError) as error:  # ValueError: a malformed address
            raise Unreachable(str(error)) from error
        return peer_id

    async def dial_all(self, addresses: Iterable[str], *, within_s: float = OPEN_S) -> dict[str, Unreachable]:
        """Connect to the peers at all of these addresses at the same time.

        Return a mapping from each address at which no peer can be reached to the reason.
        """
        failed: dict[str, Unreachable] = {}

        async def dial(address: str) -> None:
            try:
                await self.dial(address, within_s=within_s)
            except Unreachable as error:
                failed[address] = error

        await asyncio.gather(*map(dial, addresses))
        return failed

    async def answering(self, addresses: Iterable[str], *, within_s: float = OPEN_S) -> list[str]:
        """Connect to the peers at all of these addresses. Return the addresses at which one can be reached."""
        addresses = list(addresses)
        failed = await self.dial_all(addresses, within_s=within_s)
        return [address for address in addresses if address not in failed]


def encoded(address: str) -> Multiaddr:
    """Return an address in the encoding that p2pd reads. Raises ValueError if the address is malformed.

    It differs from hivemind's only in the peer ids in an address, such as that of a relay: hivemind encodes an id as a
    CID, which p2pd refuses, and p2pd reads the multihash alone.
    """
    content = Multiaddr(address).to_bytes()
    for peer_id in re.findall("/p2p/([^/]+)", address):
        as_cid, multihash = Multiaddr(f"/p2p/{peer_id}").to_bytes(), PeerID.from_base58(peer_id).to_bytes()
        content = content.replace(as_cid, P2P + bytes([len(multihash)]) + multihash)
    return Multiaddr(content)


@contextmanager
def visit(
    *,
    initial_peers: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    announce: Sequence[str] = (),
    observer: bool = True,
    identity_path: Path | None = None,
    open_internet: bool = False,
) -> Iterator[ObserverNode]:
    """Run an observer node for the duration of a `with` block. Raises UserError if the node cannot start.

    Args:
        observer: whether the DHT node sends requests but answers none.
        identity_path: file of a key that other peers know. If None, a new key is created, and deleted afterwards.
        open_internet: whether to relay connections for other peers, and to use relays and hole punching.
    """
    folder = SocketFolder()  # if this process is killed, the next peer on this machine removes the folder
    try:
        options = DaemonOptions(
            identity_path=identity_path or ensure_identity(folder.path / "identity.key"),
            host=host,
            port=port,
            announce=announce,
            initial_peers=initial_peers,
            open_internet=open_internet,
            observer=observer,
        )
        visitor = ObserverNode(options)
        try:
            yield visitor
        finally:
            visitor.close()
    finally:
        folder.remove()
