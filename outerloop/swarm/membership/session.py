"""A peer's presence in a run: daemon, network thread, roster record, and known members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from outerloop.swarm.access.access_control import how_to_return
from outerloop.swarm.access.hard_state_file import ensure_votable_identity
from outerloop.swarm.access.identity import Life, ensure_identity
from outerloop.swarm.access.public_names import PublicName, normalized
from outerloop.swarm.access.register_files import folder_of
from outerloop.swarm.invites.access_updates import AccessUpdates
from outerloop.swarm.manifest.run_manifest import ManifestService, signed
from outerloop.swarm.membership.formation import Formation
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.membership.known_addresses import addresses_file, keep_addresses, peer_of
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.mismatched_peers import MismatchedPeers
from outerloop.swarm.membership.roster import Record, Roster, peer_name
from outerloop.swarm.membership.run_settings import RunSettings
from outerloop.swarm.p2p.daemon import DaemonOptions
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.storage import Folder
from outerloop.swarm.timeouts import DHT_S, VIEW_S
from outerloop.types import UserError

T = TypeVar("T")
INTRODUCTIONS_S = 4 * VIEW_S
"""Time limit for the two introductions of this process: to the peers present, and to the members once they are known.
Each takes at most half of it."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """Options of one peer of a run, for every kind of exchange.

    run               run id; peers with different run ids ignore each other
    peers             number of peers, including this one
    worker            index of this worker on its machine; peers are ranked by this index first
    identity_path     file of this peer's key; created if absent. To rejoin the run later, keep the file and the folder
                      next to it
    initial_peers     addresses of running peers; one is enough. Empty: this peer is the first
    host, port        address to listen on; port 0 selects a free port
    announce          addresses at which other peers reach this peer, if they differ from `host` and `port`
    open_internet     enable relays, hole punching and port mapping, for peers behind a NAT
    allow             allow-list of peer ids; other peers get no answer. Empty: all peers may take part
    invites           with an allow-list: whether peers that a listed peer invited may take part, too
    newcomer          this peer has no checkpoint of the run, and does not start it if it would be the only member
    join_timeout_s    how long to wait for the other peers at the start
    fingerprint       hash of all settings that must be equal on all peers; peers with another hash are left out
    settings          the settings that `fingerprint` covers, so that messages can name a difference
    manifest          the settings of the run, for machines that run `outerloop join`; None: the run has its own
                      training program, so machines cannot join by this command
    corpus            folder of the training data that this peer serves to newcomers; None: this peer serves no data
    public_name       name of this machine that others see, next to its peer id (public_names.py); empty: none
    max_blob_bytes    maximum size of a payload that this peer sends or accepts; None: 1 GiB
    max_mbit          upload rate limit for payloads, state and data, in Mbit/s; None: no limit
    on_status         called with each one-line status message, e.g. what this peer waits for; None: log the line
    """

    run: str
    peers: int
    worker: int = 0
    identity_path: str
    initial_peers: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 0
    announce: Sequence[str] = ()
    open_internet: bool = False
    allow: Sequence[str] = ()
    invites: bool = False
    newcomer: bool = False
    join_timeout_s: float = 120.0
    fingerprint: str = ""
    settings: RunSettings | None = None
    manifest: str | None = None
    corpus: str | None = None
    public_name: str = ""
    max_blob_bytes: int | None = None
    max_mbit: float | None = None
    on_status: Callable[[str], None] | None = None


class PeerSession:
    """A running peer. The constructor starts it. Other peers see it after `appear`; it knows the members after `form`.

    `on_status` is called with each one-line message for the user. `remembers` is passed to Formation.
    """

    def __init__(
        self,
        options: NodeOptions,
        *,
        on_status: Callable[[str], None],
        remembers: Callable[[str], bool] | None = None,
    ) -> None:
        run, allow, title = options.run, options.allow, normalized(str(options.public_name or ""))
        path = ensure_votable_identity(
            ensure_identity(options.identity_path), Folder, listed=bool(allow), on_status=on_status
        )
        life = Life.begin(path)  # must precede all network traffic under this peer's name
        self.node = Node(
            DaemonOptions(
                identity_path=path,
                host=options.host,
                port=options.port,
                announce=tuple(options.announce),
                initial_peers=tuple(options.initial_peers),
                open_internet=options.open_internet,
            ),
            allow=allow,
        )
        self.name = peer_name(options.worker, self.node.peer_id)
        content = (options.manifest or "").encode()
        self._manifest = ManifestService(self.node, signed(self.node.trust.signatures, run=str(run), content=content))
        self.incarnations = Incarnations(self.node, run=run, life=life, on_status=on_status)
        self._access = self._access_updates(folder_of(path), str(run), options.invites) if allow else None
        self._join_timeout_s, self._addresses_file = options.join_timeout_s, addresses_file(path)
        settings = options.settings or RunSettings()
        own = Record(
            self.name,
            self.node.addresses,
            options.fingerprint,
            time.time(),
            settings=settings.packed,
            incarnation=self.incarnations.own,
            public_name=PublicName.signed(
                self.node.trust.signatures,
                run=str(run),
                text=title,
                time_s=int(time.time()),
            ).to_bytes(),
        )
        directory = ListedRoster(self.node, self.node.records, run=run)
        self.roster = Roster(self.node.dht, run=run, own=own, directory=directory, twin=self.incarnations.seen)
        joined = [peer_of(address) for address in options.initial_peers]
        self.mismatched = MismatchedPeers(
            self.node, run=run, own=own, settings=settings, joined=joined, on_status=on_status
        )
        self.members = Formation(
            self.node,
            self.roster,
            run=run,
            peers=options.peers,
            own=own,
            mismatched=self.mismatched,
            newcomer=options.newcomer,
            remembers=remembers,
        )
        self.node.member = lambda peer_id: peer_id in self.members.names

    def _access_updates(self, folder: Path, run: str, invites: bool) -> AccessUpdates:
        return AccessUpdates(self.node, Folder(folder), run=run, invites=invites, on_removed=self._stop)

    def _stop(self, why: str) -> None:
        self.incarnations.stop(self._no_longer_admitted(why))

    def _no_longer_admitted(self, why: str) -> UserError:
        own = self.node.peer_id
        if self.node.trust.allow.exclusion(own):
            return UserError(f"this peer {why}: {how_to_return(own)}")
        return UserError(
            f"this peer {why}: to take part again, ask the operator of a listed peer to admit it, and then run"
            " outerloop join ADDRESS --invite TOKEN on this machine again"
        )

    async def while_admitted(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` and return its result.

        Raises UserError if another process uses this peer's identity, if this peer was removed, or if it was invited
        for a limited number of rounds, which are over.
        """
        if why := self.node.trust.allow.why_not(self.node.peer_id):
            work.close()
            raise self._no_longer_admitted(why)
        return await self.incarnations.unless_stopped(work)

    async def appear(self) -> None:
        """Start the membership services, and publish this peer's roster record.

        The caller must start all other services of this peer first.
        """
        if self._access is not None:
            await self._access.serve(self.node.addresses)
        await self.members.serve()
        await self.mismatched.serve()
        await self.incarnations.serve()
        await self._manifest.serve()
        await self.roster.publish()

    def form(self) -> None:
        """Wait until the run has formed, i.e. until the peers agree on its members.

        Raises UserError if that takes longer than `join_timeout_s` (the message names the peers present), if this
        peer's own settings are probably wrong, if more than half of the peers reject it, or if another machine uses its
        key.
        """
        forming = self.incarnations.unless_stopped(self._form(self._join_timeout_s))
        self.node.call(forming, timeout_s=self._join_timeout_s + DHT_S + INTRODUCTIONS_S)

    async def _form(self, timeout_s: float) -> None:
        present = sorted(await self.roster.read(), key=lambda record: record.joined)
        await self.incarnations.introduce([record.peer_id for record in present])
        await self.members.form(timeout_s=timeout_s)
        await self.incarnations.introduce(self.members.names)
        self._introducing = asyncio.create_task(self.incarnations.keep_introducing(lambda: self.members.names))
        self._remembering = asyncio.create_task(
            keep_addresses(self._addresses_file, self._others, is_member=lambda peer_id: self.node.member(peer_id))
        )

    async def _others(self) -> list[Record]:
        """Return the records of the other peers of the run."""
        known = self.members.known
        return [record for record in await self.roster.read() if record.peer_id in known and record.name != self.name]

    def end(self) -> None:
        """Withdraw this peer's roster record. Then stop the network thread and the daemon."""
        try:
            self.node.call(self.roster.withdraw(), timeout_s=DHT_S)
        finally:
            self.node.close()
