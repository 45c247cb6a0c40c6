"""Real daemons on loopback: peers pair up, one is dropped, the others end with one average."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from outerloop.exchange.swarm_gossip import SwarmGossip
from outerloop.gossip_groups import group_of
from outerloop.types import Contribution, Round, RoundFailed, UserError
from tests.support.swarm.loopback import daemon_of, runs, together

Make = Callable[..., SwarmGossip]


def test_three_peers_pair_up_meet_and_leave_nothing_behind(make_gossip: Make, tmp_path: Path) -> None:
    threads_before = set(threading.enumerate())
    peers = [make_gossip(peers=3, pairing="scheduled", seed=1) for _ in range(3)]
    daemons = [daemon_of(tmp_path / f"identity{index}").pid for index in range(3)]
    assert together(peers, SwarmGossip.join) == [None] * 3
    blobs = [bytes([rank]) * 500_000 for rank in range(3)]
    for number in range(6):
        pending = [peer.start(blob, Round(number)) for peer, blob in zip(peers, blobs, strict=True)]
        for rank, one in enumerate(pending):
            group = group_of(rank, size=3, group=2, seed=1, round_id=Round(number))
            assert one.wait(30) == [Contribution(peers[other].peer, Round(number), blobs[other]) for other in group]
    assert sum(peer.counters()["solo_rounds"] for peer in peers) == 6
    once = 12 * 500_000  # a transfer that stalls is asked for again, which counts as well
    assert sum(peer.bytes_sent for peer in peers) >= once and sum(peer.bytes_received for peer in peers) >= once
    met = together(peers, lambda peer: peer.all_gather(blobs[peer.rank], 1, 30))
    assert met[0] == met[1] == met[2] and [one.blob for one in met[0]] == blobs
    assert together(peers, SwarmGossip.close) == [None] * 3
    assert not any(map(runs, daemons)) and set(threading.enumerate()) <= threads_before
    peers[0].close()


def test_peers_whose_random_numbers_were_seeded_alike_find_each_other(make_gossip: Make) -> None:
    peers = []
    for _ in range(2):
        random.seed(0)  # as a trainer does in each process
        peers.append(make_gossip(peers=2, join_timeout_s=20.0))
    assert together(peers, SwarmGossip.join) == [None] * 2


def test_random_pairs_of_different_rounds_then_one_leaves_and_the_others_go_on(make_gossip: Make) -> None:
    peers = [make_gossip(peers=3, most_patience_s=2.0) for _ in range(3)]
    together(peers, SwarmGossip.join)
    numbers = [0, 5, 9]
    pending = [peer.start(peer.peer.encode(), Round(number)) for peer, number in zip(peers, numbers, strict=True)]
    landed = [one.wait(30) for one in pending]
    assert sorted(map(len, landed)) == [1, 2, 2]
    for one in landed:
        assert all(c.round == Round(numbers[int(c.peer[:3])]) and c.blob == c.peer.encode() for c in one)
    peers[0].abort()
    for number in range(20, 23):  # who looks for the one that left may lose its patience over it
        landed = [one.wait(60) for one in [peer.start(b"x", Round(number)) for peer in peers[1:]]]
        if list(map(len, landed)) == [2, 2]:
            break
    assert list(map(len, landed)) == [2, 2]


def test_options_and_limits_are_checked(make_gossip: Make) -> None:
    with pytest.raises(UserError, match=r"exchange\.pairing='best' is not one of random, scheduled"):
        make_gossip(peers=1, pairing="best")
    one = make_gossip(peers=1, max_blob_bytes=3)
    one.join()
    with pytest.raises(UserError, match="max_blob_bytes=4"):
        one.start(b"1234", Round(0))
    assert [c.blob for c in one.start(b"123", Round(0)).wait(10)] == [b"123"]


def test_a_round_that_is_given_up_is_free(make_gossip: Make) -> None:
    one, two = make_gossip(peers=2, least_patience_s=20.0), make_gossip(peers=2, least_patience_s=20.0)
    together([one, two], SwarmGossip.join)
    with pytest.raises(RoundFailed, match="found no partner and took no solo step in 1 s"):
        one.start(b"early", Round(0)).wait(1)
    landed = [pending.wait(30) for pending in [one.start(b"a", Round(1)), two.start(b"b", Round(0))]]
    assert list(map(len, landed)) == [2, 2]
