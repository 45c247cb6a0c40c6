"""The table of paired gaps: by hand, from records that were written for it."""

from dataclasses import asdict, replace
from math import inf, log2, nan, sqrt
from statistics import stdev

import pytest
from bench_table import Bench, parser
from seed_statistics import T_95, half_width, loss_or_inf
from show_table import FAST_MEAN, MARKS, cells, gap_text, markdown, paired_gaps, table, tuned, write_into

ROW = {"params": 1000, "steps": 30, "sync_every": 15, "workers": 4, "outer_lr": None, "momentum": None, "lr": 0.1}
ROW |= {"inner_momentum": None, "weight_decay": 0.1, "options": ["threads=1"], "sequences": 16, "tokens": 30_000}


def rows(case, *nats, **other):
    return [ROW | {"case": case, "seed": seed, "nats": loss} | other for seed, loss in enumerate(nats)]


def test_gaps_are_paired_by_seed():
    reference = rows("ddp_muon", 1.0, 2.0)
    assert paired_gaps(rows("a", 1.1, 2.2, 9.0), reference) == pytest.approx([0.1, 0.1])


def test_a_seed_counts_once():
    twice = [*rows("a", 1.1, 2.2), *rows("a", 1.3)]
    for own, reference in ((twice, rows("b", 1.0)), (rows("b", 1.0), twice)):
        with pytest.raises(ValueError, match="a has two records with the same seed"):
            paired_gaps(own, reference)


def test_the_interval_of_a_mean_uses_the_quantile_of_its_degrees_of_freedom():
    assert half_width([0.1, 0.1]) == pytest.approx(0.0) and half_width([0.1]) == inf
    assert half_width([0.01, 0.03]) == pytest.approx(6.314 * 0.01), "t(0.95, 1) · s / √2, s = 0.0141"
    for count in (10, 11, 12, 20):
        values = [*range(count)]
        quantile = T_95[min(count, 12) - 2]
        assert half_width(values) == pytest.approx(quantile * stdev(values) / sqrt(count)), count


def test_a_run_that_diverged_is_never_the_best(tmp_path):
    assert [loss_or_inf(loss) for loss in (2.0, nan, -inf, None)] == [2.0, inf, inf, inf]
    trials = rows("a", nan, lr=0.1) + rows("a", 2.0, lr=0.2) + rows("a", 2.5, lr=0.4)
    assert [row["lr"] for row in tuned(trials)] == [0.2]
    args = parser().parse_intermixed_args(["--runs", f"{tmp_path}", "--json", f"{tmp_path}/rows.json", "--steps", "30"])
    bench = Bench(args, pool=None)
    runs = [replace(bench.first("muloco"), lr=lr) for lr in (1.0, 2.0)]
    bench.rows = [
        asdict(run) | {"nats": loss, "sequences": 16, "options": []} for run, loss in zip(runs, (nan, 2.0), strict=True)
    ]
    assert bench.best(runs) == runs[1]


def test_every_case_is_tuned_until_its_best_values_are_inside_the_grid(tmp_path):
    """The loss is a parabola in log lr and in the momentum, and 0.1 lower with the outer values (0.9, 0.6)."""
    best = {"lr": 13.5e-3, "inner_momentum": 0.85}

    class Counted(Bench):
        def train(self, runs):
            for run in runs:
                loss = (
                    1
                    + abs(log2(run.lr / best["lr"]))
                    + abs(run.inner_momentum - best["inner_momentum"])
                    + run.weight_decay
                )
                self.rows.append(
                    asdict(run) | {"nats": loss - 0.1 * (run.outer_lr == 0.9), "sequences": 16, "options": []}
                )

    args = parser().parse_intermixed_args(["--runs", f"{tmp_path}", "--json", f"{tmp_path}/rows.json", "--steps", "30"])
    bench = Counted(args, pool=None)
    tuned = bench.tune("muloco")
    assert (tuned.inner_momentum, tuned.weight_decay) == (0.85, 0.025)
    assert (tuned.outer_lr, tuned.momentum) == (0.9, 0.6)
    rates = sorted({row["lr"] for row in bench.rows})
    place = rates.index(tuned.lr)
    assert tuned.lr == pytest.approx(13.5e-3) and 0 < place < len(rates) - 1, "one more on either side of the best"
    table_runs = bench.published("muloco", tuned)
    assert len(set(table_runs)) == 4 * 3 * 2, "seeds, H, numbers of workers"
    assert {(run.sync_every, run.workers) for run in bench.published("ddp_muon", bench.first("ddp_muon"))} == {(1, 1)}


def test_a_gap_to_a_run_that_diverged_is_no_number():
    assert gap_text(rows("a", 1.0, 1.0), rows("b", 1.0, nan)) == "diverged"
    assert half_width([0.1, nan]) == half_width([0.1, inf]) == inf


def test_what_a_cell_says():
    reference = rows("ddp_muon", 1.0, 1.0, 1.0)
    assert gap_text(reference, reference) == "–" and gap_text(rows("a", 1.0), []) == "–"
    assert gap_text(rows("a", 1.05), reference) == "+5.0 % (1)"
    assert gap_text(rows("a", 1.002, 1.001, 1.003), reference) == "+0.2 ± 0.2 % equal"
    assert gap_text(rows("a", 1.01, 1.02, 1.03), reference) == "+2.0 ± 1.7 %"


def test_only_the_values_that_were_best_where_they_were_tuned_are_in_the_table():
    trials = rows("a", 3.0, lr=0.1) + rows("a", 2.0, lr=0.2) + rows("a", 2.5, lr=0.4)
    runs = rows("a", 2.0, 2.2, lr=0.2)[1:] + rows("a", 1.9, 1.0, lr=0.1)[1:]
    assert [(row["seed"], row["lr"]) for row in tuned(trials + runs)] == [(0, 0.2), (1, 0.2)]


