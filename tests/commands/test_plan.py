"""`outerloop plan`: its answers to mistakes, its table, and that its sizes are those of the wire and of the memory."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import mean

import pytest
import show_table
import torch

from outerloop.config.load import load
from outerloop.config.profile import memory_per_param, message, message_bytes, plan_method, recipe_settings
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.plan.recommend import LOSSES
from outerloop.replica.state_size import tree_bytes
from tests.support.run_command import run_command

TUNED = [
    ("ddp", 1),
    *((name, h) for name in ("outerloop", "outerloop_v1", "muloco", "diloco", "sparseloco") for h in (15, 30, 100)),
]
"""(recipe, H) of the losses that are from scripts/results/table."""
ROOT = Path(__file__).parents[2]
FLEET = ["--params", "1e9", "--peers", "4", "--step", "1.2s", "--tokens-per-step", "1000"]
LINKS = ["--up", "100mbit", "--latency", "20ms"]
SHAPES = [(256, 128), *4 * [(128, 128), (128, 128), (384, 128), (384, 128), (128, 384), (128,), (128,)], (128,)]
"""Of a Llama, its norms too."""


def plan(monkeypatch, capsys, *arguments):
    return run_command(monkeypatch, capsys, "plan", *arguments)


@cache
def settings(name, **asked):
    return recipe_settings(name, **{"sync_every": None, "delay": None, "density": None} | asked)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*FLEET], "--up or --probe is missing"),
        ([*FLEET, "--up", "100"], "--up '100' is not a bandwidth"),
        ([*FLEET, *LINKS, "--down", "fast"], "for example --down 100mbit"),
        ([*FLEET, *LINKS, "--latency", "20"], "for example --latency 50ms"),
        ([*FLEET, *LINKS, "--step", "0s"], "longer than 0 s"),
        ([*FLEET, *LINKS, "--peers", "0"], "--peers 0 must be 1 .. 10000"),
        ([*FLEET, *LINKS, "--density", "2"], "pass --density 0.0156"),
        ([*FLEET, *LINKS, "--recipe", "dilco"], "--recipe dilco is not one of"),
        ([*FLEET, *LINKS, "--sync-every", "15,x"], "--sync-every 15,x must be numbers from 1 to 1000000"),
        ([*FLEET, *LINKS, "--sync-every", "1" * 5_000], "must be numbers from 1 to 1000000"),
        ([*FLEET, *LINKS, "--sync-every", "0"], "pass --sync-every 15,30"),
        ([*FLEET, *LINKS, "--hours", "0"], "--hours 0 must be 0.01 .. 1e+06"),
        ([*FLEET, *LINKS, "--hours", "inf"], "--hours inf must be 0.01 .. 1e+06"),
        ([*FLEET, *LINKS, "--spread", "inf"], "--spread inf must be 0 .. "),
        ([*FLEET, *LINKS, "--failure-rate", "inf"], "--failure-rate inf must be 0 .. "),
        ([*FLEET, *LINKS, "--density", "nan"], "pass --density 0.0156"),
        ([*FLEET, *LINKS, "--traffic", "50"], "for example --traffic 50GB"),
        ([*FLEET, *LINKS, "--picture", "plan.pdf"], "pass --picture plan.png"),
        ([*FLEET, "--probe", "198.51.100.7"], "--probe"),
        ([*FLEET, *LINKS, "--probe", "198.51.100.7"], "pass --probe without them"),
        ([*FLEET, "--latency", "5ms", "--probe", "198.51.100.7"], "pass --probe without them"),
        (["--peers", "4"], "required: --params"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, arguments, said):
    code, out, err = plan(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


def test_a_table_a_recommendation_and_a_picture(monkeypatch, capsys, tmp_path):
    drawn = tmp_path / "plan.png"
    asked = ["--recipe", "sparseloco,noloco", "--sync-every", "30", "--failure-rate", "0.01", "--tokens", "1e10"]
    code, out, _ = plan(monkeypatch, capsys, *FLEET, *LINKS, *asked, "--picture", str(drawn))
    assert code == 0
    assert re.search(r"→ sparseloco +gather +30 ", out) and re.search(r"  noloco +gossip +30 ", out)
    assert re.search(r"→ sparseloco, H 30: [\d.]+ times as fast as the next method\n", out) and "10.0 G tokens" in out
    assert "noloco needs exchange=swarm_gossip exchange.deadline_s=" in out  # 4 GB
    assert "losses were measured" not in out
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_delay_keeps_the_steps_between_launch_and_landing_and_short_h_leaves_out_fragments(monkeypatch, capsys):
    asked = ["--recipe", "diloco,streaming_diloco", "--sync-every", "1,8", "--delay", "2", "--density", "0.01"]
    code, out, _ = plan(monkeypatch, capsys, *FLEET, "--up", "100gbit", *asked)
    assert code == 0
    assert "streaming_diloco, H 1 is left out: its 2 fragments need an H of 2 or more\n" in out
    assert re.search(r"^diloco needs merge_local=carry", out, re.M) and "streaming_diloco needs merge" not in out
    assert "own density and delay, without --delay 2 --density 0.01\n" in out


def test_train_accepts_the_overrides_that_recipes_need(monkeypatch, capsys):
    """On links of 1 Mbit/s, most recipes need longer time limits, and noloco and sparta another exchange as well."""
    code, out, _ = plan(monkeypatch, capsys, *FLEET, "--up", "1mbit", "--peers", "32")
    needs = {name: words.split() for name, words in re.findall(r"^(\w+) needs (.+)$", out, re.M)}
    assert code == 0 and needs.keys() >= {"noloco", "sparta", "diloco"}
    for name, overrides in needs.items():
        assert load([f"recipe={name}", *overrides]).exchange.deadline_s > 120
    assert needs["noloco"][0] == "exchange=swarm_gossip" and needs["sparta"][0] == "exchange=swarm_gather"
    assert not any(word.startswith("exchange=") for word in needs["diloco"])


def test_no_recipe_for_so_short_an_h(monkeypatch, capsys):
    code, _, err = plan(monkeypatch, capsys, *FLEET, *LINKS, "--recipe", "streaming_diloco", "--sync-every", "1")
    assert code == 2 and "--sync-every 1 is too small for all chosen recipes: pass --sync-every 30 or more" in err


def test_a_run_shorter_than_a_round(monkeypatch, capsys):
    """1 G tokens are 15,258 steps of 16,384 tokens by each of 4 peers: no round of 100,000."""
    asked = ["--tokens-per-step", "16384", "--tokens", "1e9", "--recipe", "muloco,diloco", "--traffic", "9TB"]
    code, out, _ = plan(monkeypatch, capsys, *FLEET, *LINKS, *asked, "--sync-every", "100,100000")
    assert code == 0 and out.count("H 100000 is left out: the run has 15,258 inner steps per peer\n") == 2
    assert "→ muloco, H 100: " in out and "each peer sends 1.82 TB" in out  # 152 rounds of 3 times 4 GB
    code, out, err = plan(monkeypatch, capsys, *FLEET, *LINKS, *asked, "--sync-every", "100000")
    assert (code, out) == (2, "") and "pass --tokens 6553600000 or more" in err
    asked[3] = "6553600000"
    assert plan(monkeypatch, capsys, *FLEET, *LINKS, *asked, "--sync-every", "100000")[0] == 0


def test_several_h_within_a_budget(monkeypatch, capsys):
    """20 G tokens are 5 M steps of 1,000 tokens by each of 4 peers. With H 100, a payload is sent 150,000 times.

    Outerloop's 18.7 MB are 2.8 TB, and sparseloco's 34 MB 5.1 TB. Muloco has a lower loss, but sends 4 GB a round.
    """
    asked = ["--recipe", "outerloop,sparseloco,muloco,ddp", "--sync-every", "15,100", "--traffic", "6TB"]
    code, out, _ = plan(monkeypatch, capsys, *FLEET, *LINKS, *asked)
    assert code == 0
    rows = re.findall(r"^ .. ?(\w+) +gather +(\d+) ", out, re.MULTILINE)
    assert len(rows) == 7 and ("outerloop", "15") in rows and ("ddp", "1") in rows
    assert re.search(
        r"→ outerloop, H \d+: lowest measured loss \(scripts/results\) of the \d rows within the budget", out
    )
    assert out.count("\n outerloop ") == 1  # one row in the table of memory


def test_links_can_be_measured(monkeypatch, capsys, tmp_path):
    peer = SwarmGather(run="default", peers=1, identity_path=str(tmp_path / "identity"))
    try:
        code, out, _ = plan(monkeypatch, capsys, *FLEET, "--recipe", "diloco", "--probe", peer.address[0])
    finally:
        peer.abort()
    assert code == 0
    assert re.search(r"measured: at least [\d.]+ [MG]bit/s up, [\d.]+ [MG]bit/s down, [\d.]+ ms one way", out)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("diloco", 32), ("diloco_int8", 8.0625), ("loco", 4.0625), ("streaming_diloco", 4.0625), ("noloco", 32)],
)
def test_bits_of_dense_codecs(name, bits):
    """So many a value, and a bfloat16 scale for 256 of them."""
    assert plan_method(settings(name), params=1e9, peers=4).bits_per_param == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("name", ["sparseloco", "outerloop", "decoupled_momentum", "diloco", "loco"])
def test_sizes_are_those_of_the_wire(name):
    """A model of many shapes, packed, against the two numbers that the planner goes by."""
    draw = torch.Generator().manual_seed(1)
    fast = {f"layers.{i}.weight": torch.randn(shape, generator=draw) for i, shape in enumerate(SHAPES)}
    frame, slope = message_bytes(settings(name))
    params = sum(x.numel() for x in fast.values())
    small = sum(2 * x.numel() for x in fast.values() if x.numel() < 4096)  # sparse recipes send them as bfloat16
    slack = 60 * len(SHAPES) + (small if name != "diloco" else 0)  # a table entry each
    assert abs(len(message(settings(name), fast)) - (frame + slope * params)) < 0.01 * slope * params + slack


def test_density_is_the_share_that_is_kept():
    whole, half = (plan_method(settings("sparseloco", density=d), params=1e9, peers=4) for d in (1 / 32, 1 / 64))
    assert settings("sparseloco", density=1 / 64).compress.large.k == 64
    assert settings("decoupled_momentum", density=1 / 64).compress.large.of.k == 64
    assert half.bits_per_param < 0.65 * whole.bits_per_param  # fewer values, of longer gaps


def test_a_requested_size_is_used_where_it_applies():
    asked = {"sync_every": 30, "delay": 20, "density": None}
    assert settings("diloco", **asked).schedule == {
        "_target_": "outerloop.schedule.every_h.EveryH",
        "sync_every": 30,
        "delay": 20,
        "early": False,
    }
    assert settings("diloco", **asked).merge_local == "carry" and settings("diloco").merge_local == 0
    assert settings("streaming_diloco", **asked).schedule.delay == 14  # below H / 2
    assert settings("streaming_diloco", **asked | {"sync_every": 5}).schedule.delay == 1
    assert settings("ddp", **asked).schedule.sync_every == 1
    assert settings("diloco").schedule.sync_every == 100


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sparseloco", {"inner optimizer": 8, "slow weights": 4, "residual": 4, "a round": 2 * 4 * 4 / 32}),
        ("diloco", {"inner optimizer": 8, "slow weights": 4, "outer optimizer": 4, "a round": 12}),
        ("streaming_diloco", {"inner optimizer": 8, "slow weights": 4, "outer optimizer": 4, "a round": 12 / 2 + 4}),
        ("loco", {"inner optimizer": 8, "slow weights": 4, "outer optimizer": 4, "residual": 260 / 256, "a round": 12}),
        ("ddp", {"slow weights": 4, "outer optimizer": 8, "a round": 12}),
        ("muloco", {"inner optimizer": 4, "slow weights": 4, "outer optimizer": 4, "a round": 12}),
    ],
)
def test_memory_by_part(name, expected):
    """Bytes a parameter: Adam holds two, Muon one; momentum, residual, what 4 peers kept of 1 / 32 and its places.

    Streaming lands late, so a launch copies the fast weights.
    """
    nothing = dict.fromkeys(("inner optimizer", "outer optimizer", "residual"), 0)
    whole = {"weights": 4, "gradients": 4} | nothing | expected
    assert memory_per_param(settings(name), peers=4) == pytest.approx(whole, rel=1e-3, abs=1e-3)


def test_held_counts_tensors_alone():
    assert tree_bytes({"a": [torch.zeros(3), (torch.zeros(2, dtype=torch.int8), 7)], "b": "text", "c": None}) == 14


def test_losses_are_those_of_the_published_table():
    text = (ROOT / "scripts/results/recipes/COMMAND.md").read_text()
    table = re.findall(r"^\| (\S+) \| \S+ \| \S+ \| ([\d.]+) .*?\| ([\d.]+) .*?\| ([\d.]+) .*?\|", text, re.M)
    names = {
        "streaming": "streaming_diloco",
        "loco_int4": "loco",
        "diloco_.7_.6": "diloco",
        "outerloop": "outerloop_v1",
    }
    told = {names.get(row[0], row[0]): row[1:] for row in reversed(table)}
    for name, losses in LOSSES.items():
        for h, loss in losses.items():
            if (name, h) not in TUNED:
                assert float(told[name][{1: 0, 15: 0, 30: 1, 100: 2}[h]]) == loss


def test_losses_of_the_recipe_are_those_of_its_records():
    groups = show_table.table(json.loads((ROOT / "scripts/results/table/rows.json").read_text()))
    for name, h in TUNED:
        case = {"ddp": "ddp_adamw"}.get(name, name)
        nats = [row["nats"] for row in groups[1033344, 600, 16, 4, max(h, 15)][case] if row["seed"] < 2]
        assert len(nats) == 2 and round(mean(nats), 3) == LOSSES[name][h]
