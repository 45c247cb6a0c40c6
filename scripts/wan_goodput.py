"""Transfer one payload between two hosts of scripts/wan.sh as rounds do, with bulk.py over p2pd.

wan_goodput.py give HOST_IP BYTES       print a line of JSON, and serve random bytes until standard input ends
wan_goodput.py take HOST_IP WHERE       download the bytes (WHERE is that line), and print the seconds that this took
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from namespaces import Network

from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.p2p.daemon import DaemonOptions
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import ContentStore

LIMIT_S = 600.0


@contextmanager
def peer_at(host: str, initial_peers: list[str]) -> Iterator[Node]:
    """Run a peer that listens on this address."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        ensure_identity(key)
        peer = Node(
            DaemonOptions(
                identity_path=key, host=host, port=0, announce=[], initial_peers=initial_peers, open_internet=False
            )
        )
        try:
            yield peer
        finally:
            peer.close()


def give(host: str, size: int) -> None:
    """Print where random bytes can be downloaded, as a line of JSON, and serve them until standard input ends."""
    with peer_at(host, []) as peer:
        store = ContentStore()
        sha = store.put(os.urandom(size))
        bulk = Bulk(peer, store, run="goodput", allowed=lambda peer_id: True)
        peer.call(bulk.serve(), timeout_s=10)
        where = {"address": peer.addresses[0], "peer": peer.peer_id, "sha": sha.hex(), "size": size}
        print(json.dumps(where), flush=True)
        sys.stdin.read()


def take(host: str, where: dict[str, Any]) -> None:
    """Download the payload, and print the seconds of the transfer, not counting connection setup."""
    with peer_at(host, [where["address"]]) as peer:
        bulk = Bulk(peer, ContentStore(), run="goodput", allowed=lambda peer_id: False)
        began_s = time.monotonic()
        get = bulk.get(
            bytes.fromhex(where["sha"]), where["size"], [where["peer"]], at_most=where["size"], timeout_s=LIMIT_S
        )
        peer.call(get, timeout_s=LIMIT_S)
        print(time.monotonic() - began_s, flush=True)


def measure(size: int, network: Network) -> float:
    """Return the seconds of a transfer of `size` bytes from host 0 to host 1."""
    script = [sys.executable, str(Path(__file__).absolute())]
    giver = subprocess.Popen(
        network.inside(0, [*script, "give", network.address(0), str(size)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with giver:
        assert giver.stdin and giver.stdout
        taker = network.inside(1, [*script, "take", network.address(1), giver.stdout.readline()])
        took_s = float(subprocess.check_output(taker, text=True, timeout=2 * LIMIT_S))
        giver.stdin.close()
    return took_s


def main() -> None:
    """Run one side of the transfer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sides = parser.add_subparsers(dest="side", required=True)
    for side, what in (("give", "size"), ("take", "where")):
        one = sides.add_parser(side)
        one.add_argument("host")
        one.add_argument(what, type=json.loads)
    args = parser.parse_args()
    if args.side == "give":
        give(args.host, args.size)
    else:
        take(args.host, args.where)


if __name__ == "__main__":
    main()