def test_data_parallel_training_belongs_to_every_h_and_one_worker_to_every_number():
    ddp = rows("ddp_muon", 1.1, sync_every=1, workers=1)
    alone = rows("ddp_muon_nesterov", 1.0, workers=1)
    found = table([*ddp, *alone, *rows("a", 2.0), *rows("a", 2.0, workers=8, sync_every=30)])
    assert set(found) == {(1000, 30, 16, workers, h) for workers in (4, 8) for h in (15, 30)}
    assert [row["nats"] for row in found[1000, 30, 16, 8, 30]["ddp_muon"]] == [1.1]
    assert set(found[1000, 30, 16, 4, 15]) == {"ddp_muon", "ddp_muon_nesterov", "a"}


def test_a_case_with_other_options_has_a_row_of_its_own_and_a_gap_to_the_plain_case():
    bits = {"bits_per_param_per_round": 1.0, "bits_per_param_per_step": 0.1}
    late = rows("a", 2.2, 3.3, options=["threads=1", "schedule.delay=2"], **bits)
    [found] = table([*rows("a", 2.0, 3.0, **bits), *late]).values()
    assert {label: len(runs) for label, runs in found.items()} == {"a": 2, "a schedule.delay=2": 2}
    assert cells(found["a schedule.delay=2"], found, workers=4)[9] == "+10.0 ± 0.0 %"
    assert cells(found["a"], found, workers=4)[9] == "–"


def test_runs_with_other_batches_are_not_compared():
    found = table([*rows("a", 2.0), *rows("b", 3.0), *rows("a", 1.0, sequences=64)])
    assert {group: {label: runs[0]["nats"] for label, runs in cases.items()} for group, cases in found.items()} == {
        (1000, 30, 16, 4, 15): {"a": 2.0, "b": 3.0},
        (1000, 30, 64, 4, 15): {"a": 1.0},
    }


def test_bytes_per_token_are_those_of_all_workers():
    """32 bits of 1000 parameters in each of 30 steps, for 30,000 tokens of all workers: 4 bytes of each worker."""
    bits = {"bits_per_param_per_round": 32.0, "bits_per_param_per_step": 32.0}
    ddp = rows("ddp_muon", 1.0, sync_every=1, workers=1, **bits)
    found = table([*ddp, *rows("a", 2.0, **bits), *rows("a", 2.0, workers=8, **bits)])
    for workers, shown in ((4, "16.00"), (8, "32.00")):
        cases = found[1000, 30, 16, workers, 15]
        assert [cells(cases[name], cases, workers=workers)[12] for name in ("ddp_muon", "a")] == [shown, shown]


def test_a_recipe_is_compared_with_its_first_version():
    bits = {"bits_per_param_per_round": 1.0, "bits_per_param_per_step": 0.1}
    [found] = table([*rows("a", 1.9, 2.85, **bits), *rows("a_v1", 2.0, 3.0, **bits)]).values()
    assert cells(found["a"], found, workers=4)[8] == "-5.0 ± 0.0 %" and cells(found["a_v1"], found, workers=4)[8] == "–"


def test_the_loss_of_the_mean_of_fast_weights_is_shown_if_all_records_have_it():
    bits = {"bits_per_param_per_round": 1.0, "bits_per_param_per_step": 0.1}
    whole = [row | {FAST_MEAN: row["nats"] - 0.5} for row in rows("a", 2.0, 3.0, **bits)]
    lacking = [whole[0], *rows("b", 2.0, 3.0, **bits)[1:]]
    assert cells(whole, {"a": whole}, workers=4)[5] == "2.0000"
    assert cells(lacking, {"b": lacking}, workers=4)[5] == ""


def test_a_run_that_is_trained_again_replaces_its_record(tmp_path, capsys):
    args = parser().parse_intermixed_args(["--runs", f"{tmp_path}", "--json", f"{tmp_path}/rows.json", "--steps", "30"])
    bench = Bench(args, pool=None)
    runs = [bench.first("muloco"), bench.first("outerloop")]
    first, other = (asdict(run) | {"nats": 1.5, "sequences": 16, "options": []} for run in runs)
    for run, row in zip([*runs, runs[0]], [first, other, first | {FAST_MEAN: 1.0}], strict=True):
        bench.record(run, row)
    assert bench.rows == [first | {FAST_MEAN: 1.0}, other] and capsys.readouterr().out == ""
    bench.record(runs[1], other | {"nats": 1.25})
    assert capsys.readouterr().out == "outerloop, seed 0: 1.5 nats before, 1.25 now\n"
    assert bench.row(runs[0]) is bench.rows[0] and bench.nats(runs[1]) == 1.25


def test_the_tables_replace_the_text_between_the_marks_of_a_page(tmp_path):
    bits = {"bits_per_param_per_round": 1.0, "bits_per_param_per_step": 0.1}
    page, text = tmp_path / "page.md", markdown(table(rows("a", 2.0, **bits)))
    page.write_text(f"above\n{MARKS[0]}old\n{MARKS[1]}below\n")
    write_into(page, text)
    write_into(page, text)
    assert page.read_text() == f"above\n{MARKS[0]}\n{text}\n{MARKS[1]}below\n"
    assert text.startswith("### 0.00M parameters, 30 steps of 16 sequences, 4 workers, H 15\n\n| case | lr |")
    page.write_text("no marks")
    with pytest.raises(ValueError):
        write_into(page, text)
