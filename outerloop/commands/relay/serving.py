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
"""Number of roster reads in a row, ROSTER_REFRESH_S apart, that must find no peer before the node joins again. A read
that times out finds none."""


def manifest_of(address: str, identity: Path) -> tuple[SignedManifest, str]:
    """Return the manifest of the run of the peer at `address`, and "" or why it is the copy on disk.

    Raises UserError if that peer sends no manifest with which a machine can join, and there is no copy.
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
    """Forward the manifest, and report the number of peers whenever it changes.

    Return the newest manifest once ALONE_READS roster reads in a row have found no peer, although `others_answer`: then
    the node has to join again.
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
