"""Islands of several processes under `fully_shard`, in lanes: two islands of two ranks are two islands of one."""

import math
import re

import pytest
import sharded
import torch
import toy
from sharded import EVEN, ODD, Net
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import outerloop
from outerloop.exchange.distributed import Distributed
from outerloop.exchange.inprocess import InProcess
from outerloop.types import UserError

STEPS = 9
CHUNKS = ["compress.large.chunk=32", "compress.large.k=8", "compress.below=32"]
RUNS = {
    "diloco": (ODD, "diloco", []),
    "sparseloco": (EVEN, "sparseloco", CHUNKS),
    "loco": (EVEN, "loco", ["compress.chunk=32"]),
    "streaming": (EVEN, "streaming_diloco", ["compress.chunk=32", "schedule.sync_every=4", "rounds=2"]),
    "noloco": (ODD, "noloco", []),
    "sparseloco, uneven": (ODD, "sparseloco", CHUNKS),
    "loco, uneven": (ODD, "loco", ["compress.chunk=32"]),
}
"""Name -> the net, the recipe, and options. Lanes chunk their own shards, so codecs with chunks get sizes of which each
shard is whole chunks; without chunks any size will do."""


def options_of(name):
    """Options that all recipes share, before those of one."""
    return ["schedule.sync_every=3", *RUNS[name][2]]


class Pair(Distributed):
    """Two islands are one another's partner in every round: gossip without a deal."""

    agrees = False


class ThreadPair(InProcess):
    """The same between threads."""

    agrees = False


def trained(net, name, exchange, *, island, parts):
    """A net after all steps of one run, and its outer loop."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    outer = outerloop.from_recipe(RUNS[name][1], net, *options_of(name), exchange=exchange)
    outerloop.attach(optimizer, outer)
    sharded.train(net, optimizer, island=island, parts=parts, steps=range(STEPS))
    return outer


def whole(outer, like):
    """The slow weights of all ranks as full tensors."""
    params = outer.island.params
    return {name: full(x, params[name]) for name, x in like.items()}


def full(x, p):
    return torch.distributed.tensor.DTensor.from_local(
        x, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
    ).full_tensor()


def evaluated(net, outer):
    """Losses of the net as it is, with all weights zero in their place for a while, and as it is again."""

    def loss():
        with torch.no_grad():
            return sharded.loss_of(net, 0, 0, 0).item()

    before = loss()
    with outer.replica.weights({name: torch.zeros_like(x) for name, x in outer.slow.items()}):
        inside = loss()
    return [before, inside, loss()]


def refused(mesh, group):
    """What is said when a rank meets one that holds other shards."""
    with pytest.raises(UserError) as said:
        net = sharded.shard(Net(**EVEN), mesh["ranks"])
        outerloop.from_recipe("diloco", net, exchange=Distributed(group=group, timeout_s=30.0))
    return str(said.value)


def lanes(folder):
    """One of 2 x 2 ranks in every run."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "ranks"))
    crossed = [dist.new_group(ranks) for ranks in ([0, 3], [1, 2])]
    island, part = mesh.get_coordinate()
    kept = {"refused": refused(mesh, crossed[island ^ part])}
    for name, (sizes, _, _) in RUNS.items():
        exchange = (Pair if name == "noloco" else Distributed)(group=mesh["islands"].get_group(), timeout_s=30.0)
        net = sharded.shard(Net(**sizes), mesh["ranks"])
        outer = trained(net, name, exchange, island=island, parts=[part])
        kept[name] = {"slow": whole(outer, outer.slow), "fast": whole(outer, outer.island.pick(outer.slow))}
        kept[name] |= {"values": {key: x.numel() for key, x in outer.slow.items()}}
        kept[name] |= {"losses": evaluated(net, outer)}
        exchange.close()
    torch.save(kept, f"{folder}/{dist.get_rank()}.pt")


def replicas(name):
    """Two whole replicas as threads, on the same batches."""

    def live(exchange):
        net = Net(**RUNS[name][0])
        outer = trained(net, name, exchange, island=exchange.rank, parts=[0, 1])
        return {"slow": outer.slow, "fast": outer.island.pick(outer.slow)}

    return toy.run_workers(2, live, ThreadPair if name == "noloco" else InProcess)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What every rank has kept."""
    folder = tmp_path_factory.mktemp("lanes")
    sharded.spawn(4, folder / "meeting", lanes, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(4)]


@pytest.mark.parametrize("name", ["diloco", "sparseloco", "loco", "streaming", "noloco"])
def test_two_islands_of_two_ranks_are_two_of_one(ran, name):
    for island, alone in enumerate(replicas(name)):
        for rank in (0, 1):
            there = ran[2 * island + rank][name]
            for what in ("slow", "fast"):
                torch.testing.assert_close(there[what], alone[what])


@pytest.mark.parametrize("name", ["sparseloco, uneven", "loco, uneven"])
def test_chunks_of_uneven_and_empty_shards_come_together(ran, name):
    """No whole replica has these chunks; the islands have one model all the same, and it has moved."""
    slow = [told[name]["slow"] for told in ran]
    start = dict(Net(**ODD).named_parameters())
    for key, x in slow[0].items():
        assert all(torch.equal(x, other[key]) for other in slow) and not torch.equal(x, start[key])


def test_shards_are_uneven_and_one_is_empty(ran):
    first, second = (ran[rank]["diloco"]["values"] for rank in (0, 1))
    assert (first["tokens.weight"], second["tokens.weight"]) == (17 * 7, 16 * 7)
    assert (first["score.weight"], second["score.weight"]) == (7, 0)
    assert "head.weight" not in first and "fixed.weight" not in first


def test_an_evaluation_leaves_no_gathered_weights_behind(ran):
    """With zeros everywhere all tokens are equally likely; of the root module nothing may be left from before."""
    for told in ran:
        before, zero, after = told["diloco"]["losses"]
        assert zero == pytest.approx(math.log(ODD["vocab"])) and before == after != zero


def test_a_rank_that_meets_other_shards_is_told_so(ran):
    part = r"\[16, 64\], Shard\(dim=0\) part {} of 2"
    for rank, told in enumerate(ran):
        here, there = (part.format(p) for p in (rank % 2, 1 - rank % 2))
        assert re.search(f"blocks.0.down.weight has shape {here} here and has shape {there} at", told["refused"]), told
