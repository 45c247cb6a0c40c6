"""Islands of several processes under `fully_shard`, in lanes: two islands of two ranks are two islands of one."""

import functools
import math
import re

import pytest
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.config import from_recipe
from outerloop.exchange.distributed import Distributed
from outerloop.exchange.distributed_gossip import DistributedGossip
from outerloop.exchange.inprocess import InProcess
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.exchange.island_sharded import ShardedIsland
from outerloop.replica.gathered import Gathered
from outerloop.replica.island import Island
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import full_tensor, to_global
from outerloop.types import UserError
from tests.support import process_group, sharded_islands, toy
from tests.support.sharded_islands import CHUNKS, EVEN, ODD, Net
from tests.support.tensors import same_tensors

STEPS, ROUNDS = 9, 3
LONGER_NAMES = 3
"""Letters that the name of a process has more than that of a thread, in the header of every message."""
RUNS = {
    "diloco": (ODD, "diloco", []),
    "sparseloco": (EVEN, "sparseloco", CHUNKS),
    "loco": (EVEN, "loco", ["compress.chunk=32"]),
    "streaming": (EVEN, "streaming_diloco", ["compress.chunk=32", "schedule.sync_every=4"]),
    "noloco": (ODD, "noloco", []),
    "late": (EVEN, "sparseloco", [*CHUNKS, "schedule.delay=1", "merge_local=carry"]),
    "sparseloco, uneven": (ODD, "sparseloco", CHUNKS),
    "loco, uneven": (ODD, "loco", ["compress.chunk=32"]),
}
"""Name -> the net, the recipe, and options. Lanes chunk their own shards, so codecs with chunks get sizes of which each
shard is whole chunks; without chunks any size will do."""


RECIPES = ["diloco", "sparseloco", "loco", "streaming", "noloco", "late"]
"""Those that come out as whole replicas do."""
BUNDLED = ["sparseloco", "noloco", "late"]
"""Those that also meet through the first rank of each island."""
CUT = ["sparseloco, uneven", "loco, uneven"]
"""Those whose chunks no whole replica has."""


def options_of(name):
    """Options that all recipes share, before those of one."""
    return ["schedule.sync_every=3", *RUNS[name][2]]


