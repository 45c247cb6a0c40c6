"""Measure the overhead of a gather round beyond moving its bytes: N peers on loopback, each with its own daemon.

    .venv/bin/python scripts/bench_gather.py [--peers 8] [--megabytes 5] [--rounds 20] [--json FILE]

All processes read the same clock. The transfer of a round ends when every peer has stored every payload. The commit
phase is the time from the end of the transfer until a peer can use the outcome: the peer first learns the commit, then
copies the payloads for the trainer. Payloads are random bytes, new in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from benchmark_processes import Peers
from result_rows import show

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.gather.committed_rounds import CommittedRounds
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.types import Round

Row = dict[str, float]
WAIT_S = 300.0


def note_times() -> tuple[dict[int, float], dict[int, float]]:
    """Patch the swarm to record times. Return two maps that are filled while rounds run.

    The first maps a round to the time at which this peer stored the round's last payload, the second to the time at
    which this peer learned the round's commit.
    """
    held, decided, holds, add = {}, {}, RoundContext.report_stored, CommittedRounds.add

    def noted(self: RoundContext, number: int, participant: Any) -> None:
        held[number] = time.monotonic()
        holds(self, number, participant)

    def known(self: CommittedRounds, commit: Commit) -> None:
        decided[commit.number] = time.monotonic()
        add(self, commit)

    RoundContext.report_stored, CommittedRounds.add = noted, known  # type: ignore[method-assign]
    return held, decided


def live(rank: int, args: argparse.Namespace, folder: Path, first: list[str], messages: Queue) -> None:
    """Run one peer. Put its address, then one row per round, into `messages`."""
    held, decided = note_times()
    peer = SwarmGather(
        run="bench",
        peers=args.peers,
        worker=rank,
        identity_path=str(folder / f"{rank}.key"),
        initial_peers=first,
        quorum="all",
    )
    messages.put(peer.address)
    peer.join()
    for number in range(args.rounds):
        payload = os.urandom(int(args.megabytes * 1e6))
        peer.all_gather(b"", number, WAIT_S)
        launched = time.monotonic()
        peer.start(payload, Round(number)).wait(WAIT_S)
        landed = time.monotonic()
        messages.put(
            {
                "round": number,
                "launched": launched,
                "held": held[number],
                "decided": decided[number],
                "landed": landed,
            }
        )
    peer.all_gather(b"", args.rounds, WAIT_S)
    peer.close()


def gathered(args: argparse.Namespace) -> list[Row]:
    """Run all peers and return their rows."""
    first: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Peers(wait_s=WAIT_S) as peers:
        for rank in range(args.peers):
            peers.start(live, rank, args, Path(folder), first)
            first = first or peers.next_message()
        expected = args.peers - 1 + args.peers * args.rounds  # the other peers' addresses, and all rows
        rows = [row for _ in range(expected) if isinstance(row := peers.next_message(), dict)]
        for process in peers.processes:
            process.join(WAIT_S)  # a peer ends after the last all-gather
    return rows


def phases(rows: Iterable[Row]) -> Row:
    """Return the median seconds of the transfer and of the commit phase, over all rounds and peers.

    Also return the 95th percentile and the maximum of the commit phase. The first round is a warm-up and is left out.
    """
    by_round: dict[float, list[Row]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row)
    moving, deciding, knowing = [], [], []
    for number, peers in by_round.items():
        if number:
            moved = max(row["held"] for row in peers)
            moving.append(moved - min(row["launched"] for row in peers))
            deciding += [row["landed"] - moved for row in peers]
            knowing += [row["decided"] - moved for row in peers]
    return {
        "move_s": statistics.median(moving),
        "known_s": statistics.median(knowing),
        "commit_s": statistics.median(deciding),
        "commit_p95_s": statistics.quantiles(deciding, n=20)[-1],
        "commit_longest_s": max(deciding),
    }


def parsed() -> argparse.Namespace:
    """Parse the command line. Refuse fewer than two measurements, of which there are no quantiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.peers * (args.rounds - 1) < 2:
        parser.error(f"--rounds {args.rounds} of --peers {args.peers}: choose more, because the first does not count")
    return args


def main() -> None:
    """Measure gather rounds, and print one row of results."""
    args = parsed()
    row = {"peers": args.peers, "megabytes": args.megabytes, "rounds": args.rounds} | phases(gathered(args))
    show(row)
    if args.json:
        args.json.write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    main()
