"""A peer's presence in a run: daemon, network thread, roster record, and known members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from outerloop.swarm.access.hard_state_file import fit_to_vote
from outerloop.swarm.access.identity import Life, ensure_identity
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster, peer_name
from outerloop.swarm.membership.run_settings import RunSettings
from outerloop.swarm.p2p.daemon import DaemonOptions
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.storage import Folder
from outerloop.swarm.timeouts import DHT_S, VIEW_S

INTRODUCTIONS_S = 4 * VIEW_S
"""Time to introduce this process to the peers present, and to all members once the swarm has formed."""


class PeerSession:
    """A running peer. The constructor starts it. Others see it after `appear`; it knows the members after `form`.

    Takes the options of the swarm's exchanges, with the same meaning; `remembers` is that of Formation.
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
        settings: RunSettings | None,
        tell: Callable[[str], None],
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        path = fit_to_vote(ensure_identity(identity_path), Folder, listed=bool(allow), tell=tell)
        life = Life.begin(path)  # before anything is sent in this peer's name
        self.node = Node(
            DaemonOptions(
                identity_path=path,
                host=host,
                port=port,
                announce=tuple(announce),
                initial_peers=tuple(initial_peers),
                open_internet=open_internet,
            ),
            allow=allow,
        )
        self.name = peer_name(worker, self.node.peer_id)
        self.incarnations = Incarnations(self.node, run=run, life=life, tell=tell)
        settings = settings or RunSettings()
        own = Record(
            self.name,
            self.node.addresses,
            fingerprint,
            time.time(),
            settings=settings.packed,
            incarnation=self.incarnations.own,
        )
        directory = ListedRoster(self.node, self.node.records, run=run)
        self.roster = Roster(self.node.dht, run=run, own=own, directory=directory, twin=self.incarnations.seen)
        joined = [address.rpartition("/p2p/")[2] for address in initial_peers]
        self.mismatched = MismatchedPeers(self.node, run=run, own=own, settings=settings, joined=joined, tell=tell)
        self.members = Formation(
            self.node, self.roster, run=run, peers=peers, own=own, mismatched=self.mismatched, remembers=remembers
        )
        self.node.member = lambda peer_id: peer_id in self.members.names

    async def appear(self) -> None:
        """Publish this peer's record. All other protocols that it answers must be served before."""
        await self.members.serve()
        await self.mismatched.serve()
        await self.incarnations.serve()
        await self.roster.publish()

    def form(self, *, timeout_s: float) -> None:
        """Wait until all peers are present and see the same members.

        Raises UserError if they do not appear in time, naming those that are missing; if this peer's own settings are
        the wrong ones; if all other peers reject it; or if another machine uses its identity.
        """
        forming = self.incarnations.unless_stopped(self._form(timeout_s))
        self.node.call(forming, timeout_s=timeout_s + DHT_S + INTRODUCTIONS_S)

    async def _form(self, timeout_s: float) -> None:
        there = sorted(await self.roster.read(), key=lambda record: record.joined)
        await self.incarnations.introduce([record.peer_id for record in there])
        await self.members.form(timeout_s=timeout_s)
        await self.incarnations.introduce(self.members.names)
        self._introducing = asyncio.create_task(self.incarnations.keep_introducing(lambda: self.members.names))

    def end(self) -> None:
        """Withdraw the roster record, and stop the network thread and the daemon."""
        try:
            self.node.call(self.roster.withdraw(), timeout_s=DHT_S)
        finally:
            self.node.close()
