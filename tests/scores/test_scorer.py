"""A peer's scores: which payloads are accused, and that a run with scores is the same run."""

import json
import sys
from pathlib import Path
from random import Random
from string import ascii_lowercase

import pytest
import torch

from outerloop.commands import main
from outerloop.config import load, part_checks
from outerloop.inner.data.assigned_stream import training_text
from outerloop.inner.data.assignment import assigned_windows
from outerloop.inner.models import next_token_loss
from outerloop.scores.build import make_scorer
from outerloop.scores.gain import Estimate
from outerloop.scores.losses import window_losses
from outerloop.scores.measurement import Score
from outerloop.scores.selection import LASTING
from outerloop.types import Round, UserError
from tests.support.run_output import leave_figures_empty
from tests.support.scored_messages import message_of
from tests.support.small_trainer import SMALL, trainer_of

OPTIONS = ["recipe=sparseloco", "assignment=by_round", "scores.payloads=9", "scores.windows=16", "inner.batch=4"]


def noise(outer, seed):
    draw = torch.Generator().manual_seed(seed)
    return {name: 1e-3 * torch.randn(x.shape, generator=draw) for name, x in outer.slow.items()}


@pytest.fixture
def letters(tmp_path):
    """The option for a text of random letters: what is learned of one window helps no other window."""
    text = "".join(Random(0).choices(ascii_lowercase, k=200_000))
    (tmp_path / "letters.txt").write_text(text)
    return f"data.files=[{tmp_path}/letters.txt]"


def scorer_of(*options, assigned=True):
    """The trainer of peer 000, its scorer, and the events that the scorer has emitted."""
    options = [*OPTIONS, *options]
    trainer, events = trainer_of(*options), []
    config = load.load([*SMALL, *options])
    corpus = part_checks.make(config.data)

    def emit(event, **fields):
        events.append({"event": event, **fields})

    settings = {"payloads": 9.0, "windows": 16, "seq_len": 16, "seed": config.seed, "batch": 8, "assigned": assigned}
    return trainer, make_scorer(corpus, trainer, **settings, emit=emit, random=Random(0)), events


@pytest.fixture
def scored():
    return scorer_of()


def accusations(events):
    return {event["peer"]: event["why"] for event in events if event["event"] == "accusation"}


def test_a_repeated_payload_of_an_earlier_round_is_accused_at_once(scored):
    trainer, scorer, events = scored
    outer = trainer.outer
    own, one, other = (noise(outer, seed) for seed in range(3))
    scorer(Round(0), [message_of(outer, name, x) for name, x in (("000", own), ("001", one), ("002", other))])
    assert accusations(events) == {}
    flipped = {name: -x for name, x in one.items()}
    later = [("000", own), ("001", noise(outer, 3)), ("002", flipped), ("003", noise(outer, 4))]
    scorer(Round(1), [message_of(outer, name, x, number=1) for name, x in later])
    assert accusations(events) == {"002": "repeats 100% of the payload of 001 of round 1"}  # never this peer itself
    scorer(Round(2), [message_of(outer, "001", later[1][1], number=2)])
    assert accusations(events)["001"] == "repeats 100% of its own payload of round 2"
    assert [event["text"] for event in events if event["event"] == "status"] == [
        f"{peer} is accused: it {why}" for peer, why in accusations(events).items()
    ]


def test_a_copy_in_the_same_round_is_accused_only_if_it_repeats_the_evaluator(scored):
    trainer, scorer, events = scored
    own, other = noise(trainer.outer, 0), noise(trainer.outer, 1)
    sent = {"000": own, "001": other, "002": other, "003": {name: -x for name, x in own.items()}}
    scorer(Round(0), [message_of(trainer.outer, name, x) for name, x in sent.items()])
    assert accusations(events) == {"003": "repeats the payload of this peer of the same round"}


def trained_on(trainer, windows, *, steps):
    """Return φ − θ after some steps of gradient descent on these windows."""
    slow = {name: x.clone() for name, x in trainer.outer.slow.items()}
    for _ in range(steps):
        trainer.model.zero_grad()
        next_token_loss(trainer.model, windows).backward()
        with torch.no_grad():
            for p in trainer.model.parameters():
                p -= 0.03 * p.grad
    delta = {name: slow[name] - p.detach().clone() for name, p in trainer.outer.island.params.items()}
    trainer.outer.island.write(slow, merge_local=0.0)
    return delta


