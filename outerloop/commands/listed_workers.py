"""Find the workers of a run directory whose keys may sign invites and removals: those on the run's allow-list. Read
their registers of invited peers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from outerloop.config.options.saved_settings import saved_settings
from outerloop.config.run_directory import worker_keys
from outerloop.swarm.access.admissions import Statement
from outerloop.swarm.access.invited_peers import InvitedPeers
from outerloop.swarm.access.register_files import folder_of, read_statements
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.storage import Folder
from outerloop.types import UserError


@dataclass(frozen=True)
class ListedWorker:
    """A worker of this machine that is on the allow-list: its index, its key, and its folder of invited peers."""

    index: int
    signatures: Signatures
    access: Folder


@dataclass(frozen=True)
class ListedRun:
    """A run with an allow-list, and its listed workers on this machine, at least one."""

    config: DictConfig
    workers: list[ListedWorker]

    @property
    def run(self) -> str:
        return str(self.config.exchange.get("run") or "default")

    @property
    def allow(self) -> list[str]:
        return list(self.config.exchange.allow)


def listed_run(run_dir: Path, *, command: str) -> ListedRun:
    """Return the run in a run directory. `command`: the command that needs it, for messages.

    Raises UserError if the folder contains no run, or the run has no allow-list, or lists no worker of this machine.
    """
    try:
        config = saved_settings(run_dir)
    except FileNotFoundError as error:
        raise UserError(f"{command}: no run found in {run_dir}: pass the run_dir of a run that was started") from error
    allow = config.get("exchange", {}).get("allow")
    if not allow:
        raise UserError(
            f"{command} needs an allow-list, but the run in {run_dir} has none (exchange.allow): any machine may join"
            f" it, even with a new key. To admit only chosen machines, start a new run with init_from={run_dir}"
            " exchange.allow=[IDS] exchange.invites=true. To keep the run open and drop harmful payloads, set"
            " scores.payloads=2 exclude_accused=true"
        )
    keys = worker_keys(run_dir)
    workers = [ListedWorker(int(key.parent.name), Signatures.of(key), Folder(folder_of(key))) for key in keys]
    listed = [worker for worker in workers if worker.signatures.peer_id in allow]
    if not listed:
        raise UserError(
            f"{command}: no worker of {run_dir} is in exchange.allow: run this command on the machine of a listed peer"
        )
    return ListedRun(config, listed)


def peers_of(worker: ListedWorker) -> InvitedPeers:
    """Return the statements in a worker's register, and those of commands that its process has not read yet."""
    return invited(read_statements(worker.access))


def invited(statements: Iterable[Statement]) -> InvitedPeers:
    """Return these statements, merged. Signatures are not checked."""
    out = InvitedPeers()
    for statement in statements:
        out = out.with_statement(statement)
    return out