def trained(net, name, exchange, *, island, parts, **options):
    """A net after all steps of one run, and its outer loop."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with torch.no_grad():
        sharded_islands.loss_of(net, island, 0, 0)  # a look before the start, which leaves the root module gathered
    outer = outerloop.from_recipe(RUNS[name][1], net, *options_of(name), exchange=exchange, **options)
    outerloop.attach(optimizer, outer, sole_writer=True)
    sharded_islands.train(net, optimizer, island=island, parts=parts, steps=range(STEPS))
    return outer


def meeting(name, group):
    """The exchange of one lane: pairs for NoLoCo, dealt alike in all lanes, since they have one seed."""
    if name == "noloco":
        return DistributedGossip(together=2, seed=0, group=group, timeout_s=30.0)
    return Distributed(group=group, timeout_s=30.0)


def joined(outer, like):
    """The slow weights of all ranks as full tensors."""
    params = outer.island.params
    return {name: to_global(x, params[name]).full_tensor() for name, x in like.items()}


def evaluated(net, outer):
    """Losses of the net as it is, with all weights zero in their place for a while, and as it is again."""

    def loss():
        with torch.no_grad():
            return sharded_islands.loss_of(net, 0, 0, 0).item()

    before = loss()
    with outer.island.temporary_weights({name: torch.zeros_like(x) for name, x in outer.slow.items()}):
        inside = loss()
    return [before, inside, loss()]


def refused(mesh, group):
    """What is said when a rank meets one that holds other shards."""
    with pytest.raises(UserError) as said:
        net = sharded_islands.shard(Net(**EVEN), mesh["ranks"])
        outerloop.from_recipe("diloco", net, exchange=Distributed(group=group, timeout_s=30.0))
    with pytest.raises(UserError, match="split into 2 shards"):
        outerloop.from_recipe("diloco", net, "exchange=distributed")
    return str(said.value)


def copied(mesh, group, wrap):
    """Two islands whose ranks hold the same weights each."""
    island, part = mesh.get_coordinate()[:2]
    exchange = Distributed(group=group, timeout_s=30.0)
    outer = trained(wrap(Net(**ODD)), "diloco", exchange, island=island, parts=[part])
    exchange.close()
    return {"slow": outer.slow, "fast": outer.island.read_raw(outer.slow), "sent": outer.exchange.bytes_sent}


def gathered(mesh):
    """An island of two ranks, and one of a single process; the last rank has nothing to do."""
    between = dist.new_group([0, 2])
    island, part = mesh.get_coordinate()
    if (island, part) == (1, 1):
        return {}
    net = sharded_islands.shard(Net(**ODD), mesh["ranks"]) if island == 0 else Net(**ODD)
    leaders = None if part else Distributed(group=between, timeout_s=30.0)
    parts = [part] if island == 0 else [0, 1]
    outer = trained(net, "sparseloco, uneven", leaders, island=island, parts=parts, gathered=True)
    fast = {name: full_tensor(p, of_gradient=False) for name, p in outer.island.params.items()}
    return {"fast": fast, "slow": getattr(outer, "slow", {})}


def in_lanes(mesh, names, met=meeting):
    """One of 2 x 2 ranks in these runs."""
    kept, (island, part) = {}, mesh.get_coordinate()
    for name in names:
        exchange = met(name, mesh["islands"].get_group())
        net = sharded_islands.shard(Net(**RUNS[name][0]), mesh["ranks"])
        outer = trained(net, name, exchange, island=island, parts=[part])
        kept[name] = {"slow": joined(outer, outer.slow), "fast": joined(outer, outer.island.read_raw(outer.slow))}
        kept[name] |= {"values": {key: x.numel() for key, x in outer.slow.items()}}
        kept[name] |= {"losses": evaluated(net, outer)}
        exchange.close()
    return kept


def lanes(rank):
    """One of 2 x 2 ranks in all recipes, and where ranks hold the same."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "ranks"))
    crossed = [dist.new_group(two) for two in ([0, 3], [1, 2])]
    island, part = mesh.get_coordinate()
    kept = {"refused": refused(mesh, crossed[island ^ part])} | in_lanes(mesh, RECIPES)
    islands, own = mesh["islands"].get_group(), mesh["ranks"].get_group()

    def through_the_first_rank(name, group):
        return ShardedIsland(None if part else meeting(name, group), ranks=RankGroup(own))

    kept["bundled"] = in_lanes(mesh, BUNDLED, through_the_first_rank)
    kept["gathered"] = gathered(mesh)
    kept["ddp"] = copied(mesh, islands, lambda net: DistributedDataParallel(net, process_group=own))
    return kept


def more_lanes(rank):
    """The longer rest: sizes that cut chunks, and HSDP."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "ranks"))
    kept = in_lanes(mesh, CUT)
    deep = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("islands", "copies", "shards"))
    kept["hsdp"] = copied(
        deep, mesh["islands"].get_group(), lambda net: sharded_islands.shard(net, deep["copies", "shards"])
    )
    kept["alone"] = copies_of_shards()
    return kept


def copies_of_shards():
    """One island of two copies of two shards, whose only peer is itself."""
    from_recipe.create_and_join = lambda *args, **settings: toy.alone()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    outer = trained(sharded_islands.shard(Net(**ODD), mesh), "diloco", None, island=0, parts=[dist.get_rank() % 2])
    return {"slow": joined(outer, outer.slow)}


PAIRS = functools.partial(InProcessGossip, group=2, seed=0)


def replicas(name, **options):
    """Two whole replicas as threads, on the same batches."""

    def live(exchange):
        net = Net(**RUNS[name][0])
        outer = trained(net, name, exchange, island=exchange.rank, parts=[0, 1], **options)
        return {"slow": outer.slow, "fast": outer.island.read_raw(outer.slow), "sent": exchange.bytes_sent}

    return toy.run_workers(2, live, PAIRS if name == "noloco" else InProcess)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What every rank has kept."""
    return process_group.together(4, lanes, tmp_path_factory.mktemp("lanes"))


