"""`outerloop expelled`: list the peers that the workers of a run directory have expelled, and let them return.

Expulsions for an offence and removals by `outerloop expel` are permanent until they are lifted with this command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.commands.expel import ids_of, sign_removal, without_rank
from outerloop.commands.listed_workers import invited, listed_run, peers_of
from outerloop.config.run_directory import lock_directory, unlock
from outerloop.state.damage import CORRECT, refuse_unreadable
from outerloop.swarm.access.admissions import Removal
from outerloop.swarm.access.register_files import FOLDER, read_statements
from outerloop.swarm.accountability.expulsion import read_register, write_register
from outerloop.swarm.storage import Folder
from outerloop.types import UserError

DESCRIPTION = """\
Lists the peers that the workers of a run directory have expelled: what each did, in which round, and when this machine
detected it. The workers of this machine refuse all connections of an expelled peer, even after a restart, until you
lift the expulsion. Peers removed with outerloop expel are listed, too."""

EXAMPLES = """\
examples
  outerloop expelled runs/mine                              list expelled peers, one per line
  outerloop expelled runs/mine --lift 12D3Koo...            let the peer with this id take part again

A peer is expelled when two messages with its signature contradict each other. Possible causes: modified software, the
same key on two machines, or a disk restored from an older backup. A peer whose weights differ from the others' is not
expelled, because a memory fault can cause this on an honest machine. Such a peer loads the others' state instead.
Lifting an expulsion means trusting the peer again. Stop the run on this machine first, and lift the expulsion on every
machine: each machine keeps refusing the peer until you have lifted the expulsion there. A removal by outerloop expel is
lifted while the run is active, too; that of an invited peer is lifted on all machines at once."""


def parser() -> Parser:
    """Return the option parser."""
    out = Parser("expelled", example="outerloop expelled runs/mine", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("run_dir", type=Path, metavar="DIR", help="the run's run_dir on this machine")
    out.add_argument(
        "--lift", action="append", default=[], metavar="ID", help="a peer's id, or the name in its invite; repeatable"
    )
    return out


def main(arguments: Sequence[str]) -> int:
    """Run the command and return exit code 0.

    Raises UserError if an option is invalid, no swarm workers are found, or an expulsion cannot be lifted.
    """
    options = parser().parse_args(arguments)
    with refuse_unreadable(options.run_dir, mend=CORRECT):
        options.run_dir.is_dir()  # raises an error for an impossible name
        folders = [Folder(path) for path in sorted(options.run_dir.glob("workers/*/identity.rounds"))]
    if not folders:
        raise UserError(f"expelled: no swarm workers found in {options.run_dir}: pass the run_dir of a swarm run")
    for given in options.lift:
        peer = peer_of(options.run_dir, given)
        if not lift_removal(options.run_dir, peer):
            lift(options.run_dir, folders, peer)
    expelled = {peer: evidence for folder in folders for peer, evidence in read_register(folder).expelled.items()}
    lines = [evidence.line() for _, evidence in sorted(expelled.items())]
    print("\n".join([*lines, *map(line, removed(options.run_dir).values())]) or "no peer is expelled")
    return 0


def removed(run_dir: Path) -> dict[str, Removal]:
    """Return peer id -> its latest removal by `outerloop expel`, for the peers that are removed now."""
    statements = [one for path in run_dir.glob(f"workers/*/{FOLDER}") for one in read_statements(Folder(path))]
    peers = invited(one for one in statements if isinstance(one, Removal))
    return {peer: peers.removals[peer] for peer in sorted(peers.removed)}


def peer_of(run_dir: Path, given: str) -> str:
    """Return the id of the peer with this id, or with this name in its invite. Raises UserError if several have it."""
    peer = without_rank(given)
    registers = [invited(read_statements(Folder(path))) for path in sorted(run_dir.glob(f"workers/*/{FOLDER}"))]
    found = {one for register in registers for one in ids_of(register, peer)}
    if len(found) > 1:
        raise UserError(f"expelled: {len(found)} invited peers have the name {given}: pass the id of one")
    return found.pop() if found else peer


def line(removal: Removal) -> str:
    """Return one line that states which peer was removed, by whom, and when."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(removal.at_s))
    return f"{removal.peer} removed by {removal.by} with outerloop expel {when}"


def lift_removal(run_dir: Path, peer: str) -> bool:
    """Sign that a removed peer may take part again. Return False if it was not removed by `outerloop expel`.

    Raises UserError if no worker of this machine may sign it.
    """
    if peer not in removed(run_dir):
        return False
    run = listed_run(run_dir, command="expelled")
    for worker in run.workers:
        if peer in peers_of(worker).removed:
            sign_removal(run, worker, peer, lifted=True)
    return True


def lift(run_dir: Path, folders: Sequence[Folder], peer: str) -> None:
    """Remove the peer with this id from every worker's register of expelled peers.

    Raises UserError if the run is active on this machine, or if no worker has expelled the peer.
    """
    try:
        lock = lock_directory(run_dir)
    except UserError as error:
        raise UserError(
            f"expelled: the run in {run_dir} is active: stop it, lift the expulsion, and restart the run"
        ) from error
    try:
        matches = [(folder, register) for folder in folders if peer in (register := read_register(folder)).expelled]
        if not matches:
            raise UserError(
                f"expelled: no worker of {run_dir} has expelled {peer}: run outerloop expelled {run_dir} for a list"
            )
        for folder, register in matches:
            asyncio.run(write_register(folder, register.without(peer)))
    finally:
        unlock(lock)
