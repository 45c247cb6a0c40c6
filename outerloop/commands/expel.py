"""`outerloop expel`: remove an invited peer from a run with an allow-list, or let this machine refuse a listed peer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.listed_workers import ListedRun, ListedWorker, listed_run, peers_of
from outerloop.swarm.access.admissions import Removal
from outerloop.swarm.access.invited_peers import InvitedPeers
from outerloop.swarm.access.register_files import write_waiting
from outerloop.types import UserError

DESCRIPTION = """\
Removes a peer from a run with an allow-list. An invited peer is removed on all machines: this machine signs the removal
and sends it to the others. A listed peer is refused by this machine only; to remove it from the run, take its id off
exchange.allow on all machines. Run this command on a machine whose id is in exchange.allow. The run need not be
active."""

EXAMPLES = """\
examples
  outerloop expel runs/mine 12D3Koo...                     remove the peer with this id
  outerloop expel runs/mine lab-2                          remove the invited peer with this name
  outerloop invite runs/mine --list                        the invited peers, with their ids and names
  outerloop expelled runs/mine --lift 12D3Koo...           let this peer take part again

Rounds that are already decided stay decided. From now on the peer's payloads are not counted, and its connections are
refused. It leaves the roster like a peer that has crashed."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("expel", example="outerloop expel runs/mine ID", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's run_dir on this machine")
    out.add_argument("peer", metavar="ID", help="id of the peer, or the name in its invite")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0. Raises UserError if this machine cannot remove the peer."""
    options = parser().parse_args(arguments)
    run = listed_run(options.run_dir, command="expel")
    peer = peer_of(run, without_rank(options.peer))
    removals = [sign_removal(run, worker, peer, lifted=False) for worker in run.workers]
    where = "by this machine only" if removals[0].peer in run.allow else "on all machines"
    print(f"{peer} is removed {where}: within 10 s if the run is active, otherwise when the run starts here again")
    return 0


def peer_of(run: ListedRun, given: str) -> str:
    """Return the id of the peer with this id or name.

    Raises UserError if no peer or several peers have it, or if the peer is a worker of this machine.
    """
    found = ids_of(peers_of(run.workers[0]), given)
    if given in {worker.signatures.peer_id for worker in run.workers}:
        raise UserError(f"expel: {given} is a worker of this machine: stop the run here instead")
    if len(found) > 1:
        raise UserError(f"expel: {len(found)} invited peers have the name {given}: pass the id of one")
    if not found and given not in run.allow:
        raise UserError(f"expel: no peer {given} was invited or listed: run outerloop invite RUN_DIR --list for ids")
    return found[0] if found else given


def without_rank(given: str) -> str:
    """Return the peer id in a roster name such as 003-12D3Koo...; return an id, or a name like lab-2, unchanged."""
    return given.rpartition("-")[2] if "-12D3Koo" in given else given


def ids_of(peers: InvitedPeers, given: str) -> list[str]:
    """Return the ids of the invited peers with this id, or with this name in their invite."""
    return sorted({one.peer for one in peers.used if given in (one.peer, one.invite.name)})


def sign_removal(run: ListedRun, worker: ListedWorker, peer: str, *, lifted: bool) -> Removal:
    """Sign a removal as a worker of the run, and write it where the worker's process reads it. Return the removal.

    `lifted`: the statement lifts an earlier removal instead.
    """
    earlier = peers_of(worker).removals.get(peer)
    at_s = max(int(time.time()), earlier.at_s + 1 if earlier else 0)  # later than `earlier`, even if the clock is not
    removal = Removal.new(worker.signatures, run=run.run, peer=peer, lifted=lifted, at_s=at_s)
    asyncio.run(write_waiting(worker.access, removal))
    return removal
