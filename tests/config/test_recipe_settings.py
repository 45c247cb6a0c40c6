"""What every recipe is set to, against its paper: the table recipe_settings.csv.

recipes   names of recipes, with spaces between
key       of an option, as it is typed
value     what these recipes come to
source    paper (arXiv number and place) or public code that the value is from; empty for a choice of our own
why       how the value departs from the source, or why it was chosen; empty where it is the source's
"""

import csv
import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from outerloop.config import load

TABLE = Path(__file__).parent / "recipe_settings.csv"
AXES = ("method", "compress", "feedback", "aggregate", "schedule", "merge_local", "eager")


def rows():
    with TABLE.open() as file:
        return list(csv.DictReader(file))


def expected_of(recipe):
    """Key -> value, of the rows that name this recipe."""
    found = [(row["key"], yaml.safe_load(row["value"])) for row in rows() if recipe in row["recipes"].split()]
    assert len(dict(found)) == len(found), f"two rows for one option of {recipe}"
    return dict(found)


def leaves(node, path):
    """Dotted key -> value of everything below a node that is no dictionary."""
    if not isinstance(node, dict):
        return {path: node}
    return {key: x for name, below in node.items() for key, x in leaves(below, f"{path}.{name}").items()}


def settings_of(*overrides):
    """Every option of the axes that a recipe comes to."""
    whole = OmegaConf.to_container(load.load(overrides), resolve=True)
    found = {key: value for axis in AXES for key, value in leaves(whole[axis], axis).items()}
    return {key: value for key, value in found.items() if not key.endswith("._partial_")}


def differences(expected, found):
    """One line for each option that differs, is new, or is gone."""
    keys = sorted(expected.keys() | found.keys())
    shown = [(key, expected.get(key, "no row"), found.get(key, "no such option")) for key in keys]
    return [f"{key}: the table has {there}, the recipe {here}" for key, there, here in shown if there != here]


@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_a_recipe_is_what_the_table_says(recipe):
    """No option without a row: a default that creeps in from the file of an axis is seen here."""
    assert differences(expected_of(recipe), settings_of(f"recipe={recipe}")) == []


def test_a_default_that_creeps_in_is_seen():
    """randomk's own k of 128, 3.1 % of the weights, once stood in for SPARTA's .5 %."""
    found = differences(expected_of("sparta"), settings_of("recipe=sparta", "compress.k=128"))
    assert found == ["compress.k: the table has 20, the recipe 128"]
    one_more = settings_of("recipe=sparta") | {"feedback.beta": 0.95}
    assert differences(expected_of("sparta"), one_more) == ["feedback.beta: the table has no row, the recipe 0.95"]


def test_every_row_says_where_its_value_is_from():
    known = set(load.groups()["recipe"])
    for row in rows():
        assert None not in row and set(row["recipes"].split()) <= known, row
        assert row["source"] or row["why"], row
        assert re.match(r"arXiv \d{4}\.\d{5}|code of |$", row["source"]), row


def test_sparta_averages_half_a_percent():
    sent = settings_of("recipe=sparta")
    assert sent["compress.k"] / sent["compress.chunk"] == pytest.approx(0.005, rel=0.03)
