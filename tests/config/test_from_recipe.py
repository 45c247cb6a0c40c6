"""The outer loop in a training loop that knows nothing of it."""

import copy
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import outerloop
from outerloop.types import UserError
from tests.support import tiny_gpt, toy
from tests.support.run_output import address_in
from tests.support.swarm.loopback import eventually

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXT = README.encode()


def adds(recipe, *options, exchange=None, told=None, **attached):
    """The lines that somebody adds."""

    def add(model, optimizer):
        outer = outerloop.from_recipe(recipe, model, *options, exchange=exchange or toy.alone())
        outerloop.attach(optimizer, outer, on_round=None if told is None else told.append, **attached)

    return add


def test_until_the_first_round_training_is_what_it_was_bit_for_bit():
    plain, model = tiny_gpt.train(TEXT, steps=6)
    losses, with_outer = tiny_gpt.train(TEXT, steps=6, add=adds("sparseloco", "schedule.sync_every=7"))
    assert losses == plain and toy.same_weights(model, with_outer)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_worker_that_averages_trains_as_before_bit_for_bit(accumulate):
    """One worker, outer learning rate 1, no momentum; float64 slow weights, so that φ - (φ - θ) is θ."""
    rounds = []
    plain, model = tiny_gpt.train(TEXT, steps=9, accumulate=accumulate)
    add = adds("diloco", *toy.AVERAGED, "schedule.sync_every=3", "state_dtype=float64", told=rounds)
    losses, with_outer = tiny_gpt.train(TEXT, steps=9, accumulate=accumulate, add=add)
    assert losses == plain and toy.same_weights(model, with_outer)
    assert [report.round.number for report in rounds] == [0, 1, 2] and not any(report.failed for report in rounds)


@pytest.mark.parametrize("recipe", ["diloco", "sparseloco", "muloco"])
def test_two_workers_on_different_text_hold_one_model(recipe):
    reports = [[], []]

    def live(exchange):
        add = adds(recipe, "schedule.sync_every=4", exchange=exchange, told=reports[exchange.rank], samples=8)
        half = len(TEXT) // 2
        shard = TEXT[half * exchange.rank :][:half]
        losses, model = tiny_gpt.train(shard, steps=12, shard=exchange.rank, add=add)
        return losses, model

    (a, one), (b, other) = toy.run_workers(2, live)
    assert toy.same_weights(one, other) and a[0] > a[-1] and b[0] > b[-1]
    assert [r.slow_hash for r in reports[0]] == [r.slow_hash for r in reports[1]] and len(reports[0]) == 3


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_is_left_out_for_its_gradient_is_not_counted(fused):
    model = toy.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    outer = outerloop.from_recipe("diloco", model, exchange=toy.alone())
    scaler = torch.amp.GradScaler("cpu")
    with outerloop.attach(optimizer, outer):
        for factor in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 7)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert outer.inner_step == 2
    optimizer.step()
    assert outer.inner_step == 2, "after the block nothing is attached"


def test_parameters_that_the_optimizer_does_not_train_are_named():
    model = toy.model()
    outer = outerloop.from_recipe("diloco", model, exchange=toy.alone())
    optimizer = torch.optim.AdamW(model[0].parameters())
    with pytest.raises(UserError, match=r"1\.weight is trainable, but AdamW does not train it"):
        outerloop.attach(optimizer, outer)


@pytest.mark.parametrize(("momentum", "logged"), [(0.95, True), (0.6, False)])
def test_a_setting_that_is_probably_unintended_is_logged(momentum, logged, caplog):
    options = [f"method.optimizer.momentum={momentum}", "schedule.sync_every=30"]
    outerloop.from_recipe("diloco", toy.model(), *options, exchange=toy.alone())
    assert ("outer momentum of 0.9 or more is high" in caplog.text) == logged


def test_peers_whose_models_differ_are_told_where():
    def live(exchange):
        with pytest.raises(UserError, match=r"0\.bias has shape \[\d\] here and has shape \[\d\] at"):
            outerloop.from_recipe("sparseloco", toy.model(width=7 + exchange.rank), exchange=exchange)
        return True

    assert toy.run_workers(2, live) == [True, True]


