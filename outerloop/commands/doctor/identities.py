"""Who the workers of a run directory will be, told before they start: others put these ids on their allow-lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outerloop.commands.doctor.finding import Finding
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures


def findings(run_dir: Path, workers: int) -> Iterator[Finding]:
    """One line of all ids; keys that are not there yet are made. Raises UserError for a file that is no key."""
    ids = [Signatures.of(ensure_identity(identity_file(run_dir, index))).peer_id for index in range(workers)]
    todo = f"where a run has a list, type exchange.allow=[...,{','.join(ids)}]"
    yield Finding("identity", True, f"run_dir={run_dir} has {len(ids)} of its own, kept for its workers", todo)
