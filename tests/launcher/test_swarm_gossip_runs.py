"""Whole runs with exchange=swarm_gossip: scheduled pairs against threads, a machine that dies, who may not gossip."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from outerloop.config import load, part_checks, shared_settings
from outerloop.types import UserError
from tests.support.run_output import summary_of
from tests.support.train_processes import family, gone, invitation, rounds_done, rows, start

GOSSIP = ["recipe=noloco", "exchange=swarm_gossip", "threads=1"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["exchange=swarm_gossip"], "gives each peer different contributions.*: set method=noloco, or exchange="),
        (["recipe=diloco", "exchange=swarm_gossip"], "set method=noloco"),
        (
            ["recipe=noloco", "exchange=swarm_gossip", "compress=topk"],
            "cannot be sparsified or combined with feedback: set",
        ),
        (["recipe=sparta", "exchange=swarm_gossip"], "draws new random values every round.*: set compress=identity"),
        (["method=noloco", "compress=identity", "exchange=swarm_gossip", "feedback=ef"], "set feedback=none"),
    ],
)
def test_a_method_that_cannot_gossip_is_refused_before_anything_starts(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        part_checks.check_parts(load.load(overrides))
    assert "\n" not in str(error.value)
    part_checks.check_parts(load.load(GOSSIP))


def test_pairing_and_seed_belong_to_the_fingerprint_patience_does_not() -> None:
    plain = shared_settings.fingerprint(load.load(GOSSIP))
    assert shared_settings.fingerprint(load.load([*GOSSIP, "exchange.patience=0.5", "exchange.meeting_s=9"])) == plain
    assert shared_settings.fingerprint(load.load([*GOSSIP, "exchange.pairing=scheduled"])) != plain


@pytest.mark.slow
def test_scheduled_pairs_over_the_swarm_equal_threads_bit_for_bit(tmp_path: Path) -> None:
    small = ["workers=3", "rounds=4", "eval.every=0"]
    for name, exchange in (("swarm", ["exchange.pairing=scheduled"]), ("threads", ["exchange=inprocess_gossip"])):
        process = start(tmp_path / name, *GOSSIP, *exchange, *small)
        said, _ = process.communicate()
        assert process.returncode == 0, said
    swarm, threads = summary_of(tmp_path / "swarm"), summary_of(tmp_path / "threads")
    for key in ("slow_hash", "val_loss", "spread", "replicas"):
        assert swarm[key] == threads[key], key
    assert swarm["solo_rounds"] == 4 and swarm["one_sided_rounds"] == 0


@pytest.mark.slow
def test_a_machine_that_dies_costs_the_others_no_round(tmp_path: Path) -> None:
    """Two machines, one of two workers and one of one. The second is killed whole: the first ends with its own two."""
    common = [*GOSSIP, "exchange.peers=3", "rounds=40", "schedule.sync_every=8", "eval.every=0", "log_every=8"]
    first = start(tmp_path / "a", *common, "workers=2")
    second = start(tmp_path / "b", *common, "workers=1", invitation(first))
    while rounds_done(tmp_path / "b") < 3:
        assert second.poll() is None, second.communicate()[0]
    pids = family(second.pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    second.communicate()
    assert gone(pids)
    said, _ = first.communicate()
    assert first.returncode == 0, said
    summary = summary_of(tmp_path / "a")
    assert summary["replicas"] == 2 and summary["rounds_failed"] == 0 and len(set(summary["slow_hash"])) == 1
    partners = [row["partners"] for row in rows(tmp_path / "a") if row["event"] == "round"]
    assert len(partners) == 80 and any(partners) and sum(not one for one in partners) == summary["solo_rounds"]
