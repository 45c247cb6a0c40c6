"""The table and the figure of recipes: which rate is shown, and what is refused."""

import itertools
import json
import math
import sys
from argparse import Namespace
from dataclasses import asdict

import pytest
import show_recipes
from bench_recipes import Bench
from matplotlib.colors import to_hex

ROW = {"sync_every": 15, "workers": 4, "seed": 0, "lr": 1e-3, "inner_steps": 30, "bits_per_param_per_round": 32.0}


def row(case, loss, **other):
    return ROW | {"case": case, "val_loss": loss} | other


def shown(folder, monkeypatch, rows, *, inner_steps=30):
    """Show these runs. Their figure is written to the folder."""
    file = folder / "rows.json"
    file.write_text(json.dumps(rows))
    arguments = ["--json", file, "--inner-steps", inner_steps, "--picture", folder / "recipes.png"]
    monkeypatch.setattr(sys, "argv", ["show_recipes", *map(str, arguments)])
    show_recipes.main()


def test_cases_that_exchange_in_every_step_need_no_others(tmp_path, monkeypatch, capsys):
    shown(tmp_path, monkeypatch, [row("ddp", 2.0, sync_every=1), row("demo", 1.5, sync_every=1)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("H 1, 4 workers |") and "| ddp | 1e-03 | 32.000 | 2.000 (1) |" in lines
    assert (tmp_path / "recipes.png").exists()


def test_an_unknown_number_of_inner_steps_is_refused(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        shown(tmp_path, monkeypatch, [row("a", 2.0), row("a", 2.0, inner_steps=60)], inner_steps=600)
    assert "has no run of --inner-steps 600: choose one of 30, 60" in capsys.readouterr().err


def test_a_learning_rate_at_which_the_run_diverged_is_not_the_best(tmp_path):
    assert [r["lr"] for r in show_recipes.tuned([row("a", math.nan, lr=1.0), row("a", 2.0, lr=0.1)])] == [0.1]
    places = {"json": tmp_path / "rows.json", "cases": ["diloco_int8"], "sequences": 4, "options": []}
    sizes = {"sync_every": [15], "workers": [4], "seeds": [0], "lr": ["1.0", "0.1"], "tune_steps": 30}
    bench = Bench(Namespace(**places, **sizes))
    losses = zip(bench.tuning("diloco_int8"), (math.nan, 2.0), strict=True)
    bench.rows = [asdict(run) | {"lr": float(run.lr), "val_loss": loss} for run, loss in losses]
    assert bench.best_lr("diloco_int8") == "0.1"


def test_no_two_of_many_cases_look_the_same(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.plot",
        lambda self, *_, marker, color, label: looks.append((marker, to_hex(color))),
    )
    found = {(f"case {number:02}", 15, 4): [row("a", 2.0)] for number in range(40)}
    monkeypatch.setattr("matplotlib.axes.Axes.legend", lambda *_, **__: None)
    show_recipes.draw(found, [15], [4], tmp_path / "recipes.png")
    assert all(a != b for a, b in itertools.combinations(looks, 2)) and len(looks) == 40