def test_peers_that_begin_with_other_weights_take_over_those_of_the_first_and_are_told(caplog):
    def live(exchange):
        model = toy.model(seed=exchange.rank)
        outerloop.from_recipe("sparseloco", model, exchange=exchange)
        return model

    assert all(toy.same_weights(model, toy.model()) for model in toy.run_workers(3, live))
    assert "2 of 3 peers begin with other weights than 000: all use its weights" in caplog.text


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (["diloco"], "recipe is sparseloco here and diloco at 001: set the same options"),
        (["sparseloco", "schedule.sync_every=7"], "schedule.sync_every is 15 here and 7 at 001"),
        (["sparseloco", "compress.large.k=64"], "compress.large.k is 128 here and 64 at 001"),
        (["sparseloco", "compress=int8"], r"compress\._target_ is \S+ here and \S+ at 001"),
        (["sparseloco", "buffers=averaged"], "buffers is local here and averaged at 001"),
    ],
)
def test_peers_with_other_settings_are_told_which_one_differs(theirs, said):
    def live(exchange):
        recipe, *options = theirs if exchange.rank else ["sparseloco"]
        with pytest.raises(UserError) as error:
            outerloop.from_recipe(recipe, toy.model(), *options, exchange=exchange)
        return str(error.value)

    first, _ = toy.run_workers(2, live)
    assert re.match(said, first), first


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        (
            "muloco",
            {"inner.lr": 99},
            r"inner\.lr does not apply to your own training loop: your program's training loop",
        ),
        ("muloco", {"rounds": 7}, "rounds does not apply .* determines when training ends"),
        ("sparseloco", {"model": "nano"}, "model does not apply .* the model is passed as an argument"),
        ("sparseloco", {"recipe": "diloco"}, "recipe does not apply .* the recipe is the first argument"),
        ("sparseloco", {"log_every": 3}, "log_every does not apply .* it is an option of outerloop train"),
    ],
)
def test_options_that_cannot_apply_are_refused_with_a_reason(recipe, options, said):
    with pytest.raises(UserError, match=said):
        outerloop.from_recipe(recipe, toy.model(), options=options, exchange=toy.alone())


def test_options_of_the_inner_optimizer_apply_to_a_method_that_steps_with_it():
    outer = outerloop.from_recipe("ddp", toy.model(), "inner.lr=0.5", "rounds=7", exchange=toy.alone())
    assert outer.method.optimizer.defaults["lr"] == 0.5


@pytest.mark.parametrize("recipe", ["ddp", "demo"])
def test_steps_determine_the_learning_rates_of_a_method_that_steps_with_gradients(recipe):
    def factor(*overrides, steps):
        method = outerloop.from_recipe(recipe, toy.model(), *overrides, steps=steps, exchange=toy.alone()).method
        return (method.lr_factor if recipe == "demo" else method.factors["lr"])(400)

    assert (
        factor(steps=600) == factor("rounds=600", steps=None) > factor(steps=None) == factor("++rounds=300", steps=600)
    )


def test_peers_that_weigh_by_samples_may_do_unequal_work():
    def live(exchange):
        options = ["aggregate=weighted", f"schedule.sync_every={5 + exchange.rank}"]
        return outerloop.from_recipe("diloco", toy.model(), *options, exchange=exchange).schedule.sync_every

    assert toy.run_workers(2, live) == [5, 6]


def test_a_parameter_that_comes_later_is_named_before_anything_is_exchanged():
    model = toy.model()
    outer = outerloop.from_recipe("diloco", model, "schedule.sync_every=1", exchange=toy.alone())
    model.append(torch.nn.Linear(3, 2))
    with pytest.raises(UserError, match=r"3\.weight \(shape \[2, 3\]\) was added after the outer loop was created"):
        outer.after_inner_step(1)
    with pytest.raises(UserError, match=r"3\.weight"):
        outerloop.attach(torch.optim.AdamW(model.parameters()), outer)


def test_a_parameter_that_is_thawed_or_replaced_later_is_named():
    model = toy.model()
    model[0].bias.requires_grad_(False)
    outer = outerloop.from_recipe("diloco", model, "schedule.sync_every=1", exchange=toy.alone())
    model[0].bias.requires_grad_(True)
    with pytest.raises(UserError, match=r"0\.bias .* was added"):
        outer.after_inner_step(1)
    model[0].bias.requires_grad_(False)
    model[2].weight = torch.nn.Parameter(torch.zeros(3, 7))
    with pytest.raises(UserError, match=r"2\.weight .* was replaced"):
        outer.after_inner_step(1)