@pytest.mark.slow
def test_only_who_trains_on_its_own_windows_gains(letters):
    """With dense payloads, which contain all that a peer has learned."""
    trainer, scorer, events = scorer_of("recipe=diloco", letters)
    outer, tokens = trainer.outer, training_text(part_checks.make(load.load([*SMALL, letters]).data), seq_len=16)
    windows = {
        peer: assigned_windows(tokens, commit=scorer.commit(), peer=str(int(peer)), numbers=range(16), seq_len=16)
        for peer in ("000", "001", "002", "003")
    }
    deltas = {peer: trained_on(trainer, own, steps=100) for peer, own in windows.items()}
    others = assigned_windows(tokens, commit=scorer.commit(), peer="5", numbers=range(16), seq_len=16)
    deltas["004"] = trained_on(trainer, others, steps=100)  # it did not train on its own windows
    scorer(Round(0), [message_of(outer, peer, x, samples=16) for peer, x in deltas.items()])
    scores = {event["peer"]: event for event in events if event["event"] == "score"}
    honest = windows.keys() - {"000"}
    assert scores.keys() == honest | {"004"}  # never this peer's own payload
    assert all(scores[peer]["gain"] > 3 * scores[peer]["gain_error"] for peer in honest)
    assert abs(scores["004"]["gain"]) < 3 * scores["004"]["gain_error"]
    assert scores["004"]["evidence"] < 0 < min(scores[peer]["evidence"] for peer in honest)


def test_a_payload_that_does_not_lower_the_loss_is_accused_also_without_assigned_windows():
    trainer, scorer, events = scorer_of("recipe=diloco", assigned=False)
    outer, tokens = trainer.outer, training_text(part_checks.make(load.load(SMALL).data), seq_len=16)
    peers = ("000", "001", "002", "003", "004")
    for number in range(2):
        deltas = {}
        for peer in peers:
            due = {"commit": bytes([number] * 32), "peer": peer, "numbers": range(64), "seq_len": 16}
            deltas[peer] = trained_on(trainer, assigned_windows(tokens, **due), steps=5)
        deltas["001"] = {name: x / 4 for name, x in deltas["001"].items()}  # it has taken fewer steps
        deltas["004"] = {name: -3 * x for name, x in deltas["004"].items()}
        messages = [message_of(outer, peer, x, number=number, samples=64) for peer, x in deltas.items()]
        scorer(Round(number), messages)
    scores = [event for event in events if event["event"] == "score"]
    assert len(scores) == 8 and all(score["assigned"] is None and score["gain"] is None for score in scores)
    benefits = {peer: [score["benefit"] for score in scores if score["peer"] == peer] for peer in peers[1:]}
    assert max(benefits.pop("004")) < 0.3 < 0.6 < min(map(min, benefits.values()))
    assert list(accusations(events)) == ["004"]
    assert accusations(events)["004"].startswith("hardly helps, or does harm: 2 payloads scored")
    assert outer.votes.accused == ["004"]


def observe(trainer, scorer, number, honest, **sent):
    """Let the scorer observe a round with new payloads of 000, 002 and 003, and with payloads that a test chooses."""
    others = {peer: noise(trainer.outer, next(honest)) for peer in ("000", "002", "003") if peer not in sent}
    messages = [message_of(trainer.outer, peer, x, number=number) for peer, x in (others | sent).items()]
    scorer(Round(number), messages)
    return trainer.outer.votes.accused


def test_an_accusation_ends_after_some_rounds_and_one_copy_is_no_vote(scored):
    trainer, scorer, events = scored
    one, honest = noise(trainer.outer, 0), iter(range(10, 1000))
    observe(trainer, scorer, 0, honest, **{"001": one})
    scorer.accuse(Round(0), "002", "does harm")
    assert observe(trainer, scorer, 1, honest, **{"001": one}) == ["002"]
    assert list(scorer.accused) == ["002", "001"]
    assert observe(trainer, scorer, LASTING, honest) == []
    assert list(scorer.accused) == ["001"]
    observe(trainer, scorer, LASTING + 1, honest)
    assert scorer.accused == {} and scorer.copiers == {}
    assert len(accusations(events)) == 2


def test_copies_in_two_rounds_are_a_vote(scored):
    trainer, scorer, events = scored
    sent = [noise(trainer.outer, seed) for seed in range(3)]
    honest = iter(range(10, 1000))
    observe(trainer, scorer, 0, honest, **{"001": sent[0], "002": sent[1]})
    votes = [observe(trainer, scorer, n, honest, **{"001": sent[0], "002": sent[2], "003": sent[0]}) for n in (1, 2)]
    assert votes == [[], ["001", "003"]]  # 003 repeats 001 in both rounds, 001 itself, and 002 itself in round 2 only
    assert list(accusations(events)) == ["001", "003", "002"]


