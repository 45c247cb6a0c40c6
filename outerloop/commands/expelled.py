"""`outerloop expelled`: list the peers that the workers of a run directory have expelled, and lift expulsions.

Expulsions are permanent until they are lifted with this command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.config.run_directory import lock_directory, unlock
from outerloop.swarm.accountability.expulsion import read_register, write_register
from outerloop.swarm.storage import Folder
from outerloop.types import UserError

DESCRIPTION = """\
Lists the peers that the workers of a run directory have expelled: what each did, in which round, and when this machine
detected it. The workers of this machine refuse all connections of an expelled peer, even after a restart, until you
lift the expulsion."""

EXAMPLES = """\
examples
  outerloop expelled runs/mine                              list expelled peers, one per line
  outerloop expelled runs/mine --lift 12D3Koo...            let the peer with this id take part again

A peer is expelled when two messages with its signature contradict each other. Possible causes: modified software, the
same key on two machines, or a disk restored from an older backup. A peer whose weights differ from the others' is not
expelled, because a memory fault can cause this on an honest machine. Such a peer loads the others' state instead.
Lifting an expulsion means trusting the peer again. Stop the run on this machine first, and lift the expulsion on every
machine: each machine keeps refusing the peer until you have lifted the expulsion there."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("expelled", example="outerloop expelled runs/mine", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("run_dir", type=Path, metavar="DIR", help="the run's run_dir on this machine")
    out.add_argument("--lift", action="append", default=[], metavar="ID", help="a peer id or name; repeatable")
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0.

    Raises UserError if an option is invalid, no swarm workers are found, or an expulsion cannot be lifted.
    """
    options = parser().parse_args(arguments)
    folders = [Folder(path) for path in sorted(options.run_dir.glob("workers/*/identity.rounds"))]
    if not folders:
        raise UserError(f"expelled: no swarm workers found in {options.run_dir}: pass the run_dir of a swarm run")
    for peer in options.lift:
        lift(options.run_dir, folders, peer)
    expelled = {peer: evidence for folder in folders for peer, evidence in read_register(folder).expelled.items()}
    print("\n".join(evidence.line() for _, evidence in sorted(expelled.items())) or "no peer is expelled")
    return 0


def lift(run_dir: Path, folders: Sequence[Folder], peer: str) -> None:
    """Remove a peer, given by id or name, from every worker's register of expelled peers.

    Raises UserError if the run is active on this machine, or if no worker has expelled the peer.
    """
    peer_id = peer.rpartition("-")[2]
    try:
        lock = lock_directory(run_dir)
    except UserError as error:
        raise UserError(
            f"expelled: the run in {run_dir} is active: stop it, lift the expulsion, and restart the run"
        ) from error
    try:
        matches = [(folder, register) for folder in folders if peer_id in (register := read_register(folder)).expelled]
        if not matches:
            raise UserError(
                f"expelled: no worker of {run_dir} has expelled {peer}: run outerloop expelled {run_dir} for a list"
            )
        for folder, register in matches:
            asyncio.run(write_register(folder, register.without(peer_id)))
    finally:
        unlock(lock)
