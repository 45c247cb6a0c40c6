"""The benchmark over slow links: its numbers by hand, and inner steps that take what they are told to."""

import argparse
import copy

import bench_gather
import bench_wan
import pytest
import torch
import wan_pace
from faults_machine import COMMON
from namespaces import Network

from outerloop.config import instantiate, load
from tests.support import toy

ARGS = argparse.Namespace(
    hosts=2, link_delay=0.0, sync_every=8, delay=3, merge_local="carry", step_s=0.5, rounds=4, options=[]
)

ADAMW = {"lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}


def rounds_of(host, compute_s, communication_s, others_s):
    """Three rounds that do not count and one that does."""
    spent = {"compute_s": compute_s, "communication_s": communication_s, "others_s": others_s}
    rest = {"launch_s": 0.1, "wait_s": 0.2, "land_s": 0.3, "payload_bytes": 1000, "peers": 2, "failed": 0}
    slow = dict.fromkeys(spent, 99.0)
    return [{"host": host, "round": n, **(slow if n <= bench_wan.SKIPPED else spent), **rest} for n in (1, 2, 3)]


def test_a_row_is_made_of_the_rounds_after_the_first_two():
    rounds = rounds_of(0, 2.0, 1.0, 1.0) + rounds_of(1, 2.0, 3.0, 1.0)
    summaries = [{"params": 10, "val_loss": 1.5, "slow_hash": ["a"]}] * 2
    row = bench_wan.row_of("sparseloco-delay", "20mbit", ARGS, rounds, summaries)
    assert (row["mbit"], row["delay_ms"], row["peers"], row["delay_steps"]) == (20.0, 0.0, 2, 3)
    assert row["inner_s"] == 0.25 and row["measured_round_s"] == 5.0 and row["payload_bytes"] == 1000
    assert row["utilization"] == pytest.approx(4.0 / 10.0) and row["slow_hashes"] == 1


@pytest.mark.parametrize(
    ("recipe", "exchange", "fragments", "delay"),
    [("noloco", "gossip", 1, 0), ("streaming", "gather", 2, 3), ("diloco-fp16-delay", "gather", 1, 3)],
)
def test_a_row_says_what_the_settings_say(recipe, exchange, fragments, delay):
    rounds, summary = rounds_of(0, 2.0, 1.0, 1.0), {"params": 10, "val_loss": 1.5, "slow_hash": ["a"]}
    row = bench_wan.row_of(recipe, "none", ARGS, rounds, [summary])
    assert (row["exchange"], row["fragments"], row["delay_steps"], row["sync_every"]) == (exchange, fragments, delay, 8)
    assert row["mbit"] is None


@pytest.mark.parametrize(("typed", "delay_ms"), [("20ms", 20.0), ("1s", 1000.0), ("1.5s", 1500.0), ("0ms", 0.0)])
def test_a_delay_is_typed_in_either_unit(monkeypatch, typed, delay_ms):
    monkeypatch.setattr("sys.argv", ["bench_wan.py", "--json", "rows.json", "--link-delay", typed])
    args = bench_wan.parsed()
    assert 1e3 * args.link_delay == pytest.approx(delay_ms)
    assert bench_wan.delayed(args.link_delay) == (["--delay", f"{delay_ms:g}ms"] if delay_ms else [])


@pytest.mark.parametrize("typed", [["--link-delay", "20"], ["--rates", "none", "100Mbps"]])
def test_an_invalid_delay_or_rate_is_refused_before_anything_runs(monkeypatch, capsys, typed):
    monkeypatch.setattr("sys.argv", ["bench_wan.py", "--json", "rows.json", *typed])
    with pytest.raises(SystemExit):
        bench_wan.parsed()
    assert f"{typed[0]} {typed[-1]!r} is not a" in capsys.readouterr().err


def test_fewer_rounds_than_medians_need_are_refused_before_anything_runs(monkeypatch, capsys):
    for program, arguments in (
        (bench_wan, ["--json", "rows.json", "--rounds", "2"]),
        (bench_gather, ["--rounds", "1"]),
        (bench_gather, ["--rounds", "2", "--peers", "1"]),
    ):
        monkeypatch.setattr("sys.argv", [program.__name__, *arguments])
        with pytest.raises(SystemExit, match="2"):
            program.parsed()
        assert "not count" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["bench_gather", "--rounds", "2"])
    assert bench_gather.parsed().rounds == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            ["--recipes", "sparseloco", "noloco", "--delay", "0"],
            "--delay has no effect with --recipes sparseloco noloco: omit it, or choose one of --recipes"
            " sparseloco-delay diloco-fp16-delay streaming",
        ),
        (
            ["--recipes", "streaming", "--merge-local", "0.0"],
            "--merge-local has no effect with --recipes streaming: omit it, or choose one of --recipes"
            " sparseloco-delay diloco-fp16-delay",
        ),
        (["--goodput", "--delay", "2"], "--delay has no effect with --goodput: omit it"),
    ],
)
def test_an_option_that_no_chosen_recipe_uses_is_refused(monkeypatch, capsys, typed, said):
    monkeypatch.setattr("sys.argv", ["bench_wan.py", "--json", "rows.json", *typed])
    with pytest.raises(SystemExit):
        bench_wan.parsed()
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "delay", "merge_local"),
    [([], 4, "carry"), (["--delay", "0"], 0, "carry"), (["--merge-local", "0.5", "--delay", "2"], 2, "0.5")],
)
def test_the_delay_and_the_merge_that_are_typed_are_those_of_the_delayed_recipes(
    monkeypatch, typed, delay, merge_local
):
    monkeypatch.setattr("sys.argv", ["bench_wan.py", "--json", "rows.json", *typed])
    options = bench_wan.options_of("sparseloco-delay", bench_wan.parsed())
    assert f"schedule.delay={delay}" in options and f"merge_local={merge_local}" in options


