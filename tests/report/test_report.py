"""Reports: numbers that can be checked by hand, runs that died, folders of runs, and the page itself."""

import json
import math
import re

import pytest
from omegaconf import OmegaConf

from outerloop.commands import main
from outerloop.commands import report as command
from outerloop.config import load
from outerloop.config.options.resumed_settings import MUST_MATCH, may_differ
from outerloop.launcher.train import train
from outerloop.report import runs, setting_diff, simulated_clock, table
from outerloop.report.curves import spreads
from outerloop.report.groups import Comparison
from outerloop.report.units import Stat, format_count, format_small, format_stat, parse_bandwidth
from outerloop.types import UserError

PAYLOAD, COPIES, STEP_S, WAIT_S, SYNC = 1000, 3, 0.5, 7.0, 4
"""Of the runs made here: bytes a round, copies of them, seconds an inner step, seconds waited a round, H."""


def rows_of(losses, *, spread=None):
    """Two workers, one validation after each round; between two rounds SYNC steps of STEP_S and a wait of WAIT_S."""
    rows, wall_s = [{"event": "ready", "worker": w, "step": 0, "wall_s": 0.0} for w in range(2)], 0.0
    for number, loss in enumerate(losses):
        if number:
            wall_s += SYNC * STEP_S + WAIT_S
            for w in range(2):
                base = {"worker": w, "step": SYNC * number, "wall_s": wall_s}
                sent = {"payload_bytes": PAYLOAD, "bytes_sent": COPIES * PAYLOAD * number}
                rows.append({"event": "step", "loss": loss + 0.5, **base})
                rows.append({"event": "round", "round": number, "wait_s": WAIT_S, **sent, **base})
        wall_s += 100.0  # an evaluation: no part of any clock
        rows += [{"event": "eval", "worker": w, "step": SYNC * number, "wall_s": wall_s} for w in range(2)]
        whole = {"event": "validation", "step": SYNC * number, "round": number, "tokens": 10 * number}
        rows.append({**whole, "val_loss": loss, "wall_s": wall_s, **({"spread": spread} if spread else {})})
    return rows


