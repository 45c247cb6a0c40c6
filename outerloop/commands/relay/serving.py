"""Run the node of a relay: forward the manifest, and watch who is in the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from outerloop.commands.join.offer import ask_peer
from outerloop.commands.observe import roster_from_dht
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.manifest.manifest_relay import ManifestRelay, read_copy
from outerloop.swarm.manifest.run_manifest import SignedManifest
from outerloop.swarm.membership.known_addresses import addresses_file, peer_of, remember
from outerloop.swarm.p2p.observer import ObserverNode
from outerloop.swarm.timeouts import DHT_S, OPEN_S, ROSTER_REFRESH_S
from outerloop.types import UserError

ALONE_READS = 3
"""Number of consecutive reads of the roster that find no peer, after which the relay starts a new node. The reads are
ROSTER_REFRESH_S seconds apart. A read that times out finds no peer."""


def manifest_of(address: str, identity: Path) -> tuple[SignedManifest, str]:
    """Return the manifest of the peer at `address`, or else the copy on disk, and why it is the copy, or "".

    Raises UserError if the peer sends no manifest with which a machine can join, and there is no copy.
    """
    try:
        signed = ask_peer(address).signed
        assert signed is not None
        return signed, ""
    except UserError as error:
        copy = read_copy(identity.parent, peer_of(address), Signatures.of(identity))
        if copy is None:
            raise
        return copy, str(error)


def serve_until_alone(
    node: ObserverNode,
    manifest: SignedManifest,
    *,
    source: str,
    identity: Path,
    report: Callable[[str], None],
    others_answer: Callable[[], bool],
) -> SignedManifest:
    """Forward the manifest, and report the number of peers in the run whenever this number changes.

    Return the newest manifest once ALONE_READS consecutive reads of the roster have found no peer, although
    `others_answer()` is true. The caller must then join the run again with a new node.
    """
    relay = ManifestRelay(node, manifest, source=source, folder=identity.parent)
    node.call(relay.serve(), timeout_s=DHT_S)
    roster, shown, alone = roster_from_dht(node, manifest.run), -1, 0
    while True:
        records = [record for record, _ in roster()]
        if len(records) != shown:
            shown = len(records)
            report(f"{shown} {'peer' if shown == 1 else 'peers'} in run {manifest.run}")
        remember(addresses_file(identity), records)
        alone = 0 if records else alone + 1
        if alone >= ALONE_READS and others_answer():
            return relay.manifest
        node.call(relay.refresh(), timeout_s=2 * OPEN_S)
        time.sleep(ROSTER_REFRESH_S)
