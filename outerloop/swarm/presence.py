"""A peer's presence in a run: its daemon and network thread, its record in the roster, and the members it sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from outerloop.swarm.daemon import DaemonOptions
from outerloop.swarm.directory import Directory
from outerloop.swarm.identity import ensure_identity
from outerloop.swarm.membership import Membership
from outerloop.swarm.peer import Peer
from outerloop.swarm.roster import Record, Roster, peer_name
from outerloop.swarm.settings import Settings
from outerloop.swarm.strangers import Strangers
from outerloop.swarm.timeouts import DHT_S


class Presence:
    """Construction starts the peer; others see it after `appear`, and it sees them after `form`.

    Takes the options of the swarm's exchanges, with their meaning; `remembers` as Membership does.
    """

    def __init__(
        self,
        *,
        run: str,
        peers: int,
        worker: int,
        identity_path: str,
        initial_peers: Sequence[str],
        host: str,
        port: int,
        announce: Sequence[str],
        open_internet: bool,
        allow: Sequence[str],
        fingerprint: str,
        settings: Settings | None,
        tell: Callable[[str], None],
        remembers: Callable[[str], bool] = lambda sitting: False,
    ) -> None:
        self.node = Peer(
            DaemonOptions(
                identity_path=ensure_identity(identity_path),
                host=host,
                port=port,
                announce=tuple(announce),
                initial_peers=tuple(initial_peers),
                open_internet=open_internet,
            ),
            allow=allow,
        )
        self.name = peer_name(worker, self.node.peer_id)
        settings = settings or Settings()
        own = Record(self.name, self.node.addresses, fingerprint, time.time(), settings=settings.packed)
        directory = Directory(self.node, self.node.records, run=run)
        self.roster = Roster(self.node.dht, run=run, own=own, directory=directory)
        joined = [address.rpartition("/p2p/")[2] for address in initial_peers]
        self.strangers = Strangers(self.node, run=run, own=own, settings=settings, joined=joined, tell=tell)
        self.members = Membership(
            self.node, self.roster, run=run, peers=peers, own=own, strangers=self.strangers, remembers=remembers
        )
        self.node.member = lambda peer_id: peer_id in self.members.names

    async def appear(self) -> None:
        """Be seen. Whatever this peer answers to must be served by now."""
        await self.members.serve()
        await self.strangers.serve()
        await self.roster.publish()

    def form(self, *, timeout_s: float) -> None:
        """Wait until all peers are there and see the same members. Raises UserError, telling who is missing."""
        self.node.call(self.members.form(timeout_s=timeout_s), timeout_s=timeout_s + DHT_S)

    def end(self) -> None:
        """Withdraw the record, end the network thread and the daemon."""
        try:
            self.node.call(self.roster.withdraw(), timeout_s=DHT_S)
        finally:
            self.node.close()