def make_run(folder, losses, *, recipe="diloco", seed=0, finished=True, rows=None, spread=None, sent=None, extra=""):
    """A run folder by hand."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"recipe: {recipe}\nseed: {seed}\nrun_dir: {folder}\nrounds: 2\nschedule:\n  sync_every: {SYNC}\n{extra}"
    )
    rows = rows or rows_of(losses, spread=spread)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sent = sent or COPIES * PAYLOAD * (len(losses) - 1)
    numbers = {"val_loss": losses[-1], "bits_per_param_per_round": 2.0, "bytes_sent_per_worker": sent}
    if finished:
        (folder / "summary.json").write_text(json.dumps({**numbers, "tokens": 20, "wait_s": 14.0, "wall_s": 318.0}))
    return folder


def compare(folder, **options):
    return Comparison([runs.read(path) for path in runs.find([folder])], **{"baseline": None} | options)


def group(comparison, label):
    return next(group for group in comparison.groups if group.label == label)


def test_seeds_are_one_group_with_mean_deviation_and_gap(tmp_path):
    """Losses 1.9, 2.0, 2.1: mean 2, deviation .1; against 1.6: 25 % more."""
    for seed, loss in enumerate((1.9, 2.0, 2.1)):
        make_run(tmp_path / f"diloco-{seed}", [5, 3, loss], seed=seed)
    make_run(tmp_path / "ddp", [5, 2, 1.6], recipe="ddp")
    comparison = compare(tmp_path)
    assert [g.label for g in comparison.groups] == ["ddp", "diloco"]
    loss = group(comparison, "diloco").stat("val_loss")
    assert (loss.n, round(loss.mean, 9), round(loss.std, 9)) == (3, 2.0, 0.1)
    assert comparison.gap_percent(group(comparison, "diloco")) == pytest.approx(25.0)
    assert comparison.gap_percent(group(comparison, "ddp")) is None
    assert comparison.notes() == []


def test_the_state_that_newcomers_download_is_no_payload(tmp_path):
    """Worker 0 uploads a state of 10 MB during the first round: its copies and the clock are as without it."""
    rows, state = rows_of([5, 3, 2.5]), 10_000_000
    for row in rows:
        if row["event"] == "round" and row["worker"] == 0:
            row.update(bytes_sent=row["bytes_sent"] + state, state_bytes_sent=float(state))
    plain, giver = make_run(tmp_path / "a", [5, 3, 2.5]), make_run(tmp_path / "b", [5, 3, 2.5], rows=rows, seed=1)
    total = json.loads((plain / "summary.json").read_text())
    total["bytes_sent_per_worker"] += state
    (giver / "summary.json").write_text(json.dumps(total | {"state_bytes_sent_per_worker": float(state)}))
    first, second = runs.read(plain), runs.read(giver)
    assert second.seconds(1e6) == first.seconds(1e6) and second.sent_bytes() == first.sent_bytes()
    assert second.results[runs.PAYLOADS_SENT] == first.results["bytes_sent_per_worker"] == 2 * COPIES * PAYLOAD
    assert table.results(compare(tmp_path)).rows[0][4].startswith("6.00 kB"), "no deviation: both sent the same"


@pytest.mark.parametrize("name", ["worker", "step", "round", "bytes_sent", "state_bytes_sent"])
def test_a_round_with_a_count_that_is_not_finite_is_damaged(tmp_path, name):
    row = {"event": "round", "worker": 0, "step": 4, "wall_s": 1.0, "round": 1, "wait_s": 0.0, "bytes_sent": 1}
    make_run(tmp_path / "run", [5, 3], rows=[*rows_of([5, 3]), row | {"payload_bytes": 1, name: math.nan}])
    run = runs.read(tmp_path / "run")
    assert run.damaged_lines == 1 and run.last_round == 1 and len(run.step_rates) == 2


@pytest.mark.parametrize("event", ["step", "eval"])
def test_a_row_without_a_number_of_seconds_waited_is_damaged(tmp_path, event):
    row = {"event": event, "worker": 0, "step": 4, "wall_s": 500.0, "loss": 1.0, "wait_s": None}
    run = runs.read(make_run(tmp_path / "run", [5, 3], rows=[*rows_of([5, 3]), row]))
    assert run.damaged_lines == 1 and len(run.step_rates) == 2


@pytest.mark.parametrize(
    ("losses", "note"),
    [
        ([[5, 3, 2], [5, 3, math.nan]], "1 of 2 runs of diloco diverged after round 1: the mean curve ends there"),
        (
            [[5, 3, math.inf], [5, math.nan, math.nan]],
            "2 of 2 runs of diloco diverged, the first after round 0: the mean curve ends there",
        ),
        ([[5, math.inf, 2], [5, 3, 2]], ""),
    ],
    ids=["one", "both", "for a while"],
)
def test_a_curve_that_ends_because_a_run_diverged_has_a_note(losses, note, tmp_path):
    for seed, of_seed in enumerate(losses):
        make_run(tmp_path / f"{seed}", of_seed, seed=seed)
    assert [note for note in compare(tmp_path).notes() if "diverged" in note] == ([note] if note else [])


def test_runs_that_cannot_be_read_are_unfinished(tmp_path):
    make_run(tmp_path / "good", [5, 3])
    make_run(tmp_path / "bad", [5, 3])
    (tmp_path / "bad/metrics.jsonl").unlink()
    (tmp_path / "bad/metrics.jsonl").mkdir()
    assert command.main([str(tmp_path)]) == 0
    run = runs.read(tmp_path / "bad")
    assert run.why == "metrics.jsonl cannot be read (Is a directory)" and run.results is None
    assert run.why in (tmp_path / "report/report.html").read_text()


def test_runs_that_are_links_are_found_once(tmp_path):
    make_run(tmp_path / "elsewhere/one", [5, 3])
    folder = tmp_path / "runs"
    make_run(folder / "two", [5, 3])
    (folder / "a-link").symlink_to(tmp_path / "elsewhere/one")
    (folder / "also-two").symlink_to("two")
    (folder / "loop").symlink_to(folder)
    (folder / "gone").symlink_to(tmp_path / "nothing")
    assert runs.runs_under(folder) == [folder / "two", folder / "a-link"]


def test_settings_that_may_change_on_resume_do_not_split_groups():
    """Except those that decide the first weights, the shards of an island, or which peers count in a round."""
    chosen = [[f"exchange={kind}"] for kind in load.groups()["exchange"] if kind != "folder"]
    chosen += [["exchange=folder", "exchange.folder=f"], ["data=shared", "data.sha256=a"]]
    configs = [OmegaConf.to_container(load.load(options), resolve=True) for options in chosen]
    keys = {key for config in configs for key in runs.flatten(config)}
    free = {key for key in keys if may_differ(key) and key not in MUST_MATCH}
    rules = (
        "absent_rounds",
        "deadline_s",
        "grace_s",
        "min_fraction",
        "min_peers",
        "quorum",
        "patience",
        "least_patience_s",
        "most_patience_s",
    )
    kept = setting_diff.training_settings(dict.fromkeys(free)).keys()
    assert kept == {"init_from", "island.ranks", *(f"exchange.{rule}" for rule in rules)}
    assert len(free) > 50


@pytest.mark.parametrize(("base", "loss", "percent"), [(-2.0, -1.9, 5.0), (-2.0, -2.1, -5.0), (0.0, 1.0, None)])
def test_a_gap_has_the_sign_of_the_difference(tmp_path, base, loss, percent):
    """.1 more than -2 is 5 % more; there is no percentage of 0."""
    make_run(tmp_path / "ddp", [5, base], recipe="ddp")
    make_run(tmp_path / "a", [5, loss])
    comparison = compare(tmp_path)
    assert comparison.gap_percent(group(comparison, "diloco")) == (percent and pytest.approx(percent))


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_group_with_a_loss_that_is_not_finite_has_no_deviation(tmp_path, loss):
    make_run(tmp_path / "a", [5, loss])
    make_run(tmp_path / "b", [5, 2.0], seed=1)
    stat = compare(tmp_path).groups[0].stat("val_loss")
    assert not math.isfinite(stat.mean) and stat.std is None and stat.n == 2


@pytest.mark.parametrize("delay", ["soon", "[1]", "1" + 400 * "0"], ids=["text", "list", "huge"])
def test_a_delay_that_is_no_number_counts_as_none(tmp_path, delay):
    run = runs.read(make_run(tmp_path / "run", [5, 3], extra=f"  delay: {delay}\n"))
    assert run.seconds(1e6) == runs.read(make_run(tmp_path / "other", [5, 3])).seconds(1e6)


def test_another_baseline_and_none(tmp_path):
    make_run(tmp_path / "a", [5, 2])
    make_run(tmp_path / "b", [5, 3], recipe="noloco")
    assert compare(tmp_path, baseline="diloco").gap_percent(compare(tmp_path).groups[1]) == pytest.approx(50.0)
    assert compare(tmp_path).notes() == ["no finished run of the baseline ddp, so there are no gaps"]
    with pytest.raises(UserError, match=r"nope has no finished run; .*: diloco, noloco; use --baseline diloco"):
        compare(tmp_path, baseline="nope")


def test_a_group_is_compared_with_the_baseline_group_of_equal_settings(tmp_path):
    """Of the two groups of diloco, each group has the one with its own h, and noloco with h=3 has the best."""
    for name, recipe, h, loss in (
        ("a", "diloco", 1, 2.0),
        ("b", "diloco", 2, 4.0),
        ("c", "noloco", 1, 3.0),
        ("d", "noloco", 2, 5.0),
        ("e", "noloco", 3, 1.0),
    ):
        make_run(tmp_path / name, [5, loss], recipe=recipe, extra=f"h: {h}\n")
    comparison = compare(tmp_path, baseline="diloco")
    gaps = {g.label: comparison.gap_percent(g) for g in comparison.groups}
    assert gaps == {
        "diloco h=1": None,
        "diloco h=2": None,
        "noloco h=1": pytest.approx(50.0),
        "noloco h=2": pytest.approx(25.0),
        "noloco h=3": pytest.approx(-50.0),
    }
    assert table.results(comparison).title.endswith(
        "; gaps are relative to the diloco group with equal h, those of noloco h=3 to the best of 2 diloco groups"
    )


def test_without_equal_settings_a_group_is_compared_with_the_best_baseline_group(tmp_path):
    make_run(tmp_path / "a", [5, 2.0], extra="h: 1\n")
    make_run(tmp_path / "b", [5, 4.0], extra="h: 2\n")
    make_run(tmp_path / "c", [5, 3.0], recipe="noloco", extra="h: 3\n")
    comparison = compare(tmp_path, baseline="diloco")
    assert comparison.gap_percent(group(comparison, "noloco")) == pytest.approx(50.0)


@pytest.mark.parametrize(("kind", "shown"), [("threads", False), ("processes", True)])
def test_waits_are_shown_unless_workers_take_turns(kind, shown, tmp_path):
    make_run(tmp_path / "a", [5, 2], extra=f"workers_as: {kind}\n")
    results = table.results(compare(tmp_path))
    assert ("wait_s" in results.columns) is shown and len(results.rows[0]) == len(results.columns)


def test_scores_split_groups_only_if_they_decide_which_payloads_count():
    for excluded in (False, True):
        kept = setting_diff.training_settings({"exclude_accused": excluded, "scores.payloads": 2.0})
        assert ("scores.payloads" in kept) == excluded


@pytest.mark.parametrize(
    ("own", "baselines"),
    [("model:\n  layers: 2\n", "model:\n  layers: 4\n"), ("data:\n  _target_: a.B\n", "data:\n  _target_: a.C\n")],
    ids=["layers", "class"],
)
def test_another_model_or_data_have_no_gap(tmp_path, own, baselines):
    make_run(tmp_path / "a", [5, 2], extra=own)
    make_run(tmp_path / "b", [5, 1], recipe="ddp", extra=baselines)
    comparison = compare(tmp_path)
    assert comparison.gap_percent(group(comparison, "diloco")) is None
    assert "no finished ddp run has the same model, data and evaluation: diloco" in comparison.notes()[0]


def test_labels_name_the_fewest_settings_that_differ(tmp_path):
    """lr2 follows lr and k exists for one of two compressors only, so neither is named; nor is what does not train."""
    extra = "inner:\n  lr: {}\n  lr2: {}\ncompress:\n  _target_: x.{}\n{}threads: {}\nexchange:\n  seed: {}\n"
    make_run(tmp_path / "a", [5, 2], extra=extra.format(1, 1, "TopK", "  k: 8\n", 1, 0))
    make_run(tmp_path / "b", [5, 3], extra=extra.format(2, 2, "TopK", "  k: 8\n", 1, 0))
    make_run(tmp_path / "c", [5, 4], extra=extra.format(2, 2, "Int8", "", 1, 0))
    make_run(tmp_path / "d", [5, 4], seed=1, extra=extra.format(2, 2, "Int8", "", 2, 1))
    make_run(tmp_path / "e", [5, 9], recipe="ddp", extra="inner: null\n")
    labels = [g.label for g in compare(tmp_path).groups]
    words = "diloco compress={} inner.lr={}"
    assert labels == [words.format("TopK", 1), words.format("TopK", 2), words.format("Int8", 2), "ddp"]


def test_many_settings_are_named_only_as_far_as_they_tell_apart(tmp_path):
    keys = "abcdef"
    for value in range(2):
        for k in (1, 2):
            lines = "".join(f"{key}: {key}{value}\n" for key in keys)
            make_run(tmp_path / f"{value}{k}", [5, 1 + value + k / 9], extra=f"{lines}k: {k}\n")
    assert compare(tmp_path).groups[0].label == "diloco a=a0 k=1"


def test_pareto_front(tmp_path):
    """b has what a has for more bytes, d is beaten by c in both; a, c, e are the front."""
    for name, loss, sent in (
        ("a", 3, 10),
        ("b", 3, 20),
        ("c", 2, 30),
        ("d", 2.5, 40),
        ("e", 1, 50),
        ("f", math.nan, 1),
    ):
        make_run(tmp_path / name, [5, loss], recipe=name, sent=sent)
    assert [g.label for g in compare(tmp_path).front] == ["a", "c", "e"]


def test_bytes_and_simulated_clock(tmp_path):
    """4 steps of .5 s a round; 3 copies of 1000 bytes at 1 kbit/s take 24 s: 0, 26, 52 s."""
    run = runs.read(make_run(tmp_path / "run", [5, 3, 2]))
    assert run.sent_bytes() == [0, 3000, 6000]
    assert run.seconds(1000.0) == pytest.approx([0, 26, 52])
    assert run.seconds(1e12) == pytest.approx([0, 2, 4])


@pytest.mark.parametrize("ready_step", [0, SYNC], ids=["step 0", "step of the checkpoint"])
def test_a_resume_and_status_rows_do_not_change_the_simulated_clock(tmp_path, ready_step):
    """100 s pass between the two sessions. In the second one, each worker says that it waits, 3 s before a landing."""
    first, whole = rows_of([5, 3]), rows_of([5, 3, 2])
    second = [{**row, "wall_s": row["wall_s"] + 100} for row in whole[len(first) :]]
    ready = {"event": "ready", "step": ready_step, "wall_s": first[-1]["wall_s"] + 100}
    status = {"event": "status", "step": 0, "wall_s": second[0]["wall_s"] - 3, "text": "waiting: for peers"}
    both = [{**row, "worker": worker} for row in (ready, status) for worker in range(2)]
    rows = [*first, *both, *second]
    run = runs.read(make_run(tmp_path / "run", [5, 3, 2], rows=rows))
    assert run.seconds(1000.0) == pytest.approx([0, 26, 52])


def test_a_delay_hides_a_transfer(tmp_path):
    """Of 24 s, 2 steps of .5 s pass before the landing."""
    run = runs.read(make_run(tmp_path / "run", [5, 3], extra="  delay: 2\n"))
    assert run.seconds(1000.0) == pytest.approx([0, 2 + 24 - 1])
    assert run.seconds(1e12) == pytest.approx([0, 2])


def test_the_clock_is_the_slowest_workers(tmp_path):
    rows = [{**row, "wall_s": row["wall_s"] * (1 + row.get("worker", 0))} for row in rows_of([5, 3])]
    run = runs.read(make_run(tmp_path / "run", [5, 3], rows=rows))
    slow = (2 * (100 + 2 + WAIT_S) - 2 * 100 - WAIT_S) / SYNC
    assert run.seconds(1e12)[-1] == pytest.approx(SYNC * slow)


def test_totals_at_steps_between_landings():
    assert simulated_clock.totals_at([0, 3, 4, 9], [4, 8], [1.0, 10.0]) == [0, 0, 1, 11]


def test_a_died_run_is_listed_with_its_reason_and_in_no_mean(tmp_path):
    error = {"event": "error", "worker": 1, "step": 0, "kind": "crash", "text": "Traceback\n  x\nOSError: disk full\n"}
    make_run(tmp_path / "good", [5, 3, 2])
    make_run(tmp_path / "died", [5, 9], seed=1, finished=False, rows=[*rows_of([5, 9]), {**error, "wall_s": 1.0}])
    make_run(tmp_path / "stopped", [5, 8], seed=2, finished=False)
    comparison = compare(tmp_path)
    assert comparison.groups[0].stat("val_loss") == Stat(2.0, None, 1)
    died, stopped = (run for _, run in comparison.unfinished)
    assert (died.why, died.last_round, died.validations[-1]["val_loss"]) == ("OSError: disk full", 1, 9)
    assert stopped.why.startswith("stopped after round 1")


def test_an_error_before_a_resumed_session_is_not_the_reason(tmp_path):
    error = {"event": "error", "worker": 1, "step": 0, "text": "OSError: disk full", "wall_s": 1.0}
    run = runs.read(make_run(tmp_path / "run", [5, 9], finished=False, rows=[error, *rows_of([5, 9])]))
    assert run.why.startswith("stopped after round 1")


def test_damaged_lines_are_skipped_and_counted(tmp_path):
    folder = make_run(tmp_path / "run", [5, 3, 2])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('[1]\n{"event": "validation", "step": 12, "round": 3, "wall_s": 1}\n\xff\n{"event": "rou\n')
        file.write(json.dumps({"event": "step", "worker": 0, "step": 12, "loss": 10**400, "wall_s": 1.0}))
    comparison = compare(tmp_path)
    assert comparison.runs[0].steps == [0, 4, 8]
    assert "5 damaged line(s) skipped" in comparison.notes()[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.jsonl", '{"a":' * 100_000),
        ("config.yaml", "[" * 5_000),
        ("died.json", '{"a":' * 100_000),
        ("died.json", '{"why": 5}'),
        ("metrics.jsonl", json.dumps(rows_of([3.0, 2.0])[-1] | {"spread": "x"})),
    ],
)
def test_a_damaged_file_of_one_run_does_not_end_the_report(tmp_path, name, text):
    make_run(tmp_path / "whole", [3.0, 2.0])
    make_run(tmp_path / "damaged", [3.0, 2.0], spread=0.5)
    with (tmp_path / "damaged" / name).open("a" if name == "metrics.jsonl" else "w") as file:
        file.write(text + "\n")
    found = [runs.read(path) for path in runs.find([tmp_path])]
    assert len(found) == 2 and all(isinstance(run.why, str) for run in found)
    assert all(run.validations and all(math.isnan(x) or x >= 0 for x in spreads(run)) for run in found)


@pytest.mark.parametrize("look", ["is_dir", "exists", "iterdir"])
def test_a_folder_that_cannot_be_read_is_refused_in_one_line(tmp_path, monkeypatch, look):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    make_run(tmp_path / "0", [3.0, 2.0])
    (tmp_path / "0" / "metrics.jsonl").unlink()
    (tmp_path / "0" / "config.yaml").unlink()
    monkeypatch.setattr(runs.Path, look, refuse)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\): correct the name, or let this user"):
        runs.find([tmp_path])


def test_without_settings_a_run_is_still_listed(tmp_path):
    folder = make_run(tmp_path / "run", [5, 3])
    (folder / "config.yaml").write_text("recipe: [")
    assert [run.why for _, run in compare(tmp_path).unfinished] == ["config.yaml is missing or damaged"]


def test_runs_are_found_at_any_depth_each_once(tmp_path):
    """Also one that has no row yet; not wandb's config.yaml inside a run."""
    run = make_run(tmp_path / "sweep/a/0", [5, 3])
    (run / "wandb/files").mkdir(parents=True)
    (run / "wandb/files/config.yaml").write_text("recipe: x\n")
    make_run(tmp_path / "sweep/1", [5, 3])
    (tmp_path / "sweep/2").mkdir()
    (tmp_path / "sweep/2/config.yaml").write_text("recipe: diloco\n")
    found = runs.find([tmp_path / "sweep", run])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["sweep/1", "sweep/2", "sweep/a/0"]
    assert runs.read(found[1]).why.startswith("stopped after round 0")


