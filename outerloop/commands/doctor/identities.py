"""Report the peer ids of a run directory's workers before they start, so that others can add them to allow-lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from outerloop.commands.doctor.finding import Finding
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures


def findings(run_dir: Path, workers: int) -> Iterator[Finding]:
    """Yield one finding with all peer ids. Creates missing keys. Raises UserError if a key file is not a valid key."""
    ids = [Signatures.of(ensure_identity(identity_file(run_dir, index))).peer_id for index in range(workers)]
    advice = f"if the run has an allow-list, set exchange.allow=[...,{','.join(ids)}]"
    yield Finding("identity", True, f"run_dir={run_dir} has {len(ids)} peer ids, kept for its workers", advice)
