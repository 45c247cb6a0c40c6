"""The average of replicas at the end: whose weights count, and that one liar of four spoils nobody's."""

from types import SimpleNamespace

import pytest
import torch

from outerloop import wire
from outerloop.island import here
from outerloop.payload import schema_of
from outerloop.ranks import Ranks
from outerloop.replicas import FAR, average, too_far
from outerloop.types import Contribution, Round

SIZE = 100


class Loop:
    """As much of an outer loop as an average needs: `told` are the blobs of the others by name."""

    island = SimpleNamespace(compute=here)
    inner_step = slow_hash = 0
    peer, waits_for_all = "000", False

    def __init__(self, weights, told):
        self.slow, self.told, self.exchange = {"w": weights}, told, self

    def meet(self, blob):
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
        "turned": -honest,
        "nan": torch.full((SIZE,), torch.nan),
        "another shape": torch.ones(SIZE + 1),
        "half": honest.half(),
    }[what]


@pytest.mark.parametrize("what", ["huge", "100 times", "turned", "nan", "another shape", "half"])
def test_a_liar_of_four_is_left_out_by_name_and_the_others_are_averaged(what):
    own, *others = replicas(4)
    honest = {f"{index:03d}": x for index, x in enumerate(others[:2], 1)}
    told = {peer: blob_of(x, peer) for peer, x in honest.items()} | {"003": blob_of(bad(what, others[2]), "003")}
    found = average(Loop(own, told))
    assert found.peers == ("000", "001", "002") and list(found.refused) == ["003"]
    assert found.refused["003"].startswith("003: its weights ")
    assert torch.allclose(found.mean["w"], (own + honest["001"] + honest["002"]) / 3, atol=1e-6)


@pytest.mark.parametrize("near", [0.0, 1e-9, 1.0])
def test_a_liar_of_four_leaves_nobody_out(near):
    """However near to this peer it claims to be: the median of three distances is not its own to set."""
    own, *others = replicas(4)
    told = {f"{index:03d}": blob_of(x, f"{index:03d}") for index, x in enumerate(others[:2], 1)}
    told["003"] = blob_of(own + near * (others[0] - own), "003")
    assert average(Loop(own, told)).peers == ("000", "001", "002", "003")


def test_garbage_and_nobody_leave_this_peers_own_weights():
    [own] = replicas(1)
    found = average(Loop(own, {"001": b"", "002": b"OUTL" * 100}))
    assert torch.equal(found.mean["w"], own) and found.peers == ("000",) and sorted(found.refused) == ["001", "002"]
    alone = Loop(own, {})
    alone.meet = lambda blob: []
    assert torch.equal(average(alone).mean["w"], own)


def test_the_bounds_by_hand():
    assert not too_far({"a": 1.0, "b": 2.0, "c": FAR * 2.0})
    assert list(too_far({"a": 1.0, "b": 2.0, "c": FAR * 2.1})) == ["c"]
    assert list(too_far({"a": 0.0, "b": 0.0, "c": 1.0})) == ["c"]
    assert not too_far({"a": 1.0, "b": 1e6}) and list(too_far({"a": 1.0, "b": 1e19})) == ["b"]
    assert list(too_far({"a": float("inf")})) == ["a"] and not too_far({})


def test_what_another_lane_cannot_read_is_left_out_in_all():
    class OtherLane(Ranks):
        def sum(self, values):
            return [value + (place == 0 and len(values) == 1) for place, value in enumerate(values)]

    own, other = replicas(2)
    found = average(Loop(own, {"001": blob_of(other, "001")}), OtherLane(None))
    assert found.peers == ("000",) and found.refused["001"].endswith("in another lane")