def test_the_page_holds_everything_and_links_to_nothing(tmp_path, capsys):
    make_run(tmp_path / "runs/ddp", [5, 3, 2], recipe="ddp")
    make_run(tmp_path / "runs/a", [5, 4, 3], recipe="noloco", spread=0.25, extra="<k>: '&1'\n")
    make_run(tmp_path / "runs/b", [5, 4, 3], recipe="noloco", spread=0.5, extra="<k>: '&2'\n")
    make_run(tmp_path / "runs/died", [5, 4], recipe="sparseloco", finished=False)
    assert command.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--bandwidth", "20mbit"]) == 0
    html, said = (tmp_path / "out/report.html").read_text(), capsys.readouterr().out
    assert not re.search(r"""(src|href)\s*=\s*(?!["']?data:)""", html) and "<script" not in html
    for label in ("ddp", "noloco &lt;k&gt;=&amp;1", "noloco &lt;k&gt;=&amp;2", "sparseloco"):
        assert label in html
    assert "at 20 Mbit/s" in html and simulated_clock.MODEL in html and html.count("data:image/png;base64,") == 5
    names = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert names == {"loss_tokens.png", "loss_bytes.png", "loss_clock.png", "pareto.png", "spread.png"}
    assert "+50.00 %" in said and "stopped after round 1" in said and "report.html" in said


