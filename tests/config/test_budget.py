"""steps= and tokens=: as many rounds as fit, whatever the recipe."""

import pytest

from outerloop.config import budget, load
from outerloop.config.options.resumed_settings import comparable
from outerloop.config.shared_settings import fingerprint
from outerloop.types import UserError


@pytest.mark.parametrize("recipe", ["ddp", "diloco", "sparseloco", "streaming_diloco"])
def test_every_recipe_takes_as_many_steps(recipe):
    settings = load.load([f"recipe={recipe}", "steps=3000"])
    assert settings.rounds * settings.schedule.sync_every == 3000
    if recipe == "ddp":
        assert settings.method.lr_factor.total_steps == 3000, "the learning rate decays over the budget"


def test_the_largest_number_of_rounds_that_fits():
    assert load.load(["steps=44"]).rounds == 2 and load.load(["steps=45"]).rounds == 3


def test_tokens_are_those_of_all_workers():
    work = ["workers=2", "inner.batch=4", "inner.accumulate=3", "inner.seq_len=32", "schedule.sync_every=5"]
    tokens = 2 * 4 * 3 * 32 * 5
    assert load.load([*work, f"tokens={7 * tokens}"]).rounds == 7
    assert load.load([*work, f"tokens={7 * tokens - 1}"]).rounds == 6
    assert load.load([*work, f"tokens={8 * tokens}", "exchange.peers=8"]).rounds == 2


def test_a_run_with_a_budget_is_the_run_with_these_rounds():
    budget, rounds = load.load(["recipe=diloco", "steps=500"]), load.load(["recipe=diloco", "rounds=5"])
    assert comparable(budget) == comparable(rounds) and fingerprint(budget) == fingerprint(rounds)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["steps=10"], "less than one round of schedule.sync_every=15: set steps=15"),
        (["steps=0"], "steps=0 must be greater than or equal to 1"),
        (["tokens=many"], "tokens=many must be a valid integer"),
        (["steps=30", "tokens=9"], "both set: omit one"),
        (["steps=30", "rounds=2"], "steps determines the number of rounds: omit rounds="),
        (["steps=30", "schedule=adaptive"], "need a schedule with a fixed H"),
        (["steps=30", "schedule=every_seconds"], "need a schedule with a fixed H"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(typed, said):
    with pytest.raises(UserError, match=said) as error:
        load.load(typed)
    assert "\n" not in str(error.value)


def test_a_sweep_of_unequal_work_is_told_the_next_equal_budget():
    def warning(*options):
        return budget.unequal_work([load.load([f"recipe={recipe}", *options]) for recipe in ("sparseloco", "diloco")])

    assert warning("steps=300") is None
    assert "train for 90 or 100 steps" in warning("steps=100") and "set steps=300," in warning("steps=100")
    assert "train for 900 or 1000 steps" in warning() and "set steps=1200," in warning(), "each recipe has its rounds"
    assert warning("schedule=adaptive") is None, "its H is not known before the run"
    per_step = 4 * 8 * 128
    assert f"set tokens={300 * per_step}," in warning(f"tokens={100 * per_step}")
