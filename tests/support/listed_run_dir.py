"""The run directory of a listed worker, for tests of `outerloop invite` and `expel`, and its register."""

from __future__ import annotations

import asyncio
from pathlib import Path

from omegaconf import OmegaConf

from outerloop.config.manifest.describe_run import packaged
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.admissions import Admission, Statement
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.invites import Token
from outerloop.swarm.access.register_files import ADDRESS, folder_of, read_waiting, waiting, write_statements
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.storage import Folder
from tests.support.swarm.dht_scene import id_of

OTHER, INVITED = id_of(1), id_of(7)
ADDRESS_OF_RUN = "/ip4/192.0.2.1/tcp/4/p2p/X"


def own(run_dir: Path) -> Signatures:
    return Signatures.of(ensure_identity(identity_file(run_dir, 0)))


def access(run_dir: Path) -> Folder:
    return Folder(folder_of(identity_file(run_dir, 0)))


def write_config(run_dir: Path, allow: list[str]) -> None:
    config = packaged(recipe="sparseloco", exchange="swarm_gather").copy()
    config.exchange.allow, config.exchange.run, config.exchange.invites = allow, "summer", True
    OmegaConf.save(config, run_dir / "config.yaml", resolve=True)


def listed_run_dir(folder: Path) -> Path:
    """Of a run with an allow-list, whose first worker is listed and has run."""
    write_config(folder, [own(folder).peer_id, OTHER])
    asyncio.run(access(folder).write(ADDRESS, ADDRESS_OF_RUN.encode()))
    return folder


def admission(run_dir: Path, token: Token, peer: str, *, at_s: int = 1_700_000_000) -> Admission:
    return Admission.new(token.binding(peer), own(run_dir), at_s=at_s, number=0)


def store(run_dir: Path, *statements: Statement) -> None:
    """Put statements into the register, as the running worker does."""
    asyncio.run(write_statements(access(run_dir), statements))


def statements_of_commands(run_dir: Path) -> list[Statement]:
    """The statements that wait for the running worker."""
    disk = access(run_dir)
    return [read_waiting(disk, name) for name in waiting(disk)]
