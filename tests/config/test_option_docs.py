"""Options, defaults and comments as read from the yaml files."""

import pytest
import yaml
from omegaconf import OmegaConf

from outerloop.commands import options
from outerloop.config import load
from outerloop.config.options.option_docs import all_choices, read_choice
from outerloop.types import UserError

FILE = """\
# @package _global_
# What this
# choice does.
defaults:
  - base
  - override /method: sign  # with this method
  - _self_

recipe: mine
rounds: 3        # how many
run_dir: null    # a long
                 # comment
# above its option,
# on two lines
seed: 1
schedule:
  sync_every: 7
  _target_: x.Y
  worker: 0      # set by the program: not an option
  part: null
"""
BASE = """\
# @package _global_
schedule:
  sync_every: 2  # steps between
  delay: 0       # late
  part:
    k: 1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/mine.yaml").write_text(FILE)
    (tmp_path / "recipe/base.yaml").write_text(BASE)
    return tmp_path


def test_comments_belong_to_their_options(folder):
    choice = read_choice(folder, "recipe", "mine")
    assert choice.comment == "What this choice does." and choice.selects == {"method": "sign"}
    assert [(o.name, o.default, o.comment) for o in choice.options] == [
        ("rounds", "3", "how many"),
        ("run_dir", "null", "a long comment"),
        ("seed", "1", "above its option, on two lines"),
        ("schedule.sync_every", "7", "steps between"),
        ("schedule.delay", "0", "late"),
    ]


EXTENDING = ["topk_bins", "topk_int8", "powersgd_warm", "muon", "swarm_gather", "diloco", "demo", "text"]
"""Choices that extend others or replace a part of them."""


@pytest.mark.parametrize("name", EXTENDING)
def test_every_option_exists_and_has_its_default(name):
    """In a run with this choice, as hydra composes it."""
    [choice] = [choice for choice in all_choices() if choice.name == name and choice.group != "method"]
    config = load.compose_config([f"{choice.group}={name}"])
    assert choice.options
    for option in choice.options:
        found, default = OmegaConf.select(config, option.name, default="absent"), yaml.safe_load(option.default)
        assert found == default or "$" in option.default, option.name
        assert found != "absent", option.name


def test_options_lists_a_group_a_choice_or_what_contains_a_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert options.main(["schedule"]) == 0
    said = capsys.readouterr().out
    assert "schedule=streaming" in said and "  schedule.sync_every=30" in said and "\nrecipe=" not in said
    assert max(map(len, said.splitlines())) <= 100
    options.main(["recipe=diloco"])
    said = capsys.readouterr().out
    assert "Selects method=diloco compress=identity" in said and "schedule.sync_every=100" in said
    options.main(["residual"])
    assert "feedback=ef" in capsys.readouterr().out
    options.main([])
    assert len(capsys.readouterr().out.splitlines()) > 300
    with pytest.raises(UserError, match="contains 'shedule': run outerloop options schedule"):
        options.main(["shedule"])
