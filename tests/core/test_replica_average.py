"""The average of replicas at the end: whose weights count and how far, whatever fewer than half of them are."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outerloop import wire
from outerloop.aggregate.distance_screen import GROWTH, REFUSED, DistanceScreen, too_far
from outerloop.aggregate.norm_screen import LONGEST, Measured
from outerloop.core.codec import schema_of
from outerloop.core.replica_average import average, drawn_near, usual_distance
from outerloop.exchange.inprocess import InProcess
from outerloop.replica.island import run_inline
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Contribution, Round

SIZE = 100
R = 1.0
"""How far this peer's own inner steps moved it in a round, and its partners were."""


def screen(on=True):
    """What this peer knows at the end."""
    made = DistanceScreen(on=on)
    made.observe(Measured(0, [R, R], [1, 1], own=0))
    return made


class Loop:
    """As much of an outer loop as an average needs: `told` are the blobs of the others by name."""

    island = SimpleNamespace(compute=run_inline)
    inner_step = slow_hash = 0
    peer, info = "000", replace(InProcess.info, waits_for_all=False)

    def __init__(self, weights, told, on=True):
        self.slow, self.told, self.exchange = {"w": weights}, told, self
        self.screen = screen(on)

    def all_gather(self, blob):
        return [
            Contribution("000", Round(1), blob),
            *(Contribution(peer, Round(1), x) for peer, x in self.told.items()),
        ]


def blob_of(weights, peer):
    header = wire.Header(0, 0, 0, wire.schema_hash(schema_of({"w": weights})), 0, peer)
    return wire.pack(header, {"w": {"value": weights}})


def replicas(count, seed=0):
    """Weights around a common point, as those of workers that gossip."""
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(SIZE, generator=draw)
    return [common + 0.1 * torch.randn(SIZE, generator=draw) for _ in range(count)]


def bad(what, honest):
    return {
        "huge": torch.full((SIZE,), 1e38),
        "100 times": 100 * honest,
        "nan": torch.full((SIZE,), torch.nan),
        "another shape": torch.ones(SIZE + 1),
        "half": honest.half(),
    }[what]


@pytest.mark.parametrize("what", ["huge", "100 times", "nan", "another shape", "half"])
def test_a_liar_of_four_is_left_out_by_name_and_the_others_are_averaged(what):
    own, *others = replicas(4)
    honest = {f"{index:03d}": x for index, x in enumerate(others[:2], 1)}
    told = {peer: blob_of(x, peer) for peer, x in honest.items()} | {"003": blob_of(bad(what, others[2]), "003")}
    found = average(Loop(own, told))
    assert found.peers == ("000", "001", "002") and list(found.refused) == ["003"]
    assert found.refused["003"].startswith("003: its weights ")
    assert torch.allclose(found.mean["w"], (own + honest["001"] + honest["002"]) / 3, atol=1e-6)


def near(own, honest, way):
    return own + way * (honest - own)


@pytest.mark.parametrize("way", [0.0, 1e-9, 1.0, 10.0, 1e6])
@pytest.mark.parametrize(("count", "liars"), [(3, 1), (4, 1), (5, 2), (7, 3)])
def test_fewer_than_half_leave_nobody_out_and_pull_the_mean_only_so_far(count, liars, way):
    """Wherever they claim to be; at the weights of who is deceived, too.

    Before: with two of five there, or three of seven, the honest ones were left out by name, and with one of three
    nothing bounded how far the mean moved.
    """
    own, *others = replicas(count)
    honest = {f"{index:03d}": x for index, x in enumerate(others[liars:], 1 + liars)}
    told = {f"{index:03d}": near(own, others[0], way) for index in range(1, 1 + liars)} | honest
    found = average(Loop(own, {peer: blob_of(x, peer) for peer, x in told.items()}))
    assert {"000", *honest} <= set(found.peers) and not honest.keys() & found.shortened.keys()
    assert way == 1e6 or len(found.peers) == count
    without = own + sum(x - own for x in honest.values()) / len(found.peers)
    assert (found.mean["w"] - without).norm() <= 1.001 * GROWTH * R * liars / len(found.peers)


def test_a_distant_replica_counts_as_four_times_the_usual_distance_and_is_named():
    own, *others = replicas(3)
    turned = -others[0]
    found = average(Loop(own, {"001": blob_of(turned, "001"), "002": blob_of(others[1], "002")}))
    factor = GROWTH * R / float((turned - own).norm())
    assert found.shortened == {"001": pytest.approx(factor)} and not found.refused
    expected = (own + own + factor * (turned - own) + others[1]) / 3
    assert torch.allclose(found.mean["w"], expected, atol=1e-5)
    free = average(Loop(own, {"001": blob_of(turned, "001")}, on=False))
    assert not free.shortened and torch.allclose(free.mean["w"], (own + turned) / 2, atol=1e-6), "clip=none"


def test_garbage_and_nobody_leave_this_peers_own_weights():
    [own] = replicas(1)
    found = average(Loop(own, {"001": b"", "002": b"OUTL" * 100}))
    assert torch.equal(found.mean["w"], own) and found.peers == ("000",) and sorted(found.refused) == ["001", "002"]
    alone = Loop(own, {})
    alone.all_gather = lambda blob: []
    assert torch.equal(average(alone).mean["w"], own)


def test_the_bounds_by_hand():
    assert not too_far({"a": 0.0, "b": 2.0, "c": REFUSED * 2.0}, 2.0)
    assert list(too_far({"a": 1.0, "b": 2.0, "c": REFUSED * 2.1}, 2.0)) == ["c"]
    for unknown in (0.0, float("inf")):
        assert list(too_far({"a": LONGEST, "b": 2 * LONGEST, "c": float("inf")}, unknown)) == ["b", "c"]
    assert list(too_far({"a": float("nan")}, 1.0)) == ["a"] and not too_far({}, 1.0)


def test_the_usual_distance_is_over_all_fragments_and_lanes():
    class ThreeLanes(RankGroup):
        def all_reduce(self, values):
            return [9 * value for value in values]

    loop = Loop(*replicas(1), {})
    assert usual_distance(loop, ThreeLanes(None)) == 3 * R
    loop.screen.observe(Measured(1, [2 * R, 0.1], [1, 1], own=0))
    assert usual_distance(loop, RankGroup(None)) == pytest.approx(5**0.5 * R)


def test_a_replica_that_one_lane_cannot_read_is_left_out_in_all_lanes():
    class OtherLane(RankGroup):
        def all_reduce(self, values):
            return [value + (place == 0 and len(values) == 1) for place, value in enumerate(values)]

    own, other = replicas(2)
    found = average(Loop(own, {"001": blob_of(other, "001")}), OtherLane(None))
    assert found.peers == ("000",) and found.refused["001"].endswith("on another rank")


def test_weights_of_a_narrower_dtype_are_drawn_near_in_the_own_dtype():
    own, other = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([3.0, 0.0])
    near = drawn_near({"a": {"w": other}, "b": {"w": other}}, {"w": own}, {"a": 0.5, "b": 1.0})
    assert near["a"]["w"].tolist() == [2.0, 1.0] and near["a"]["w"].dtype == torch.float64
    assert near["b"]["w"] is other
