"""Measure how fast a newcomer downloads the state of a run from donors that keep training; each peer is a process.

    .venv/bin/python scripts/bench_join.py [--donors 3] [--megabytes 400] [--kill] [--json FILE]
    sudo .venv/bin/python scripts/bench_join.py --rate 1000mbit ...

By default all processes use loopback, where the CPU is the bottleneck. With --rate, each process runs on its own host
(scripts/wan.sh), which sends and receives at most at that rate.

The state is random bytes; 400 MB are the slow weights of 100M parameters. With --kill one donor is killed when half of
the state has arrived.

    plain_s          time to send the same bytes over one stream between the same processes, measured before the
                     newcomer asks for the state
    state_s          time from the newcomer's first request until it holds the state, including the wait for the commit
    transfer_s       the part of state_s after the first chunk arrived; all of state_s if that part is below LOOK_S
    of_plain         plain_s / transfer_s
    counted_s        time from the arrival of the state until the first round that includes the newcomer has landed
    again_megabytes  megabytes received more than once, not counting the manifest
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import nullcontext
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
from benchmark_processes import Peers
from namespaces import network, ready_or_exit
from result_rows import show

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, Stream
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.state_transfer.manifest import Manifest, max_bytes
from outerloop.types import Round, StateTransferRequired

WAIT_S = 600.0
INNER_S = 1.0
LOOK_S = 0.02
PLAIN = "bench/plain"
Row = dict[str, float]


def peer_of(rank: int, args: argparse.Namespace, folder: Path, first: list[str]) -> SwarmGather:
    """Return the peer `rank` of the run. With --rate, move this thread to the peer's own host first."""
    host = "127.0.0.1"
    if args.network:
        args.network.enter(rank)
        host = args.network.address(rank)
    path = str(folder / f"{rank}.key")
    return SwarmGather(run="bench", peers=args.donors, worker=rank, identity_path=path, initial_peers=first, host=host)


def donate(rank: int, args: argparse.Namespace, folder: Path, first: list[str], messages: Queue) -> None:
    """Run a donor: a peer that sends a small payload about every second, and serves its state to newcomers."""
    peer = peer_of(rank, args, folder, first)
    state = np.random.default_rng(0).bytes(int(args.megabytes * 1e6))

    async def plain(remote: str, request: Request, stream: Stream) -> None:
        for start in range(0, len(state), PIECE_BYTES):
            await stream.write(memoryview(state)[start : start + PIECE_BYTES])
        await stream.write(END_MARK)
        await stream.ended()

    peer.node.call(peer.node.serve(PLAIN, allowed=lambda peer_id: True, handler=plain), timeout_s=WAIT_S)
    messages.put(peer.address)
    peer.join()
    for number in range(100000):
        time.sleep(INNER_S)
        peer.start(os.urandom(1000), Round(number)).wait(WAIT_S)
        peer.landed(Round(number), lambda: state)


def stream_s(peer: SwarmGather, donor: str, size_bytes: int) -> float:
    """Return the seconds of a transfer over one stream. The bytes are neither hashed nor stored."""

    async def fetch() -> None:
        async with peer.node.open_stream(donor, PLAIN) as stream:
            await stream.send_object({})
            async for _ in stream.pieces(size_bytes):
                pass

    began = time.monotonic()
    peer.node.call(fetch(), timeout_s=WAIT_S)
    return time.monotonic() - began


def join(args: argparse.Namespace, folder: Path, first: list[str], messages: Queue) -> None:
    """Run the newcomer. Put the number of received bytes into `messages` during the download, then the results."""
    peer = peer_of(args.donors, args, folder, first)
    peer.join()
    row: Row = {"plain_s": stream_s(peer, next(iter(peer.members.names)), int(args.megabytes * 1e6))}
    try:
        peer.decided(Round(0))
    except StateTransferRequired as others:
        began, done = time.monotonic(), threading.Event()
        moving: list[float] = []
        manifest = max_bytes(int(args.megabytes * 1e6))
        threading.Thread(target=report_bytes, args=(peer, messages, manifest, done, moving), daemon=True).start()
        landed, content = others.state(1 << 32)
        done.set()
        row["state_s"] = time.monotonic() - began
        row["transfer_s"] = time.monotonic() - next(iter(moving), began)
    once = len(content) + len(Manifest.of(content, number=landed.number, head=bytes(32)).to_bytes())
    row["again_megabytes"] = (peer.state_transfer.downloads.bytes_received - once) / 1e6
    row["counted_s"] = until_counted(peer, landed.number + 1)
    messages.put(row)
    peer.abort()


def report_bytes(peer: SwarmGather, messages: Queue, manifest: int, done: threading.Event, moving: list[float]) -> None:
    """Put the number of received bytes into `messages` repeatedly, until `done` is set.

    When it first exceeds `manifest`, the maximum size of the manifest, append the time to `moving`.
    """
    while not done.wait(LOOK_S):
        received = peer.state_transfer.downloads.bytes_received
        messages.put({"received": received})
        if received > manifest and not moving:
            moving.append(time.monotonic())


def until_counted(peer: SwarmGather, number: int) -> float:
    """Take part in rounds, from `number` on, until one includes this peer. Return the seconds that this took."""
    began = time.monotonic()
    while True:
        names = [one.peer for one in peer.start(os.urandom(1000), Round(number)).wait(WAIT_S)]
        if peer.peer in names:
            return time.monotonic() - began
        number += 1


def measured(args: argparse.Namespace) -> Row:
    """Run all processes and return the newcomer's results."""
    first: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Peers(wait_s=WAIT_S) as peers:
        for rank in range(args.donors):
            peers.start(donate, rank, args, Path(folder), first)
            address = peers.next_message()
            first = first or address
        peers.start(join, args, Path(folder), first)
        victim = peers.processes[1] if args.kill else None
        while "state_s" not in (row := peers.next_message(but=victim)):
            if victim and row["received"] > args.megabytes * 1e6 / 2:
                victim.kill()
        if victim and victim.is_alive():
            raise RuntimeError("the state arrived before a donor could be killed: increase --megabytes")
        return row


def main() -> None:
    """Measure one join, and print a row of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--donors", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=400.0)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--rate", help="rate of each host's link, for example 1000mbit; default: loopback")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    settings = {"donors": args.donors, "megabytes": args.megabytes, "killed": args.kill, "rate": args.rate}
    if args.rate:
        ready_or_exit()
    with network(args.donors + 1, "--rate", args.rate) if args.rate else nullcontext() as args.network:
        row = settings | measured(args)
    row["of_plain"] = row["plain_s"] / row["transfer_s"]
    show(row)
    if args.json:
        args.json.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    main()
