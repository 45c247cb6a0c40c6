"""Options as keywords and mappings, wrong arguments, and the outer loop as a context."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import outerloop
from outerloop.config import from_recipe, load
from outerloop.config.option_mapping import to_overrides
from tests.support import process_group, toy


class FullyShardedDataParallel(torch.nn.Module):
    """A stand-in for torch's wrapper, which needs a process group."""


NESTED = {"compress": "int8", "schedule": {"sync_every": 7, "early": False}, "exchange.port": 4242}


@pytest.mark.parametrize("options", [NESTED, OmegaConf.create(NESTED)])
def test_a_mapping_is_what_is_typed_on_the_command_line(options):
    typed = ["compress=int8", "schedule.sync_every=7", "schedule.early=false", "exchange.port=4242"]
    assert load.load(to_overrides(options)) == load.load(typed)


@pytest.mark.parametrize("value", ["it's", "a, b", "${x", "[1]", "\\'", "", "null", "1e-3", "a=b"])
def test_text_stays_text(value):
    if value == "${x":
        value = "a$b"
    assert load.load(to_overrides({"exchange.run": value})).exchange.run == value


def test_other_values_keep_their_types():
    options = {"exchange.initial_peers": ("/a/b", "/c"), "exchange.announce": None, "round_timeout_s": 1e-05}
    settings = load.load(to_overrides(options | {"exchange.run": Path("/x")}))
    assert list(settings.exchange.initial_peers) == ["/a/b", "/c"] and settings.exchange.announce is None
    assert settings.round_timeout_s == 1e-05 and settings.exchange.run == "/x"


def test_keywords_are_short_for_options():
    outer = outerloop.from_recipe(
        "diloco", toy.model(), "seed=3", sync_every=7, options={"merge_local": 0.5}, exchange=toy.alone()
    )
    assert outer.schedule.sync_every == 7 and outer.pipeline.merge_local == 0.5


def test_a_hydra_application_can_make_outer_loops(tmp_path):
    """Its own composition is still there afterwards."""
    (tmp_path / "mine.yaml").write_text("outer: {schedule: {sync_every: 7}}")
    with initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        options = compose("mine").outer
        outer = outerloop.from_recipe("diloco", toy.model(), options=options, exchange=toy.alone())
        assert outer.schedule.sync_every == 7 and compose("mine").outer == options


@pytest.mark.parametrize("addresses", ["/ip4/127.0.0.1/tcp/1/p2p/x", ["/ip4/127.0.0.1/tcp/1/p2p/x"]])
def test_one_address_is_a_list_of_one(addresses, monkeypatch):
    seen = []
    monkeypatch.setattr(from_recipe, "create_and_join", lambda settings, *_, **__: seen.append(settings) or toy.alone())
    outerloop.from_recipe("diloco", toy.model(), peers=4, initial_peers=addresses)
    assert seen[0].exchange.peers == 4 and list(seen[0].exchange.initial_peers) == ["/ip4/127.0.0.1/tcp/1/p2p/x"]


