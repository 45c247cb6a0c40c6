"""The check of a sweep before its first run: which combinations are loaded, and which settings of hydra are refused."""

from __future__ import annotations

import pytest

from outerloop.config import load
from outerloop.config.options import sweep_check
from outerloop.config.options.compose import groups
from outerloop.types import UserError

SAMPLED = ["seed=range(0,1000)", "recipe=diloco,ddp", "inner.lr=interval(0.1,0.5)", "rounds=3"]


def test_a_sweeper_that_samples_has_each_value_checked_once():
    """Not the product of 2,000 combinations."""
    first = {"seed=0", "recipe=diloco", "inner.lr=0.1", "rounds=3"}
    found = [{*combination} for combination in sweep_check.combinations(SAMPLED, samples=True)]
    assert found[0] == first
    assert [combination - first for combination in found[1:]] == [{"seed=1000"}, {"recipe=ddp"}, {"inner.lr=0.5"}]
    assert len(sweep_check.combinations(SAMPLED)) == 2000
    assert sweep_check.combinations(["seed=range(4,1)", *SAMPLED], samples=True) == []


@pytest.mark.parametrize(("sweeper", "number"), [("basic", 400), ("optuna", 3)])
def test_a_long_check_prints_its_progress(sweeper, number, monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr(load, "load", loaded.append)
    overrides = ["seed=range(0,200)", "rounds=1,2", f"hydra/sweeper={sweeper}"]
    configs = sweep_check.load_combinations(overrides, sweep_check.hydra_settings(overrides))
    assert len(loaded) == len(configs) == number
    lines = [f"checked {done} of {number} combinations of options" for done in range(100, number + 1, 100)]
    assert capsys.readouterr().out.splitlines() == lines


def test_a_pattern_stands_for_the_choices_that_it_matches():
    recipes = sorted(groups()["recipe"])
    begin_with_d = ",".join(name for name in recipes if name.startswith("d"))
    without_ddp = ",".join(name for name in recipes if name != "ddp")
    overrides = ["seed=0,1", "recipe=glob(d*)", "+recipe=glob(*,exclude=ddp)", "method=glob(diloco)"]
    expanded = ["seed=0,1", f"recipe={begin_with_d}", f"+recipe={without_ddp}", "method=diloco"]
    assert sweep_check.expand_globs(overrides) == expanded
    assert load.parse_overrides(expanded)[1].is_sweep_override()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("recipe=glob(x*)", r"recipe=glob\(x\*\) matches no choice of recipe, which has .*ddp.*: set recipe=A,B"),
        ("rounds=glob(*)", r"rounds=glob\(\*\) matches no choice of rounds, which has none: set rounds=A,B"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_in_one_line(typed, said):
    with pytest.raises(UserError, match=said) as error:
        sweep_check.expand_globs(["seed=0,1", typed])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("hydra/launcher=joblibb", "hydra/launcher=joblibb: hydra/launcher must be one of basic, .*: set one of these"),
        ("hydra/sweeper=none", "hydra/sweeper=none: hydra/sweeper must be one of basic.*: set one of these"),
        ("hydra.sweeper.trials=3", "Could not override 'hydra.sweeper.trials': run outerloop train --cfg hydra"),
        ('hydra.sweeper.params={rounds:"interval(1,4)"}', "cannot be set: sweep the option itself, such as 'rounds="),
        ('+hydra.sweeper.params.rounds="1,2"', "cannot be set: sweep the option itself, such as 'rounds="),
        ("rounds=interval(1,4)", r"rounds=interval\(1,4\) needs a sweeper that samples values: add hydra/sweeper="),
    ],
)
def test_settings_of_hydra_that_do_not_apply_are_refused_in_one_line(typed, said):
    overrides = ["seed=0,1", typed]
    with pytest.raises(UserError, match=said) as error:
        sweep_check.load_combinations(overrides, sweep_check.hydra_settings(overrides))
    assert "\n" not in str(error.value)
