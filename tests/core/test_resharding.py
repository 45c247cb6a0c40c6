"""A checkpoint of an island of two ranks comes back on one and on four; memory of a rank is what it was said to be."""

import functools
import gc
import math
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh

import outerloop
from outerloop.core.memory_usage import estimate, measure
from outerloop.core.state import distributed_checkpoint
from outerloop.feedback.residual_storage import EightBit, dense
from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.replica import sharding
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import full_tensor, to_global
from outerloop.state import canonical
from outerloop.types import Round, UserError
from tests.support import process_group, sharded_islands, toy
from tests.support.sharded_islands import CHUNKS, EVEN, ODD, Net

SAVED, STEPS = 4, 7
RUNS = {
    "uneven": (ODD, "diloco", ["compress=cast", "feedback=ef"]),
    "loco": (EVEN, "loco", ["compress.chunk=32", "feedback.bits=32"]),
    "sparseloco": (EVEN, "sparseloco", CHUNKS),
    "late": (EVEN, "streaming_diloco", ["compress.chunk=32", "schedule.sync_every=4", "schedule.delay=1"]),
}
"""Name -> the net, the recipe, and options: momentum and a residual, the error of 4 bits, a residual alone, delay."""
LONGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("loco", "sparseloco")]


EVERYWHERE = ("fast", "slow", "exp_avg", "exp_avg_sq")
"""Kinds of tensors that every run here has."""


def begun(name, mesh):
    """A net on the ranks of a mesh (None: whole), its optimizer, and its outer loop: an island without others."""
    sizes, recipe, options = RUNS[name]
    net = Net(**sizes) if mesh is None else sharded_islands.shard(Net(**sizes), mesh)
    outer = outerloop.from_recipe(recipe, net, "schedule.sync_every=3", *options, exchange=toy.alone())
    return net, torch.optim.AdamW(net.parameters(), lr=0.01), outer


def go_on(net, optimizer, outer, parts, steps):
    """Inner steps with the outer loop attached."""
    with outerloop.attach(optimizer, outer):
        sharded_islands.train(net, optimizer, island=0, parts=parts, steps=steps)


def everything(net, optimizer, outer):
    """All that evolves, as full tensors."""
    params = outer.island.params

    def full(x, p):
        return full_tensor(to_global(x, p), of_gradient=False)

    residual = getattr(outer.feedback, "error", getattr(outer.feedback, "residual", None))
    method = outer.method.optimizer.state
    held = {f"slow {name}": full(x, params[name]) for name, x in outer.slow.items()}
    for name, x in outer.slow.items():
        if residual is not None and residual.get(name) is not None:
            held[f"residual {name}"] = full(residual.get(name), params[name])
        if method[x].get("momentum_buffer") is not None:
            held[f"momentum {name}"] = full(method[x]["momentum_buffer"], params[name])
        for key in ("exp_avg", "exp_avg_sq"):
            held[f"{key} {name}"] = full_tensor(optimizer.state[params[name]][key], of_gradient=False)
    return held | {f"fast {name}": full_tensor(p.detach(), of_gradient=False) for name, p in net.named_parameters()}


def kinds(held):
    return {key.split()[0] for key in held}


def resumed(name, mesh, folder, parts):
    """What is there after loading, and at the end."""
    net, optimizer, outer = begun(name, mesh)
    distributed_checkpoint.load(folder, optimizer, outer)
    loaded = everything(net, optimizer, outer), [outer.inner_step, outer.samples]
    go_on(net, optimizer, outer, parts, range(SAVED, STEPS))
    return {"loaded": loaded[0], "counts": loaded[1], "end": everything(net, optimizer, outer)}


