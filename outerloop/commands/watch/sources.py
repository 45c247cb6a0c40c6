"""Find out what the arguments of `outerloop watch` name: a swarm, a run directory, or a folder that contains runs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outerloop.report.runs import flatten, is_run, runs_under
from outerloop.state.damage import CORRECT, refuse_unreadable
from outerloop.types import UserError
from outerloop.watch.feed import Source

if TYPE_CHECKING:
    from outerloop.config.manifest.content import RunManifest


@contextmanager
def source_of(options: Namespace) -> Iterator[Source]:
    """Provide the source that the arguments name. Raises UserError if it does not exist."""
    if options.what.startswith("/") and "/p2p/" in options.what:
        with swarm_source(options) as source:
            yield source
    else:
        yield folder_source(Path(options.what))


def folder_source(folder: Path) -> Source:
    """Return the source for a folder: a run directory, or a folder that contains runs."""
    from outerloop.watch.run_dir import RunDirectory
    from outerloop.watch.sweep_dir import SweepDirectory

    with refuse_unreadable(folder, mend=CORRECT):
        if not folder.is_dir():
            raise UserError(
                f"{folder} is neither a folder nor an address: pass a run_dir, or /ip4/.../p2p/... of a peer"
            )
        is_one_run = is_run(folder, [file.name for file in folder.iterdir()])
        runs = [] if is_one_run else runs_under(folder)
    if is_one_run:
        return RunDirectory(folder)
    if not runs:
        raise UserError(f"no run in or under {folder}: pass the run_dir of outerloop train, for example runs/mine")
    return SweepDirectory(folder)


@contextmanager
def swarm_source(options: Namespace) -> Iterator[Source]:
    """Observe the swarm of a peer as a visitor, and provide it as a source."""
    from outerloop.commands.observe import observe_run
    from outerloop.swarm.p2p.daemon import check_addresses
    from outerloop.watch.swarm import Swarm

    check_addresses("watch", [options.what], must_name="p2p")
    with observe_run(options.what, run=options.run, run_dir=options.run_dir) as observation:
        yield Swarm(observation, run=observation.run, settings=settings_of(observation.manifest()))


def settings_of(manifest: RunManifest | None) -> dict[str, Any]:
    """Return the settings of a run that its manifest describes, as dotted key -> value.

    If the options in the manifest cannot be loaded, return only these options. Return no settings if there is no
    manifest, as in a run with its own training program.
    """
    from omegaconf import OmegaConf

    from outerloop.config import load
    from outerloop.config.manifest.allowed_options import checked_overrides

    if manifest is None:
        return {}
    try:
        return flatten(OmegaConf.to_container(load.load(checked_overrides(manifest.options)), resolve=True))
    except UserError:
        return dict(manifest.options)