@pytest.mark.parametrize("recipe", bench_wan.RECIPES)
def test_every_recipe_is_one_that_can_be_typed(recipe):
    settings = load.load([*COMMON, *bench_wan.options_of(recipe, ARGS)])
    assert instantiate.make(settings.schedule).delay == (3 if "delay" in recipe or recipe == "streaming" else 0)
    assert settings.inner.optimizer.step_s == 0.5


def test_fragments_that_land_in_one_round_count_together(tmp_path):
    host = bench_wan.Host(0, tmp_path, [], network=Network("none"))
    part = dict.fromkeys([*bench_wan.SECONDS, "payload_bytes"], 1.0)
    host.rows = [{"event": "round", "round": 1, "peers": peers, "failed": "", **part} for peers in (4, 3)]
    [row] = bench_wan.rounds_of(host)
    assert row["compute_s"] == row["payload_bytes"] == 2.0 and row["peers"] == 3 and row["failed"] == 0


class Clock:
    """Time that passes when somebody sleeps."""

    now_s = 100.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


@pytest.fixture
def paced(monkeypatch):
    """A net, its optimizer with steps of .5 s, and the clock."""
    monkeypatch.setattr(wan_pace, "time", clock := Clock())
    net = torch.nn.Linear(3, 1)
    optimizer = wan_pace.PacedAdamW(net.parameters(), step_s=0.5, **ADAMW)
    yield net, optimizer, clock
    optimizer.hook.remove()


def step(net, optimizer, x):
    optimizer.zero_grad()
    net(x).square().sum().backward()
    optimizer.step()


def test_a_paced_step_is_adamw(paced):
    net, optimizer, _ = paced
    plain = copy.deepcopy(net)
    adamw, x = torch.optim.AdamW(plain.parameters(), **ADAMW), torch.randn(4, 3)
    for _ in range(2):
        step(net, optimizer, x)
        step(plain, adamw, x)
    assert toy.same_weights(net, plain)


def test_a_paced_step_takes_its_time_since_its_first_forward_pass_in_training(paced):
    net, optimizer, clock = paced
    net.eval()
    net(torch.randn(4, 3))
    clock.sleep(7.0)
    net.train()
    net(torch.randn(4, 3))
    clock.sleep(0.25)
    step(net, optimizer, torch.randn(4, 3))
    assert clock.now_s == 107.5
    net(torch.randn(4, 3))
    clock.sleep(2.0)
    step(net, optimizer, torch.randn(4, 3))
    assert clock.now_s == 109.5, "a longer step is not made shorter, nor longer"