def lives(rank, *, name, folder):
    """One of four processes: two islands of two ranks that save, then all four as one, then each alone."""
    mesh, four = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "ranks")), init_device_mesh("cpu", (4,))
    at = [folder / f"island-{island}" for island in (0, 1)]
    net, optimizer, outer = begun(name, mesh["ranks"])
    said = estimate(outer, optimizer).parts
    go_on(net, optimizer, outer, [rank % 2], range(SAVED))
    distributed_checkpoint.save(at[rank // 2], optimizer, outer)
    kept = {"saved": everything(net, optimizer, outer), "memory": [said, measure(outer, optimizer).parts]}
    go_on(net, optimizer, outer, [rank % 2], range(SAVED, STEPS))
    kept["end"] = everything(net, optimizer, outer)
    dist.barrier()
    return kept | {"4": resumed(name, four, at[0], [rank % 2]), "1": resumed(name, None, at[1], [0, 1])}


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """What every rank has kept of the run of a name, which is run when first asked for."""

    @functools.cache
    def of(name):
        folder = tmp_path_factory.mktemp("lives")
        return process_group.together(4, functools.partial(lives, name=name, folder=folder), folder)

    return of


@pytest.mark.parametrize("on", ["1", "4"])
@pytest.mark.parametrize("name", ["uneven", *LONGER])
def test_two_ranks_come_back_on_one_and_on_four(lived, name, on):
    more = {"residual"} if name == "sparseloco" else {"residual", "momentum"}
    for told in lived(name):
        back = told[on]
        assert back["counts"] == [4, 1] and kinds(back["loaded"]) == {*EVERYWHERE, *more}
        torch.testing.assert_close(back["loaded"], told["saved"])
        torch.testing.assert_close(back["end"], told["end"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["uneven", *LONGER])
def test_a_rank_holds_what_it_was_said_to_hold(lived, name):
    for said, real in (told["memory"] for told in lived(name)):
        assert real["residual"] > 0
        assert math.isclose(sum(said.values()), sum(real.values()), rel_tol=0.1)
        for part, size in real.items():
            assert math.isclose(said[part], size, rel_tol=0.1, abs_tol=128), part


def gathered(rank, *options, **more):
    """A net on two ranks, its optimizer, and its outer loop: an island without others, whole on the first rank."""
    net = sharded_islands.shard(Net(**ODD), init_device_mesh("cpu", (2,)))
    optimizer, exchange = torch.optim.AdamW(net.parameters(), lr=0.01), None if rank else toy.alone()
    if folder := more.pop("resumes", None):
        more["state"] = distributed_checkpoint.load_state(folder, optimizer, net, gathered=True)
    options = ["schedule.sync_every=3", *RUNS["uneven"][2], *options]
    outer = outerloop.from_recipe("diloco", net, *options, exchange=exchange, gathered=True, **more)
    return net, optimizer, outer


def standing(net, optimizer, outer):
    """Full fast weights, the slow weights of the first rank, and the inner step."""
    fast = {name: full_tensor(p.detach(), of_gradient=False) for name, p in net.named_parameters()}
    return {"fast": fast, "slow": {name: x.clone() for name, x in outer.slow.items()}, "step": outer.inner_step}


def refusals(rank, folder):
    """What all ranks of a gathered island raise although only the first one finds the mistake."""
    _, optimizer, outer = gathered(rank)
    if rank == 0:
        outer.exchange.joined_round = Round(7)
    with pytest.raises(UserError, match=r"joined the run at round 8, .* continues at round 2: pass the state"):
        distributed_checkpoint.load(folder, optimizer, outer)
    with pytest.raises(UserError, match="state is empty"):
        gathered(rank, state={})
    eager = gathered(rank, "eager=true", "feedback=none", "schedule.sync_every=2", "schedule.delay=2")
    go_on(*eager, [rank], range(3))
    with pytest.raises(UserError, match=r"eager=false schedule\.delay=0"):
        distributed_checkpoint.save(folder, *eager[1:])


def gathered_lives(rank, *, folder):
    """One of two ranks that save, train on, and resume: loaded after and before the run is joined."""
    first = gathered(rank)
    kept = {"estimated": estimate(first[2], first[1]).parts}
    go_on(*first, [rank], range(SAVED))
    distributed_checkpoint.save(folder / "saved", *first[1:])
    kept["saved"] = standing(*first)
    go_on(*first, [rank], range(SAVED, STEPS))
    kept["end"] = standing(*first)
    refusals(rank, folder / "saved")
    for way, options in {"after": {}, "before": {"resumes": folder / "saved"}}.items():
        again = gathered(rank, **options)
        if way == "after":
            distributed_checkpoint.load(folder / "saved", *again[1:])
        kept[f"loaded {way}"] = standing(*again)
        go_on(*again, [rank], range(SAVED, STEPS))
        kept[f"end {way}"] = standing(*again)
    return kept


def test_a_gathered_island_resumes_bit_for_bit(tmp_path):
    ranks = process_group.together(2, functools.partial(gathered_lives, folder=tmp_path), tmp_path)
    for told in ranks:
        for place, ways in {"saved": ("loaded after", "loaded before"), "end": ("end after", "end before")}.items():
            for way in ways:
                assert told[way]["step"] == {"saved": SAVED, "end": STEPS}[place]
                torch.testing.assert_close(told[way], told[place], rtol=0, atol=0)
    parts = [told["estimated"] for told in ranks]
    assert parts[0]["slow"] > 0 == parts[1]["slow"] == parts[1]["momentum"] and parts[1]["parameters"] > 0
    alone = resumed("uneven", None, tmp_path / "saved", [0, 1])  # one process may continue what two have saved
    for name, x in ranks[0]["end"]["slow"].items():
        torch.testing.assert_close(alone["end"][f"slow {name}"], x, rtol=1e-4, atol=1e-5)


def test_a_follower_has_an_inner_step_and_no_other_state():
    island = Gathered(net := Net(**EVEN), RankGroup(None))
    follower = Follower(island, net)
    follower.load_state_dict({"inner_step": 4})
    assert follower.state_dict() == {"inner_step": 4} and (follower.slow, follower.slow_hash) == ({}, 0)
    for wrong in ({}, "step.pt"):
        with pytest.raises(UserError, match="state of a Follower must be the result of its state_dict"):
            follower.load_state_dict(wrong)


def test_a_gathered_checkpoint_is_loaded_without_hashing_frozen_weights(tmp_path, monkeypatch):
    """`from_recipe`, which gets the state, hashes them after they are loaded."""
    net, optimizer, outer = begun("uneven", None)
    go_on(net, optimizer, outer, [0, 1], range(SAVED))
    distributed_checkpoint.save(tmp_path, optimizer, outer)
    monkeypatch.setattr("outerloop.replica.gathered.hash_parameters", lambda described: pytest.fail("hashed"))
    assert distributed_checkpoint.load_state(tmp_path, optimizer, net, gathered=True)["inner_step"] == SAVED


def test_a_swarm_resumes_from_a_checkpoint_that_is_loaded_before_it_is_joined(tmp_path):
    """Loaded afterwards, its first round is another one than that at which this peer has joined."""

    def joined(net, folder, **more):
        options = ["schedule.sync_every=3", *RUNS["uneven"][2]]
        return outerloop.from_recipe("diloco", net, *options, peers=1, run_dir=tmp_path / folder, **more)

    net, optimizer, outer = begun("uneven", None)
    go_on(net, optimizer, outer, [0, 1], range(SAVED))
    distributed_checkpoint.save(tmp_path / "saved", optimizer, outer)
    saved = everything(net, optimizer, outer)
    said = r"joined the run at round 1, .* continues at round 2: .*load_state\("
    late_net = Net(**ODD)
    before = {name: x.clone() for name, x in late_net.state_dict().items()}
    with joined(late_net, "late") as late, pytest.raises(UserError, match=said):
        distributed_checkpoint.load(tmp_path / "saved", torch.optim.AdamW(late_net.parameters(), lr=0.01), late)
    assert all(torch.equal(x, before[name]) for name, x in late_net.state_dict().items()), "nothing was loaded"
    net = Net(**ODD)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    state = distributed_checkpoint.load_state(tmp_path / "saved", optimizer, net)
    with joined(net, "in time", state=state) as again:
        torch.testing.assert_close(everything(net, optimizer, again), saved, rtol=0, atol=0)
        go_on(net, optimizer, again, [0, 1], range(SAVED, STEPS))
        assert (again.last_landed, again.inner_step) == (Round(1), STEPS)
        distributed_checkpoint.load(tmp_path / "saved", optimizer, again)  # a round that it has passed


def test_a_round_under_way_is_not_written_and_the_next_one_carries_it(tmp_path):
    """Two fragments, H 4, one step late: after step 2 the first is under way. It comes back whole, and goes on."""
    net, optimizer, outer = begun("late", None)
    go_on(net, optimizer, outer, [0, 1], range(2))
    assert [(round.number, round.fragment) for round in outer.in_flight] == [(0, 0)]
    distributed_checkpoint.save(tmp_path / "late", optimizer, outer)
    net, optimizer, again = begun("late", None)
    distributed_checkpoint.load(tmp_path / "late", optimizer, again)
    assert again.in_flight == {} and again.slow_hash == outer.slow_hash and again.inner_step == 2
    with outerloop.attach(optimizer, again, on_round=(landed := []).append):
        sharded_islands.train(net, optimizer, island=0, parts=[0, 1], steps=range(2, 7))
    assert [(one.round.number, one.round.fragment) for one in landed] == [(0, 1), (1, 0)]
    assert not any(one.failed for one in landed)


def test_a_round_under_way_with_eager_updates_is_not_left_out(tmp_path, monkeypatch):
    """Before the first round there is nothing to lose; from then on, a round is always under way."""
    eager = ["eager=true", "schedule.sync_every=2", "schedule.delay=2"]
    monkeypatch.setitem(RUNS, "eager", (EVEN, "diloco", eager))
    net, optimizer, outer = begun("eager", None)
    go_on(net, optimizer, outer, [0, 1], range(1))
    distributed_checkpoint.save(tmp_path / "first", optimizer, outer)
    go_on(net, optimizer, outer, [0, 1], range(1, 3))
    with pytest.raises(UserError, match=r"start the run with eager=false schedule\.delay=0"):
        distributed_checkpoint.save(tmp_path / "second", optimizer, outer)


@pytest.mark.parametrize("compress", ["powersgd_warm", "auto"])
def test_what_a_compressor_learned_of_its_own_shards_is_not_written(compress, tmp_path, monkeypatch):
    """Each rank has learned something else, and a checkpoint would bring all of them what one has learned."""
    monkeypatch.setitem(RUNS, "learned", (EVEN, "diloco", [f"compress={compress}", "feedback=ef"]))
    net, optimizer, outer = begun("learned", None)
    unlearned = outer.evolved()["choosing"]
    go_on(net, optimizer, outer, [0, 1], range(4))
    assert outer.evolved()["choosing"] != unlearned
    distributed_checkpoint.save(tmp_path / "learned", optimizer, outer)
    _, optimizer, again = begun("learned", None)
    distributed_checkpoint.load(tmp_path / "learned", optimizer, again)
    assert again.evolved()["choosing"] == unlearned


def test_an_error_of_8_bits_goes_through_float32_and_back():
    """In the same blocks it is what it was; in others it is off by half of a new step at most."""
    torch.manual_seed(0)
    storage, again, halves = EightBit(), EightBit(), [EightBit(), EightBit()]
    storage.put("w", torch.randn(512))
    held = dense(storage.state_dict()["w"])
    again.load_state_dict({"w": held})
    torch.testing.assert_close(again.get("w"), storage.get("w"))
    for half, x in zip(halves, (held[:200], held[200:]), strict=True):
        half.load_state_dict({"w": x})
        assert (half.get("w") - x).abs().max() <= x.abs().max() / 127 / 2 * 1.01


def test_the_group_of_all_ranks_of_a_mesh_of_two_dimensions_is_made_once_for_a_model(monkeypatch):
    """Of HSDP: 2 copies of 2 shards. Two saves are of one group; a model that has gone keeps none."""
    mesh, made = SimpleNamespace(ndim=2, mesh=torch.tensor([[0, 1], [2, 3]])), []
    monkeypatch.setattr(sharding, "mesh_and_placements", lambda model: (mesh, ()))
    monkeypatch.setattr(dist, "new_group", lambda ranks, **_: made.append(ranks) or object())
    net, other = Net(**EVEN), Net(**EVEN)
    groups = [sharding.process_group(one) for one in (net, net, other)]
    assert groups[0] is groups[1] is not groups[2] and made == [[0, 1, 2, 3]] * 2
    before = len(sharding.GROUPS)
    del net
    gc.collect()
    assert len(sharding.GROUPS) == before - 1


def moved(optimizer):
    """An outer loop with this outer optimizer, after one round."""
    net = toy.model()
    outer = toy.outer(net, toy.alone(), h=1, method=OuterOptimizer(optimizer=optimizer))
    toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=0.1), 0, 0)
    outer.after_inner_step(1)
    return outer


def test_each_momentum_is_stored_with_the_parameter_that_it_belongs_to():
    """Vectors are in the first group of the outer optimizer, matrices in the second."""

    def groups(params):
        vectors, matrices = ([x for _, x in params if x.dim() == dim] for dim in (1, 2))
        return torch.optim.SGD([{"params": vectors}, {"params": matrices}], lr=0.7, momentum=0.9)

    outer = moved(groups)
    tree = distributed_checkpoint.parted(outer.evolved()["method"], outer, {}, ("method",))
    owners = [state["momentum_buffer"][distributed_checkpoint.SHARD] for state in tree["optimizer"]["state"].values()]
    assert owners == ["0.bias", "1.weight", "1.bias", "2.bias", "0.weight", "2.weight"]


def test_an_outer_state_that_cannot_be_sharded_is_refused_by_name(tmp_path):
    outer = moved(lambda params: torch.optim.Adafactor(params, lr=0.1))
    with pytest.raises(
        UserError, match=r"state/0/row_var, of the parameter 0\.weight, has shape \[7, 1\], not \[7, 7\]"
    ):
        distributed_checkpoint.save(tmp_path, None, outer)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    _, optimizer, outer = begun("uneven", None)
    with pytest.raises(UserError, match="holds no checkpoint written by"):
        distributed_checkpoint.load(tmp_path / "none", optimizer, outer)


def test_a_folder_without_an_outer_loop_is_refused(tmp_path):
    checkpoint.save({"x": torch.zeros(3)}, checkpoint_id=tmp_path / "plain", no_dist=True)
    _, optimizer, outer = begun("uneven", None)
    with pytest.raises(UserError, match="without an outer loop"):
        distributed_checkpoint.load(tmp_path / "plain", optimizer, outer)


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(RUNS, "narrow", (EVEN | {"width": 8}, *RUNS["loco"][1:]))
    _, optimizer, outer = begun("narrow", None)
    distributed_checkpoint.save(tmp_path / "narrow", optimizer, outer)
    _, optimizer, outer = begun("loco", None)
    with pytest.raises(UserError, match=r"tokens\.weight is \[32, 8\] in the checkpoint, \[32, 16\] in this model"):
        distributed_checkpoint.load(tmp_path / "narrow", optimizer, outer)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    _, optimizer, outer = begun("uneven", None)
    distributed_checkpoint.save(tmp_path / "odd", optimizer, outer)
    _, optimizer, outer = begun("loco", None)
    with pytest.raises(UserError, match=r"another model: only one of the two models has score\.weight"):
        distributed_checkpoint.load(Path(tmp_path / "odd"), optimizer, outer)


class Runs:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_folder_of_somebody_else_runs_nothing(tmp_path):
    """Its index is a pickle with code in it, without an index in JSON; nothing is loaded."""
    _, optimizer, outer = begun("uneven", None)
    folder = tmp_path / "theirs"
    distributed_checkpoint.save(folder, optimizer, outer)
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    distributed_checkpoint.load(folder, optimizer, outer)  # by the index in JSON
    (folder / "index.json").unlink()
    with pytest.raises(UserError, match="which no index of torch does"):
        distributed_checkpoint.load(folder, optimizer, outer)
    assert not (tmp_path / "ran").exists()


def test_settings_of_the_inner_optimizer_that_are_code_are_refused_by_name(tmp_path):
    net, optimizer, outer = begun("uneven", None)
    go_on(net, optimizer, outer, [0, 1], range(1))
    optimizer.param_groups[0]["lr"] = Runs(tmp_path / "ran")
    distributed_checkpoint.save(tmp_path / "theirs", optimizer, outer)
    _, optimizer, outer = begun("uneven", None)
    with pytest.raises(UserError, match=r"theirs: optimizer\.param_groups.* is not a plain value and is not loaded"):
        distributed_checkpoint.load(tmp_path / "theirs", optimizer, outer)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("tree", [[], {"slow": 3}, {"slow": {1: 2}}, "cut"])
def test_a_state_of_another_kind_is_refused(tree, tmp_path):
    _, optimizer, outer = begun("uneven", None)
    packed = canonical.pack(tree)[:-1] if tree == "cut" else canonical.pack(tree)
    rest = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    checkpoint.save({"rest": rest}, checkpoint_id=tmp_path / "odd", no_dist=True)
    with pytest.raises(UserError, match=r"does not hold the state of an outer loop|is damaged"):
        distributed_checkpoint.load(tmp_path / "odd", optimizer, outer)
