"""The README is short, names every recipe, and its numbers and links are those of the repository."""

import json
import re
from statistics import mean

import pytest
import show_table

from outerloop.config import load
from tests.support.documents import PAGES, ROOT, name_of

README = (ROOT / "README.md").read_text()
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")


def test_it_is_at_most_200_lines():
    assert len(README.splitlines()) <= 200


def test_every_recipe_has_its_row():
    rows = set(re.findall(r"^\| ([a-z_0-9]+)", README, flags=re.MULTILINE))
    assert set(load.groups()["recipe"]) <= rows


def test_the_losses_and_bits_of_the_recipes_are_those_of_the_published_runs():
    published = (ROOT / "scripts/results/recipes/COMMAND.md").read_text()
    names = {
        "streaming_diloco": "streaming",
        "loco": "loco_int4",
        "diloco": "diloco_.7_.6",
        "outerloop_v1": "outerloop",
    }
    rows = re.findall(
        r"^\| (?!outerloop \||ddp, Muon)(\w+)[^|]*\|[^|]*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+)",
        README,
        flags=re.MULTILINE,
    )
    assert {name for name, *_ in rows} | {"outerloop"} == set(load.groups()["recipe"])
    for name, round_bits, step_bits, loss in rows:
        shown = re.escape(names.get(name, name))
        row = re.search(rf"^\| {shown}(?:,[^|]*)? \|[^|]*\| ([\d.]+) \| ([\d.]+)", published, re.MULTILINE)
        assert row and float(row[2]) == float(loss), name
        assert float(round_bits) == pytest.approx(float(row[1]), rel=5e-3), name
        every = 1 if name in ("ddp", "demo", "sparta") else 15
        assert float(step_bits) == pytest.approx(float(round_bits) / every, rel=5e-3), name


@pytest.mark.parametrize(("name", "case"), [("ddp, Muon", "ddp_muon"), ("outerloop", "outerloop")])
def test_losses_and_bits_of_the_table_are_those_of_its_records(name, case):
    groups = show_table.table(json.loads((ROOT / "scripts/results/table/rows.json").read_text()))
    [cells] = re.findall(rf"^\| {name} \|[^|]*\| (.*) \|$", README, flags=re.MULTILINE)
    round_bits, step_bits, *shown = map(float, cells.split(" | "))
    for steps, loss in zip((600, 3000), shown, strict=True):
        found = [row for row in groups[1033344, steps, 16, 4, 15][case] if row["seed"] < 2]
        assert len(found) == 2 and round(mean(row["nats"] for row in found), 3) == loss
        assert found[0]["bits_per_param_per_round"] == pytest.approx(round_bits, rel=5e-3)
        assert found[0]["bits_per_param_per_step"] == pytest.approx(step_bits, rel=5e-3)


def test_the_numbers_are_those_of_the_published_run():
    summary = json.loads((ROOT / "scripts/results/default-job/summary.json").read_text())
    assert f"{summary['val_loss_initial']:.3f} -> {summary['val_loss']:.3f} nats" in README
    assert f"{summary['bits_per_param_per_round']:.3f} bits per parameter and round" in README


def test_the_largest_model_of_a_swarm_is_that_of_the_recorded_runs():
    files = (ROOT / "scripts/results/wan").glob("*.json")
    sizes = {size for file in files for size in map(int, re.findall(r'"params": (\d+)', file.read_text()))}
    assert f"[{max(sizes) / 1e6:.1f}M parameters](scripts/results/wan/COMMAND.md)" in README


def test_it_names_the_command_that_decides_whether_a_change_lands():
    assert "scripts/test.sh" in README and "scripts/test.sh" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(page):
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).is_file()] == []