def test_without_spread_there_is_no_figure_of_it(tmp_path):
    make_run(tmp_path / "run", [5, 3])
    command.main([str(tmp_path / "run")])
    assert not (tmp_path / "run/report/spread.png").exists() and (tmp_path / "run/report/report.html").exists()
    assert len(runs.find([tmp_path])) == 1


def test_settings_with_dollar_signs_are_labels(tmp_path):
    """Matplotlib reads $...$ as mathematics, if it may, and fails on the rest of such a path."""
    for name, path in (("a", "'/data/$x_{$y'"), ("b", "/data/z")):
        make_run(tmp_path / name, [5, 3], extra=f"data:\n  path: {path}\n")
    assert command.main([str(tmp_path)]) == 0
    assert (tmp_path / "report/report.html").exists()


def test_a_folder_of_nothing_but_died_runs_is_reported(tmp_path, capsys):
    make_run(tmp_path / "run", [5], finished=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.yaml").write_text("recipe: ddp\n")
    assert command.main([str(tmp_path)]) == 0
    assert "No run has finished" in (tmp_path / "report/report.html").read_text()
    assert "Unfinished runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["{}/none"], "is not a folder: call outerloop report"),
        (["{}/empty"], "no run in or under"),
        (["{}/run", "--bandwidth", "100MB"], "for example --bandwidth 100mbit"),
        (["{}/run", "--bandwidth", "0mbit"], "for example --bandwidth 100mbit"),
        (["{}/run", "--out", "{}/run/config.yaml"], "pass --out with another name"),
        (["{}/run", "--typo"], "run outerloop report runs"),
        ([], "run outerloop report runs"),
    ],
)
def test_mistakes_are_one_line_with_what_to_type(arguments, answer, tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run", [5, 3])
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("sys.argv", ["outerloop", "report", *(a.format(tmp_path) for a in arguments)])
    assert main.main() == 2
    said = capsys.readouterr().err
    assert answer in said and said.count("\n") == 1


@pytest.mark.parametrize("name", ["loss_tokens.png", "report.html"])
def test_a_report_that_cannot_be_written_is_one_line(name, tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run", [5, 3])
    (tmp_path / "run/report" / name).mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["outerloop", "report", str(tmp_path / "run")])
    assert main.main() == 2
    said = capsys.readouterr().err
    assert "report cannot be written (Is a directory): pass --out with another name" in said and said.count("\n") == 1


def test_quantities():
    assert [parse_bandwidth(x) for x in ("100mbit", "1.5 Gbit/s", "64kbit")] == [1e8, 1.5e9, 64e3]
    assert (
        format_stat(Stat(2.0, 0.1, 3), decimals=3) == "2.000 ± 0.100"
        and format_stat(Stat(2.0, None, 1), decimals=1) == "2.0"
    )
    assert [format_small(Stat(x, None, 1)) for x in (32.0, 0.305, 3e-4, 0.0)] == [
        "32.000",
        "0.305",
        "0.000300",
        "0.000",
    ]
    assert format_small(Stat(0.03, 0.001, 2)) == "0.0300 ± 0.0010" and format_small(Stat(math.nan, None, 2)) == "nan"
    assert format_count(Stat(1.5e6, 2e4, 2), "B") == "1.50 ± 0.02 MB" and format_count(Stat(20, None, 1)) == "20"


@pytest.mark.long
def test_report_of_real_runs(tmp_path, capsys):
    small = "exchange=inprocess model=nano workers=2 rounds=2 schedule.sync_every=2 eval.sequences=8 inner.batch=2"
    losses = []
    for seed in range(2):
        summary = train(load.load([*small.split(), f"run_dir={tmp_path}/{seed}", f"seed={seed}"]))
        losses.append(summary["val_loss"])
    comparison = compare(tmp_path)
    assert [g.label for g in comparison.groups] == ["sparseloco"] and comparison.unfinished == []
    loss = comparison.groups[0].stat("val_loss")
    assert loss.n == 2 and loss.mean == pytest.approx(sum(losses) / 2)
    run = comparison.runs[0]
    assert run.sent_bytes()[-1] == pytest.approx(run.results["bytes_sent_per_worker"])
    assert 0 < run.seconds(1e12)[-1] < run.results["wall_s"] < run.seconds(1.0)[-1]
    capsys.readouterr()
    assert command.main([str(tmp_path)]) == 0
    assert f"{loss.mean:.3f} ± {loss.std:.3f}" in capsys.readouterr().out