def test_peers_go_on_from_one_step():
    def live(exchange):
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outer = outerloop.from_recipe("diloco", model, "schedule.sync_every=2", exchange=exchange)
        states = []
        with outerloop.attach(optimizer, outer):
            for step in range(3):
                toy.inner_step(model, optimizer, exchange.rank, step)
                states.append(copy.deepcopy((model.state_dict(), outer.state_dict())))
        return states

    states = toy.run_workers(2, live)

    def resume(exchange, steps):
        weights, state = states[exchange.rank][steps[exchange.rank]]
        model = toy.model(seed=1)
        model.load_state_dict(weights)
        return outerloop.from_recipe("diloco", model, "schedule.sync_every=2", exchange=exchange, state=state)

    outers = toy.run_workers(2, lambda exchange: resume(exchange, (2, 2)))
    assert [outer.inner_step for outer in outers] == [3, 3]
    assert outers[0].slow_hash == outers[1].slow_hash
    with pytest.raises(UserError, match=r"resumes at rounds \[[12]\], but this peer at \[[12]\]:"):
        toy.run_workers(2, lambda exchange: resume(exchange, (0, 2)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda state: {}, "^state is empty, but must be .*: to start from the beginning, pass no state$"),
        (
            lambda state: {"model": {}, "outer": state},
            r"state has the keys model, outer, but must be the result of outer\.state_dict\(\): pass"
            r" state=saved\['outer'\]",
        ),
        (lambda state: dict.fromkeys("abcdefgh", 0), "state has the keys a, b, c, d, e and 3 more, but"),
        (lambda state: {key: state[key] for key in state if key != "samples"}, "state has the keys slow, method"),
        (lambda state: "step.pt", r'state is a str, .*: load the file first, and pass state=saved\["outer"\]$'),
        (lambda state: Path("step.pt"), "load the file first"),
        (lambda state: [state], r"^state is a list, but must be the result of outer\.state_dict\(\)$"),
    ],
)
def test_a_state_of_something_else_is_refused_before_the_run_is_joined(wrong, said, monkeypatch):
    state = outerloop.from_recipe("diloco", toy.model(), exchange=toy.alone()).state_dict()
    monkeypatch.setattr("outerloop.config.from_recipe.create_and_join", None)
    with pytest.raises(UserError, match=said):
        outerloop.from_recipe("diloco", toy.model(), state=wrong(state))
    outer = outerloop.from_recipe("diloco", toy.model(), exchange=toy.alone())
    with pytest.raises(UserError, match=said):
        outer.load_state_dict(wrong(state))


def test_a_state_of_another_number_of_fragments_is_refused():
    def start(recipe, state=None):
        return outerloop.from_recipe(recipe, toy.model(), exchange=toy.alone(), state=state)

    pair = ["diloco", "streaming_diloco"]
    states = [start(recipe).state_dict() for recipe in pair]
    with pytest.raises(UserError, match=r"the model has 2 fragment\(s\) in the saved run and 1 in this run: resume"):
        start("diloco", states[1])
    with pytest.raises(UserError, match=r"the model has 1 fragment\(s\) in the saved run and 2 in this run"):
        start("streaming_diloco", states[0])
    start("streaming_diloco", states[1])
    assert start("diloco", states[0] | {"samples": 3}).samples == 3, "older checkpoints have one number"


def test_peers_with_rounds_of_different_length_resume_together():
    def live(exchange, state=None):
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = ["aggregate=weighted", f"schedule.sync_every={2 + exchange.rank}"]
        if state:
            model.load_state_dict(state[0])
        outer = outerloop.from_recipe("diloco", model, *options, exchange=exchange, state=state and state[1])
        with outerloop.attach(optimizer, outer):
            for step in range(2 * outer.schedule.sync_every):
                toy.inner_step(model, optimizer, exchange.rank, step)
        return copy.deepcopy((model.state_dict(), outer.state_dict()))

    saved = toy.run_workers(2, live)
    assert [state["inner_step"] for _, state in saved] == [4, 6]
    (_, one), (_, other) = toy.run_workers(2, lambda exchange: live(exchange, saved[exchange.rank]))
    assert [one["inner_step"], other["inner_step"]] == [8, 12] and toy.same_tensors(one["slow"], other["slow"])


