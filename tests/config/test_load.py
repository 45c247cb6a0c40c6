"""The command line: what composes, and the one line that answers what does not."""

import pytest
from omegaconf import OmegaConf

from outerloop.config import instantiate, load
from outerloop.types import UserError


@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_every_recipe_composes_and_builds(recipe):
    settings = load.load([f"recipe={recipe}"])
    assert settings.recipe == recipe
    for axis in ("method", "compress", "feedback", "aggregate", "schedule"):
        instantiate.make(settings[axis])


def refuses():
    raise ValueError


def test_an_error_without_a_message_is_named_by_its_class():
    with pytest.raises(UserError, match=r"refuses: ValueError$"):
        instantiate.make(OmegaConf.create({"_target_": f"{__name__}.refuses"}))


def test_the_swarm_knows_how_many_fragments_a_round_has():
    streaming = load.load(["recipe=streaming_diloco", "schedule.fragments=3", "exchange=swarm_gather"])
    assert streaming.exchange.fragments == 3 and load.load(["recipe=sparseloco"]).exchange.fragments == 1


def test_the_command_line_wins_over_the_recipe_and_that_over_the_axis():
    assert load.load(["recipe=diloco"]).schedule.sync_every == 100
    assert load.load(["recipe=diloco", "schedule.sync_every=7"]).schedule.sync_every == 7
    assert "identity" in load.load(["recipe=sparseloco", "compress=identity"]).compress._target_
    assert load.load(["recipe=streaming_diloco", "merge_local=carry"]).merge_local == "carry"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("recipe=sparsloco", "recipe must be one of .*: set recipe=sparseloco"),
        ("recip=diloco", "recip: no such option; the options are .*: set recipe"),
        ("exchange=carrier_pigeon", "exchange must be one of .*inprocess"),
        ("schedule.sync_evry=3", "schedule has sync_every, delay, early: set schedule.sync_every"),
        ("inner.optimizer.betta=[0.9,0.9]", "inner.optimizer has lr, betas"),
        ("workers=0", "workers=0 must be at least 1: set workers=4"),
        ("rounds=-1", "rounds=-1 must be at least 1"),
        ("rounds=many", "rounds must be a whole number: set rounds=60"),
        ("rounds=2.5", "rounds must be a whole number"),
        ("threads=0", "threads=0 must be a whole number of at least 1, or null: set threads=1"),
        ("threads=all", "threads=all must be a whole number"),
        ("rounds=null", "rounds=None must be at least 1: set rounds=60"),
        ("eval.sequences=3", "less than one per worker: set eval.sequences=4"),
        ("inner.lr=fast", "inner.lr must be a number: set inner.lr="),
        ("inner.compile=3", "inner.compile must be true or false"),
        ("merge_local=keep", "merge_local must be a number: set merge_local=0.0"),
        ("merge_local=2", "merge_local=2 must be 0 .. 1, or carry: set merge_local=0.5"),
        ("state_dtype=float8", "state_dtype=float8 is not one of float32, float64"),
        ("method=ddp", "set schedule=every_h schedule.sync_every=1"),
        ("inner=gradients", "set inner=adamw"),
        ("rounds", "'rounds' is not an option"),
        ("lr=1e-3", "lr: no such option: set inner.lr=1e-3"),
        ("device=cpu", "device: no such option: set inner.device=cpu"),
        ("+rounds=3", r"\+rounds: the option already exists: set rounds=3"),
        ("data.files=a.txt", "data.files is an option of data=text and data=tokens"),
        ("exchange.together=3", "exchange.together is an option of exchange=distributed_gossip"),
        ("inner.optimizer.betas=3", r"inner.optimizer.betas must be a list: set inner.optimizer.betas=\[0.9, 0.95\]"),
        ("compress.large.values.chunk=q", "compress.large.values.chunk=q must be int or null"),
        ("feedback.beta=much", "feedback.beta must be a number"),
        ("rounds=[", "options look like"),
    ],
)
def test_bad_input_is_answered_in_one_line(override, said):
    with pytest.raises(UserError, match=said) as error:
        load.load([override])
    assert "\n" not in str(error.value)
