"""The losses on the pages of results and methods are those of scripts/results, and every recipe has its section."""

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest
import show_table

from outerloop.config import load

ROOT = Path(__file__).parents[2]
RESULTS, METHODS = ((ROOT / "docs" / page).read_text() for page in ("results.md", "explanation/methods.md"))
LONG = json.loads((ROOT / "scripts/results/recipes/rows-long.json").read_text())
CASES = {  # row of a table -> case in rows-long.json
    "muloco": "muloco",
    "ddp, every step": "ddp",
    "ddp (every step)": "ddp",
    "outerloop_v1": "outerloop",
    "sparseloco": "sparseloco",
    "sparseloco, dense at first": "sparseloco_warm",
    "sparseloco, k 64": "sparseloco_k64",
    "diloco 0.7/0.6": "diloco_.7_.6",
    "diloco, outer momentum 0.6": "diloco_.7_.6",
    "loco, int4": "loco_int4",
    "loco": "loco_int4",
    "noloco": "noloco",
}


def losses(case: str, sync_every: int) -> str:
    """Return the loss of seeds 0 and 1 at the better learning rate, as the tables show it; empty if it was not run."""
    by_rate = defaultdict(list)
    for row in LONG:
        fits = (row["case"], row["workers"], row["inner_steps"]) == (case, 4, 3000) and row["seed"] < 2
        if fits and row["sync_every"] in (sync_every, 1):
            by_rate[row["lr"]].append(row["val_loss"])
    if not by_rate:
        return ""
    best = min(by_rate.values(), key=mean)
    return f"{mean(best):.3f}" + (" (1)" if len(best) == 1 else "")


@pytest.mark.parametrize("page", [RESULTS, METHODS], ids=["results", "methods"])
def test_losses_are_those_of_the_recorded_runs(page):
    (table,) = re.findall(
        r"\| recipe \| bits per parameter and round \| H 15 \| H 30 \| H 100 \|\n(.*?)\n\n", page, re.S
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    assert len(rows) >= 7
    for name, _, *shown in rows:
        case = CASES[name.replace("`", "")]
        assert shown == [losses(case, sync_every) for sync_every in (15, 30, 100)], name


def gap_with_seeds(rows, reference):
    """Return the gap as the page shows it, with the number of paired seeds; empty if the reference was not run."""
    pairs, text = len(show_table.paired_gaps(rows, reference)), show_table.gap_text(rows, reference)
    return f"{text.removesuffix(' (1)')} ({pairs})" if pairs else ""


REFERENCES = ("ddp_muon", "muloco", "outerloop_v1", "outerloop_v3")
"""The cases to which recipe=outerloop is compared, in the order of the columns."""


def cells_of(cases):
    """Return the cells of a line of the page: mean losses of seeds 0 to 3, then the gaps of recipe=outerloop."""
    first_four = [[row for row in cases[name] if row["seed"] < 4] for name in ("ddp_muon", "muloco", "outerloop")]
    gaps = [gap_with_seeds(cases["outerloop"], cases.get(name, [])) for name in REFERENCES]
    return [*(f"{show_table.mean_loss(rows):.4f}" for rows in first_four), *gaps]


def test_gaps_to_data_parallel_training_are_those_of_the_records():
    groups = show_table.table(json.loads((ROOT / "scripts/results/table/rows.json").read_text()))
    lines = re.findall(r"^\| ([\d,]+), (\d), (\d+) \| (.*) \|$", RESULTS, re.MULTILINE)
    assert len(lines) == 7
    for steps, workers, h, cells in lines:
        cases = groups[1033344, int(steps.replace(",", "")), 16, int(workers), int(h)]
        assert [cell.strip(" *") for cell in cells.split("|")] == cells_of(cases), (steps, workers, h)
    lines = re.findall(r"^\| 8\.36M, ([\d,]+) \| (.*) \|$", RESULTS, re.MULTILINE)
    assert [steps for steps, _ in lines] == ["480", "1,000"]
    for (steps, cells), sequences in zip(lines, (16, 64), strict=True):
        cases = groups[8359296, int(steps.replace(",", "")), sequences, 4, 30]
        assert [cell.strip(" *") for cell in cells.split("|")] == cells_of(cases), steps
    text = " ".join((ROOT / "README.md").read_text().split())
    first, second = (gap.split(" (")[0] for gap in re.findall(r"\*\*\+(.*? %.*?)\*\*", RESULTS)[:2])
    for steps, gap in (("3,000", first), ("600", second)):
        assert f"| recipe=outerloop, Muon | {steps} | {gap} |" in text
    [gap] = show_table.paired_gaps(*(groups[1033344, 20190, 16, 4, 15][name] for name in ("outerloop_v3", "ddp_muon")))
    assert f"| version 3 of this recipe, Muon | 20,190 | {100 * gap:.1f} % (one seed) |" in text


def test_gaps_with_adamw_inside_are_those_of_the_records():
    groups = show_table.table(json.loads((ROOT / "scripts/results/table/rows.json").read_text()))
    lines = re.findall(r"^\| (\d), (\d+) \| ([\d.]+) \| (.*?) \| ([\d.]+) \| (.*?) \|$", RESULTS, re.MULTILINE)
    assert len(lines) == 6
    for workers, h, *shown in lines:
        cases = groups[1033344, 600, 16, int(workers), int(h)]
        recorded = []
        for name in ("diloco", "sparseloco"):
            assert len(show_table.paired_gaps(cases[name], cases["ddp_adamw"])) == 4
            recorded += [
                f"{show_table.mean_loss(cases[name]):.4f}",
                show_table.gap_text(cases[name], cases["ddp_adamw"]),
            ]
        assert shown == recorded
    assert f"whose loss is {show_table.mean_loss(cases['ddp_adamw']):.4f}" in " ".join(RESULTS.split())
    gaps = {name: gap.lstrip("+") for name, gap in zip(("diloco", "sparseloco"), lines[0][3::2], strict=True)}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert [gap for name, gap in gaps.items() if f"| recipe={name}, AdamW | 600 | {gap} |" not in text] == []


def test_the_tables_on_the_page_of_the_records_are_those_of_the_records():
    folder = ROOT / "scripts/results/table"
    tables = show_table.markdown(show_table.table(json.loads((folder / "rows.json").read_text())))
    assert show_table.MARKS[0] + "\n" + tables + "\n" + show_table.MARKS[1] in (folder / "COMMAND.md").read_text()


def test_the_default_job_is_the_recorded_one():
    summary = json.loads((ROOT / "scripts/results/default-job/summary.json").read_text())
    assert f"{summary['val_loss_initial']:.3f} to {summary['val_loss']:.3f} nats" in RESULTS
    assert f"{summary['bits_per_param_per_round']:.3f} bits" in " ".join(RESULTS.split())
    assert f"{summary['ratio_to_fp32']:.0f} times fewer" in RESULTS


def test_every_folder_of_results_is_linked():
    folders = sorted(path.name for path in (ROOT / "scripts/results").iterdir() if (path / "COMMAND.md").exists())
    assert [name for name in folders if f"scripts/results/{name}/COMMAND.md" not in RESULTS] == []


def test_every_recipe_has_a_section():
    sections = set(re.findall(r"^(?:## |\*\*)(\w+)", METHODS, re.MULTILINE))
    assert load.groups()["recipe"] and set(load.groups()["recipe"]) <= sections
