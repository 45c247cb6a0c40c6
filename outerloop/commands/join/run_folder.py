"""Choose the default run directory of a machine that joins: one for each run, although two runs can have one name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path

from outerloop.config.build import initial_peers
from outerloop.config.options.saved_settings import FILE, run_id, saved_settings
from outerloop.config.run_directory import identity_file
from outerloop.swarm.membership.known_addresses import addresses_file, peer_of, read_addresses


def default_folder(run: str, peers: Collection[str]) -> Path:
    """Return runs/join-RUN, or the first of runs/join-RUN-2, runs/join-RUN-3, ... that no other run uses.

    A run directory is of another run if its settings have another run id, or if it stores none of the peers `peers`
    (ids of peers of the run that this machine joins). Two runs can have the same id, because their hosts choose it
    (`outerloop host` uses "open" by default), but they have no peer in common: each run directory has its own key.

    A run directory without settings can be used. No training has started there, but it may have a key that an invite
    has admitted.
    """
    return next(folder for folder in _folders(run) if not _is_of_another_run(folder, run, peers))


def note_on(run_dir: Path, run: str) -> str:
    """Return what to know about a run directory with a number after the name of the run, or "" if it has no number."""
    first = next(_folders(run))
    if not run_dir.as_posix().startswith(f"{first.as_posix()}-"):
        return ""
    return (
        f"{first} is of another run with the name {run}, because it stores no peer of this run; if it is the same run,"
        f" add run_dir='{first}'"
    )


def _folders(run: str) -> Iterator[Path]:
    """Yield the names of run directories in the order in which they are tried, without end."""
    yield Path(f"runs/join-{run}")
    yield from (Path(f"runs/join-{run}-{number}") for number in count(2))


def _is_of_another_run(folder: Path, run: str, peers: Collection[str]) -> bool:
    """Return whether a run directory has settings, and they or its stored peers are those of another run."""
    if not (folder / FILE).exists():
        return False
    saved = saved_settings(folder)
    addresses = [*initial_peers(saved), *read_addresses(addresses_file(identity_file(folder, 0)))]
    stored = {*map(peer_of, addresses), *saved.exchange.get("allow", ())}
    return run_id(saved) != run or stored.isdisjoint(peers)
