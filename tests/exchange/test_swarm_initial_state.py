"""Peers of a swarm that begin with different weights: chunks of the first one's, from all who hold the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from outerloop.config import build, load, shared_settings
from outerloop.config.peer_check import start_together
from outerloop.core.outer_loop import OuterLoop
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.state_transfer.join import START
from outerloop.swarm.state_transfer.manifest import CHUNK_BYTES
from outerloop.types import QuorumLost, StateHandoff
from tests.support import toy
from tests.support.swarm.loopback import together

SMALL_BLOBS = 1 << 20
"""Of payloads; far less than the weights, which may not be limited by it."""


def wide(seed: int) -> nn.Module:
    """4M parameters: chunks of a state for two givers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(CHUNK_BYTES // 4, 2, bias=False))


def begun(peers: list[SwarmGather], models: list[nn.Module]) -> list[Any]:
    """The outer loop of each peer. Settings are read before, since Hydra reads for one thread at a time."""
    settings = load.load(["recipe=localsgd", "schedule.sync_every=1"])

    def begin(peer: SwarmGather) -> OuterLoop:
        peer.join()
        outer = build.make_outer_loop(settings, models[peers.index(peer)], peer, rounds=None)
        start_together(outer, shared_settings.training_settings(settings))
        return outer

    outers = together(peers, begin)
    assert all(isinstance(outer, OuterLoop) for outer in outers), outers
    return outers


def test_those_who_begin_otherwise_get_the_weights_of_the_first_from_all_who_hold_them(make: Any) -> None:
    peers = [make(peers=3, max_blob_bytes=SMALL_BLOBS) for _ in range(3)]
    models = [wide(0), wide(0), wide(1)]
    begun(peers, models)
    assert all(toy.same_weights(model, wide(0)) for model in models)
    gave = [peer.state_transfer.uploads.bytes_sent for peer in peers]
    assert min(gave[:2]) >= CHUNK_BYTES and gave[2] == 0, "both who hold them give"
    assert 2 * CHUNK_BYTES < peers[2].state_transfer.downloads.bytes_received == sum(gave) < 3 * CHUNK_BYTES
    assert not any(peer.state_transfer.donor.holds(START) for peer in peers), "nobody keeps a copy"


def test_nothing_is_sent_where_all_begin_alike(make: Any) -> None:
    peers = [make(peers=2) for _ in range(2)]
    begun(peers, [toy.model(), toy.model()])
    assert [peer.bytes_sent for peer in peers] == [peer.bytes_received for peer in peers] == [0, 0]


def test_a_first_peer_that_goes_is_told_of_and_the_other_does_not_wait_for_ever(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outerloop.exchange.swarm_gather.DONATE_S", 0.0)
    first, other = peers = [make(peers=2, patience_s=2.0) for _ in range(2)]
    together(peers, SwarmGather.join)
    gone = threading.Thread(target=first.abort)
    gone.start()
    way = StateHandoff(2, [first.peer], [other.peer], 1 << 20)
    with pytest.raises(QuorumLost, match=f"no initial weights received from {first.peer} for 2 s: restart all peers"):
        other.hand_over(way, lambda: b"")
    gone.join()


def test_one_that_never_takes_its_weights_does_not_stop_the_others(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outerloop.exchange.swarm_gather.DONATE_S", 0.0)
    told: list[str] = []
    giver, frozen = peers = [make(peers=2, patience_s=2.0, on_status=told.append) for _ in range(2)]
    together(peers, SwarmGather.join)
    assert giver.hand_over(StateHandoff(2, [giver.peer], [frozen.peer], 1 << 20), lambda: b"state") == b""
    assert "starting without the peers that have not received the initial weights" in told[-1]