@pytest.fixture(scope="module")
def ran_longer(tmp_path_factory):
    """The same of the longer rest."""
    return process_group.together(4, more_lanes, tmp_path_factory.mktemp("more"))


@pytest.mark.parametrize("name", RECIPES)
def test_two_islands_of_two_ranks_are_two_of_one(ran, name):
    for island, alone in enumerate(replicas(name)):
        for rank in (0, 1):
            there = ran[2 * island + rank][name]
            for what in ("slow", "fast"):
                torch.testing.assert_close(there[what], alone[what])


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
def test_chunks_of_uneven_and_empty_shards_come_together(ran_longer, name):
    """No whole replica has these chunks; the islands have one model all the same, and it has moved."""
    slow = [told[name]["slow"] for told in ran_longer]
    start = dict(Net(**ODD).named_parameters())
    for key, x in slow[0].items():
        assert all(torch.equal(x, other[key]) for other in slow) and not torch.equal(x, start[key])


@pytest.mark.parametrize("kind", ["ddp", pytest.param("hsdp", marks=pytest.mark.slow)])
def test_ranks_with_the_same_weights_are_one_peer_whose_first_rank_sends(request, kind):
    ran = request.getfixturevalue("ran" if kind == "ddp" else "ran_longer")
    for island, alone in enumerate(replicas("diloco")):
        first, second = (ran[2 * island + part][kind] for part in (0, 1))
        for what in ("slow", "fast"):
            torch.testing.assert_close(first[what], alone[what])
            assert same_tensors(first[what], second[what])
        assert first["sent"] == alone["sent"] + ROUNDS * LONGER_NAMES and second["sent"] == 0


def test_gathered_islands_need_not_be_cut_alike(ran):
    """Whole tensors: chunks are those of the whole, so unlike lanes this is what whole replicas do, at any size."""
    for rank, alone in zip((0, 2), replicas("sparseloco, uneven", gathered=True), strict=True):
        for what in ("slow", "fast"):
            torch.testing.assert_close(ran[rank]["gathered"][what], alone[what])
    follower = ran[1]["gathered"]
    assert follower["slow"] == {}
    assert same_tensors(follower["fast"], ran[0]["gathered"]["fast"])


@pytest.mark.parametrize("name", BUNDLED)
def test_lanes_that_meet_through_the_first_rank_are_those_that_meet_by_themselves(ran, name):
    for told in ran:
        for what in ("slow", "fast"):
            assert same_tensors(told[name][what], told["bundled"][name][what])


@pytest.mark.slow
def test_copies_of_shards_are_one_peer(ran_longer):
    alone = trained(Net(**ODD), "diloco", toy.alone(), island=0, parts=[0, 1])
    for told in ran_longer:
        torch.testing.assert_close(told["alone"]["slow"], alone.slow)


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


def frozen_hashes(rank):
    """Hashes of the frozen weights: whole, gathered from two shards, and of this lane's shard; for two bases."""
    mesh, ranks = init_device_mesh("cpu", (2,)), RankGroup(dist.group.WORLD)

    def net_of(base):
        net = toy.model(seed=base)
        net[0].requires_grad_(False)
        return net

    return [
        (
            Island(net_of(base)).frozen_hash,
            Gathered(fully_shard(net_of(base), mesh=mesh), ranks).frozen_hash,
            Island(fully_shard(net_of(base), mesh=mesh)).frozen_hash,
        )
        for base in (0, 0, 1)
    ]


def test_frozen_weights_are_compared_as_a_whole_or_lane_by_lane(tmp_path):
    for lane in process_group.together(2, frozen_hashes, tmp_path):
        whole, gathered, shard = lane[0]
        assert lane[1] == lane[0] and gathered == whole != shard
        assert all(other != own for other, own in zip(lane[2], lane[0], strict=True))
