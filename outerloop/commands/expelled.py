"""`outerloop expelled`: whom the workers of a run directory have expelled, and the only way to lift that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from outerloop.commands.arguments import Parser
from outerloop.config.run_directory import free, locked
from outerloop.swarm.accountability.expulsion import ExpulsionRegister, read_register, write_register
from outerloop.swarm.storage import Folder
from outerloop.types import UserError

DESCRIPTION = """\
Shows the peers that the workers of a run directory have expelled: what each did, in which round, and when that was
found here. The workers of this machine refuse every connection of an expelled peer, after restarts too, until you lift
the expulsion."""

EXAMPLES = """\
examples
  outerloop expelled runs/mine                              one line a peer
  outerloop expelled runs/mine --lift 12D3Koo...            let the peer with this id take part again

A peer is expelled when two messages with its signature contradict each other: a manipulated program, one key on two
machines, or a disk that was set back. Weights that differ from the others' expel nobody, since a fault of the memory
makes an honest peer's differ: it takes over the others' state. Whoever lifts an expulsion trusts the peer again. Stop
the run on this machine first, and lift on every machine: the others go on refusing the peer."""


def parser() -> Parser:
    """The options."""
    out = Parser("expelled", example="outerloop expelled runs/mine", description=DESCRIPTION, epilog=EXAMPLES)
    out.add_argument("run_dir", type=Path, metavar="DIR", help="the run_dir of the run on this machine")
    out.add_argument("--lift", action="append", default=[], metavar="ID", help="a peer id or name; repeatable")
    return out


def main(arguments: Sequence[str]) -> int:
    """Exit code 0. Raises UserError."""
    options = parser().parse_args(arguments)
    folders = [Folder(path) for path in sorted(options.run_dir.glob("workers/*/identity.rounds"))]
    if not folders:
        raise UserError(f"expelled: {options.run_dir} has no workers of a swarm: type the run_dir= of the run")
    for peer in options.lift:
        lift(options.run_dir, folders, peer)
    print("\n".join(lines(map(read_register, folders))) or "nobody is expelled")
    return 0


def lines(registers: Iterable[ExpulsionRegister]) -> list[str]:
    """One line a peer, whichever workers have expelled it."""
    found = {peer: one for register in registers for peer, one in register.expelled.items()}
    return [one.line() for _, one in sorted(found.items())]


def lift(run_dir: Path, folders: Sequence[Folder], peer: str) -> None:
    """Take a peer, by id or name, off the list of every worker. Raises UserError."""
    peer_id = peer.rpartition("-")[2]
    try:
        lock = locked(run_dir)
    except UserError as error:
        raise UserError(f"expelled: {run_dir} is being trained: stop it, lift, and start it again") from error
    try:
        having = [(folder, register) for folder in folders if peer_id in (register := read_register(folder)).expelled]
        if not having:
            raise UserError(f"expelled: {peer} is not expelled here: type outerloop expelled {run_dir} to see who is")
        for folder, register in having:
            asyncio.run(write_register(folder, register.without(peer_id)))
    finally:
        free(lock)