def test_a_peer_whose_missed_payloads_a_liar_repeats_is_not_voted_out(scored):
    """002 sends each payload of 001 as its own, and 001's own ones do not count. 001 later sends them again."""
    trainer, scorer, events = scored
    honest = iter(range(10, 1000))
    for number in (0, 4, 8):
        missed = noise(trainer.outer, number)
        observe(trainer, scorer, number, honest, **{"002": missed})
        assert observe(trainer, scorer, number + 1, honest, **{"001": missed}) == []
    assert list(accusations(events)) == ["001"]
    assert accusations(events)["001"] == "repeats 100% of the payload of 002 of round 1"


def test_a_copier_that_also_fails_a_test_is_voted_out(scored):
    _, scorer, _ = scored
    scorer.accuse_copier(Round(0), "001", "repeats a payload")
    assert scorer.copiers == {"001": {0}}
    bad = Score(other=-1.0, benefit=Estimate(-1.0, 0.01))
    scorer.test(Round(1), {"001": bad}, {})
    assert scorer.copiers == {} and list(scorer.accused) == ["001"]


def test_losses_are_those_of_the_training_loop_and_leave_the_model_as_it_is():
    trainer = trainer_of()
    tokens = training_text(part_checks.make(load.load(SMALL).data), seq_len=16)
    windows = assigned_windows(tokens, commit=bytes(32), peer="0", numbers=range(5), seq_len=16)
    weights = {name: 2 * x for name, x in trainer.outer.slow.items()}
    before, state = {name: x.clone() for name, x in trainer.model.state_dict().items()}, torch.get_rng_state()
    losses = window_losses(trainer, weights, windows, batch=2)
    assert losses.shape == (5,) and trainer.model.training
    assert trainer.evaluate(windows, weights, batch=2) == pytest.approx(float(losses.sum()) * 16, rel=1e-5)
    assert all(torch.equal(x, before[name]) for name, x in trainer.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def run(monkeypatch, run_dir, *options):
    leave_figures_empty(monkeypatch)
    size = ["workers=3", "rounds=2", "schedule.sync_every=4", "eval.sequences=8", "threads=1", *options]
    monkeypatch.setattr(
        sys, "argv", ["outerloop", "train", *SMALL[:1], *SMALL[2:], *OPTIONS, *size, f"run_dir={run_dir}"]
    )
    assert main.main() == 0
    rows = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return json.loads((Path(run_dir) / "summary.json").read_text()), rows


def test_a_run_with_scores_ends_with_the_same_weights(tmp_path, monkeypatch):
    plain, rows = run(monkeypatch, tmp_path / "plain", "scores.payloads=0")
    assert not [row for row in rows if row["event"] in ("score", "accusation")]
    scored, rows = run(monkeypatch, tmp_path / "scored")
    assert scored["slow_hash"] == plain["slow_hash"] and scored["val_loss"] == plain["val_loss"]
    scores = [row for row in rows if row["event"] == "score"]
    assert len(scores) == 3 * 2 * 2  # every worker scores the payloads of the two others in both rounds
    assert {row["peer"] for row in scores} == {"000", "001", "002"}
    assert not [row for row in rows if row["event"] == "accusation"]
    voted, _ = run(monkeypatch, tmp_path / "voted", "exclude_accused=true")
    assert voted["slow_hash"] == plain["slow_hash"]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (["recipe=streaming_diloco", "schedule.delay=0"], "schedule=every_h"),
        (
            ["recipe=ddp"],
            "a recipe that sends pseudo-gradients and keeps slow weights equal, such as recipe=sparseloco",
        ),
        (["exchange=inprocess_gossip", "recipe=noloco"], "exchange=swarm_gather or exchange=inprocess"),
    ],
)
def test_configurations_whose_payloads_cannot_be_scored(options, needed):
    config = [*SMALL, *OPTIONS, *options]
    with pytest.raises(UserError, match=f"scores.payloads=9 needs {needed}, because") as error:
        part_checks.check_parts(load.load(config))
    assert str(error.value).endswith(f"set {needed}, or scores.payloads=0")
    part_checks.check_parts(load.load([*config, "scores.payloads=0"]))