@pytest.mark.parametrize(
    ("arguments", "keywords", "said"),
    [
        ((toy.model(), "diloco"), {}, "takes the name of a recipe and a torch.nn.Module, but got a Sequential and a"),
        (("diloco", toy.model(), {"rounds": 3}), {}, "an option was passed as a dict: pass text"),
        (
            ("diloco", FullyShardedDataParallel()),
            {},
            "FullyShardedDataParallel or DeepSpeed has flattened the parameters",
        ),
        (("diloco", toy.model()), {"options": "exchange.port=1"}, "options is a str, not a mapping"),
        (("diloco", toy.model()), {"options": ["method=lion"]}, r'as in simulate\(..., "method=lion", "compress\._t'),
        (("diloco", toy.model()), {"options": {"seed": object()}}, "option seed is a object"),
        (("diloco", toy.model()), {"exchange": "inprocess"}, "exchange='inprocess' is not an exchange object: pass"),
        (("diloco", toy.model()), {"exchange": outerloop.Distributed}, "exchange=Distributed is not an exchange"),
        (("diloco", toy.model()), {"exchange": 3}, "exchange=3 is not an exchange object: pass"),
        (("diloco", toy.model()), {"mesh": 3}, "mesh is a int, but must be a DeviceMesh: pass"),
        (("diloco", toy.model()), {"dim": "islands"}, "dim='islands' selects a dimension of mesh=, which is not set"),
        (("diloco", toy.model()), {"replicas": -100}, "replicas is a int, but must be a process group that contains"),
        (("diloco", toy.model()), {"initial_peers": 3}, "initial_peers=3 must be the address of a running peer, or"),
        (("diloco", toy.model()), {"initial_peers": [3]}, r"initial_peers=\[3\] must be the address of a running peer"),
        (("diloco", toy.model()), {"steps": "3000"}, "steps='3000' must be a whole number of inner steps, 1 or more"),
        (("diloco", toy.model()), {"steps": 2.0}, r"steps=2\.0 must be a whole number"),
        (("diloco", toy.model()), {"steps": True}, "steps=True must be a whole number"),
        (("diloco", toy.model()), {"steps": 0}, "steps=0 must be a whole number"),
        (("diloco", toy.model()), {"peers": 4, "exchange": toy.alone()}, "the exchange is passed as an object"),
        (("diloco", toy.model()), {"peers": 0}, r"exchange\.peers=0 must be greater than or equal to 1"),
        (
            ("diloco", toy.model()),
            {"sync_every": 0, "exchange": toy.alone()},
            r"schedule\.sync_every=0 must be at least 1",
        ),
        (
            ("diloco", toy.model()),
            {"sync_every": 0.5},
            r"sync_every=0\.5 must be an integer: set schedule\.sync_every=100",
        ),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments, keywords, said):
    with pytest.raises(outerloop.UserError, match=said) as error:
        outerloop.from_recipe(*arguments, **keywords)
    assert "\n" not in str(error.value)


def test_a_misspelled_keyword_is_refused():
    with pytest.raises(TypeError, match="sync_evry"):
        outerloop.from_recipe("diloco", toy.model(), sync_evry=3)


@pytest.mark.parametrize(("fails", "left"), [(False, "close"), (True, "abort")])
def test_the_run_is_left_at_the_end_of_the_block_and_at_once_after_an_error(fails, left):
    exchange, seen = toy.alone(), []
    exchange.close, exchange.abort = (lambda: seen.append("close")), (lambda: seen.append("abort"))
    with suppress(ZeroDivisionError), outerloop.from_recipe("diloco", toy.model(), exchange=exchange) as outer:
        assert repr(outer) == "OuterLoop(recipe='diloco', round=0, inner_step=0, peer='000', size=1)"
        assert 1 / (not fails)
    assert seen == [left]
    with pytest.raises(outerloop.UserError, match="this outer loop is closed and cannot count steps"):
        outer.after_inner_step(1)


def test_the_optimizer_of_a_recipe_and_a_warning_without_it(caplog):
    model = toy.model()
    optimizer = outerloop.recipe_optimizer("muloco", model, options={"inner.lr": 0.5})
    outer = outerloop.from_recipe("muloco", model, exchange=toy.alone())
    assert optimizer.param_groups[0]["lr"] == 0.5
    with outerloop.attach(optimizer, outer):
        assert not caplog.records
    with outerloop.attach(torch.optim.AdamW(model.parameters()), outer):
        assert "recipe=muloco expects the inner optimizer MuonWithAdamW, but got AdamW" in caplog.text
    with pytest.raises(outerloop.UserError, match=r"schedule\.sync_every does not apply to an inner optimizer"):
        outerloop.recipe_optimizer("muloco", model, "schedule.sync_every=3")
    with pytest.raises(outerloop.UserError, match="recipe=ddp takes no inner steps"):
        outerloop.recipe_optimizer("ddp", model)


def test_a_recipe_that_changes_the_weights_itself_warns_that_the_optimizer_has_no_effect(caplog):
    outer = outerloop.from_recipe("ddp", toy.model(), "rounds=7", exchange=toy.alone())
    assert len(outer.warnings) == 1 and outer.warnings[0] in caplog.text
    assert "the optimizer given to attach" in caplog.text and "rounds=7 steps" in caplog.text
    assert not outerloop.from_recipe("diloco", toy.model(), exchange=toy.alone()).warnings


@pytest.mark.parametrize("recipe", ["diloco", "muloco"])
def test_the_optimizer_of_a_recipe_takes_the_options_of_inner_that_it_reads_and_refuses_all_others(recipe):
    inner = load.load([f"recipe={recipe}"]).inner
    read = list(OmegaConf.to_container(inner.optimizer, resolve=False).values())
    for name in inner.keys() - {"optimizer"}:
        option = {f"inner.{name}": inner[name]}
        if f"${{inner.{name}}}" in read:
            outerloop.recipe_optimizer(recipe, toy.model(), options=option)
        else:
            with pytest.raises(outerloop.UserError, match=rf"inner\.{name} does not apply to an inner optimizer: your"):
                outerloop.recipe_optimizer(recipe, toy.model(), options=option)


def test_a_method_that_exchanges_gradients_takes_its_learning_rate_from_inner_but_no_batches():
    outerloop.from_recipe("ddp", toy.model(), "inner.lr=0.5", "inner.clip_norm=2.0", exchange=toy.alone())
    with pytest.raises(outerloop.UserError, match=r"inner\.batch does not apply to your own training loop: your"):
        outerloop.from_recipe("ddp", toy.model(), "inner.batch=3", exchange=toy.alone())


def over_mesh(rank):
    """The weights of this process after a round along one dimension of a mesh, whose other dimension is DDP."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("islands", "ranks"))
    net = DistributedDataParallel(toy.model(), process_group=mesh["ranks"].get_group())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(outerloop.UserError, match=r"dim='island' is not a dimension of the mesh, .*: islands, ranks"):
        outerloop.from_recipe("diloco", net, mesh=mesh, dim="island")
    with outerloop.from_recipe("diloco", net, mesh=mesh, dim="islands", sync_every=2) as outer:
        outerloop.attach(optimizer, outer)
        for step in range(2):
            toy.inner_step(net, optimizer, rank, step)
        found = outer.slow_hash, outer.exchange.size, outer.exchange.bytes_sent > 0
    copies = mesh["ranks"].get_group()
    with outerloop.from_recipe("diloco", toy.model(), mesh=mesh, dim="islands", replicas=copies) as outer:
        assert outer.exchange.ranks.size == 2, "copies that no wrapper shows"
    return *found, sharded_over_mesh(mesh, rank)


def sharded_over_mesh(mesh, rank):
    """The hash of this lane's slow weights after a round; the model is sharded within an island."""
    net = fully_shard(toy.model(), mesh=mesh["ranks"])
    with pytest.raises(outerloop.UserError, match='pass mesh=MESH, dim="islands"'):
        outerloop.from_recipe("diloco", net, "exchange=distributed")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with outerloop.from_recipe("diloco", net, mesh=mesh, dim="islands", sync_every=2) as outer:
        outerloop.attach(optimizer, outer)
        for step in range(2):
            toy.inner_step(net, optimizer, rank, step)
    return outer.slow_hash


@pytest.mark.slow
def test_islands_of_a_mesh_hold_one_model(tmp_path):
    found = process_group.together(4, over_mesh, tmp_path)
    assert len({slow for slow, *_ in found}) == 1 and all(size == 2 for _, size, *_ in found)
    assert [sends for *_, sends, _ in found] == [True, False, True, False], "the first rank of an island sends"
    lanes = [lane for *_, lane in found]
    assert lanes[0] == lanes[2] != lanes[1] == lanes[3], "each lane exchanges with its like"