def test_the_leader_of_an_island_is_told_which_peers_to_join():
    with pytest.raises(UserError, match="first processes of all islands"):
        outerloop.from_recipe("diloco", toy.model(), "exchange=distributed", gathered=True)


def test_options_are_those_of_the_command_line():
    with pytest.raises(UserError, match="recipe must be one of"):
        outerloop.from_recipe("dilico", toy.model(), exchange=toy.alone())
    with pytest.raises(UserError, match="connects threads of one process"):
        outerloop.from_recipe("diloco", toy.model(), "exchange=inprocess")


SCRIPT = """
import sys

import outerloop
from tests.support import tiny_gpt

def add(model, optimizer):
    add.outer = outerloop.from_recipe("sparseloco", model, *sys.argv[1:], peers=2, sync_every=2)
    outerloop.attach(optimizer, add.outer)

tiny_gpt.train(open("text", "rb").read(), steps=4, add=add)
print(add.outer.slow_hash)
add.outer.close()
"""


@pytest.mark.slow  # in the default suite: the own loop of tests/examples/test_scripts.py
def test_two_processes_meet_over_the_network(tmp_path):
    """The second process is given the option that the first one prints, and both end with equal slow weights."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def start(name, *more):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_bytes(TEXT)
        command = [sys.executable, str(script), *more]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, cwd=tmp_path / name, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    first = start("a")
    second = start("b", next(filter(None, map(address_in, first.stderr))))
    said = [process.communicate() for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert said[0][0].split()[-1] == said[1][0].split()[-1]


def test_a_run_dir_is_free_again_when_its_peer_has_left_or_could_not_begin(tmp_path):
    with pytest.raises(UserError, match="1 of 2 peers are present"):
        outerloop.from_recipe("diloco", toy.model(), "exchange.peers=2", "exchange.join_timeout_s=1", run_dir=tmp_path)
    with pytest.raises(UserError, match="buffers=mean must be 'local' or"):
        outerloop.from_recipe("diloco", toy.model(), "exchange.peers=1", "buffers=mean", run_dir=tmp_path)
    outer = outerloop.from_recipe("diloco", toy.model(), "exchange.peers=1", run_dir=tmp_path)
    with pytest.raises(UserError, match="in use by another process, or by an outer loop of this process"):
        outerloop.from_recipe("diloco", toy.model(), "exchange.peers=1", run_dir=tmp_path)
    outer.exchange.close()
    outerloop.from_recipe("diloco", toy.model(), "exchange.peers=1", run_dir=tmp_path).exchange.close()


def test_two_peers_resume_over_the_network_while_a_round_is_in_flight(tmp_path, caplog):
    """The round in flight at the checkpoint is the first one of the resumed run, and lands on both peers."""
    options = ["schedule.sync_every=3", "schedule.delay=2", "exchange.patience_s=10"]

    def live(rank, saved, steps, *more):
        model, landed = toy.model(), []
        weights, state = saved or (model.state_dict(), None)
        model.load_state_dict(weights)
        outer = outerloop.from_recipe(
            "diloco", model, *options, *more, peers=2, run_dir=tmp_path / str(rank), state=state
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with outer, outerloop.attach(optimizer, outer, on_round=landed.append):
            for step in steps:
                toy.inner_step(model, optimizer, rank, step)
            return copy.deepcopy((model.state_dict(), outer.state_dict())), landed

    def both(saved, steps):
        caplog.clear()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(live, 0, saved[0], steps)
            assert eventually(lambda: first.done() or address_in(caplog.text) is not None, limit_s=60)
            other = pool.submit(live, 1, saved[1], steps, *filter(None, [address_in(caplog.text)]))
            return [first.result(), other.result()]

    half = [saved for saved, _ in both([None, None], range(4))]
    assert [len(state["in_flight"][0]) for _, state in half] == [1, 1]
    (one, landed), (other, also_landed) = both(half, range(4, 9))
    for reports in (landed, also_landed):
        assert [(report.round.number, report.failed) for report in reports] == [(0, ""), (1, "")]
    assert toy.same_tensors(one[1]["slow"], other[1]["slow"])
