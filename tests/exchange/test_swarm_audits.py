"""Four peers with real trainers and daemons audit each other; the one that scales its gradients is expelled."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outerloop.config import audits, build, instantiate, load
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.inner.trainer import Trainer
from outerloop.swarm.validation import id_of
from tests.support.small_trainer import README
from tests.support.swarm.loopback import Make, together

STEPS, EVERY, MAX_ROUNDS = 4, 2, 12
SETTINGS = [
    *("model=nano", "data=text", f"data.files=[{README}]", "inner.seq_len=16", "inner.batch=2", "workers=4"),
    *(f"schedule.sync_every={STEPS}", "assignment=by_round", "exchange.audit=1", f"exchange.audit_every={EVERY}"),
]


@pytest.fixture(autouse=True)
def nondeterministic_afterwards() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def trainers_of(peers: list[SwarmGather]) -> list[Trainer[Any]]:
    """The trainer of each peer, which records and audits."""
    settings = load.load(SETTINGS)
    corpus = instantiate.make(settings.data)
    trainers = [build.make_trainer(settings, corpus, peer, index) for index, peer in enumerate(peers)]
    for trainer, peer in zip(trainers, peers, strict=True):
        audits.attach_audits(settings, trainer, peer, corpus)
    return trainers


def train_as_liar(trainer: Trainer[Any]) -> None:
    """Train with twice the gradient of one parameter, until a round fails, because this peer has left."""
    trainer.params[-1].register_hook(lambda gradient: 2 * gradient)
    while not any(report.failed for report in trainer.step().rounds):
        pass


def verdicts(peer: int, folder: Path) -> list[dict[str, Any]]:
    file = folder / f"identity{peer}.audit" / "verdicts.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_peer_that_fakes_its_steps_is_found_and_expelled_and_honest_peers_match(make: Make, tmp_path: Path) -> None:
    peers = [make(peers=4, audit=1.0, audit_every=EVERY, grace_s=3.0) for _ in range(4)]
    assert together(peers, SwarmGather.join) == [None] * 4
    trainers = trainers_of(peers)
    liar = threading.Thread(target=train_as_liar, args=(trainers[3],), daemon=True)
    liar.start()
    liar_id = id_of(peers[3].peer)

    def expelled(peer: SwarmGather) -> bool:
        return liar_id not in peer.node.trust.allow

    for _ in range(MAX_ROUNDS):
        reports = together(peers[:3], lambda peer: train_round(trainers[peers.index(peer)]))
        assert all(not report.failed for report in reports)
        assert len({report.slow_hash for report in reports}) == 1
        if all(map(expelled, peers[:3])):
            break
    assert all(map(expelled, peers[:3])), [verdicts(index, tmp_path) for index in range(4)]
    found = [row for index in range(3) for row in verdicts(index, tmp_path)]
    about_liar = [row["outcome"] for row in found if row["peer"] == peers[3].peer]
    assert any("first differing leaf" in outcome for outcome in about_liar)
    assert {row["outcome"] for row in found if row["peer"] != peers[3].peer} == {"match"}
    assert sum(peer.counters().get("audits_differing", 0) for peer in peers[:3]) >= 2
    peers[3].abort()
    liar.join(60)


def train_round(trainer: Trainer[Any]) -> Any:
    """Train to the end of a round, and return its report."""
    while True:
        if reports := trainer.step().rounds:
            return reports[-1]
