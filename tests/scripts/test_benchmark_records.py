"""A benchmark does not take the record of another measurement for its own, and its mistakes are one line."""

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import attack_liar
import attack_strangers
import bench_attacks
import bench_beside
import bench_churn
import bench_recipes
import bench_scores
import bench_table
import mixed_machines
import pytest
import simulate_liars
from benchmark_records import read_records, write_records

from outerloop.config import load

RUN = {"case": "ddp", "sync_every": 1, "workers": 2, "seed": 0, "lr": 0.002, "inner_steps": 30, "val_loss": 1.0}
RUN |= {"bits_per_param_per_round": 32.0, "sequences": 4, "options": ["threads=1"]}
PAIR = {"pair": 0, "model": "nano", "ratio": 1.0}
RESULTS = Path(simulate_liars.__file__).parent / "results"


def call(program, monkeypatch, *arguments):
    """Call the main function of a benchmark with these arguments. Return its result."""
    monkeypatch.setattr(sys, "argv", [program.__name__, *map(str, arguments)])
    return program.main()


def refusal(program, monkeypatch, capsys, *arguments):
    """Return the only line of a call that ends with exit code 2."""
    with pytest.raises(SystemExit) as end:
        call(program, monkeypatch, *arguments)
    found = capsys.readouterr()
    assert end.value.code == 2 and not found.out and found.err.count("\n") == 1
    return found.err


def recipes(folder, *more):
    """Return arguments of bench_recipes.py for a run that RUN is the record of; later ones replace earlier ones."""
    sizes = ["--cases", "ddp", "--workers", "2", "--inner-steps", "30", "--sequences", "4"]
    return ["--runs", folder, "--json", folder / "rows.json", *sizes, *more]


def test_recipes_are_not_trained_again_only_if_sequences_and_options_are_the_same(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    write_records(file, [RUN])
    call(bench_recipes, monkeypatch, *recipes(tmp_path, "threads=1"))
    assert "1.0000 nats" in capsys.readouterr().out
    said = refusal(bench_recipes, monkeypatch, capsys, *recipes(tmp_path, "threads=2"))
    assert f"{file}: a record of ddp was made with options ['threads=1'], but this command has ['threads=2']" in said
    assert "sequences 4" in refusal(
        bench_recipes, monkeypatch, capsys, *recipes(tmp_path, "--sequences", 8, "threads=1")
    )
    write_records(file, [{key: value for key, value in RUN.items() if key not in ("sequences", "options")}])
    call(bench_recipes, monkeypatch, *recipes(tmp_path, "threads=2"))
    assert "1.0000 nats" in capsys.readouterr().out, "a record of an earlier version"


def test_a_run_of_recipes_records_its_sequences_and_options(tmp_path, monkeypatch):
    trained = RUN | dict.fromkeys(("tokens", "params", "wall_s", "payload_bytes_per_worker"), 1)
    monkeypatch.setattr(bench_recipes, "train", lambda config: trained)
    row = bench_recipes.train_one(bench_recipes.Run("ddp", 1, 2, 0, "2e-3", 30), tmp_path, 4, ["threads=1", "seed=0"])
    assert (row["sequences"], row["options"]) == (4, ["seed=0", "threads=1"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--workers", 3], "--sequences 4 is not a multiple of --workers 3"),
        (["--workers", 0], "--workers 0"),
        (["--cases", "diloco_int8", "--sync-every", 20], "--inner-steps 30 is not a multiple of --sync-every 20"),
        (
            ["--cases", "diloco_int8", "--lr", "1e-3,2e-3", "--tune-steps", 20],
            "--tune-steps 20 is not a multiple of --sync-every 15",
        ),
    ],
)
def test_sequences_and_steps_that_would_be_rounded_down_are_refused(more, words, tmp_path, monkeypatch, capsys):
    assert words in refusal(bench_recipes, monkeypatch, capsys, *recipes(tmp_path, *more))


def test_sequences_of_the_table_are_a_multiple_of_the_workers(tmp_path, monkeypatch, capsys):
    files = ["--runs", tmp_path, "--json", tmp_path / "rows.json", "--workers", "4,3"]
    assert "--sequences 16 is not a multiple of --workers 3" in refusal(bench_table, monkeypatch, capsys, *files)


@pytest.mark.parametrize("program", [bench_recipes, bench_table])
def test_unknown_cases_are_named(program, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        call(program, monkeypatch, "--runs", tmp_path, "--json", tmp_path / "rows.json", "--cases", "bogus")
    assert end.value.code == 2 and "bogus: choose from d" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"), [(["--minutes", 2], "minutes 30.0, but this command has 2.0"), (["--peers", 4], "peers 16")]
)
def test_the_published_liars_are_not_shown_as_those_of_other_options(more, words, monkeypatch, capsys):
    monkeypatch.setattr(simulate_liars, "simulated", lambda *args, **options: pytest.fail("all cases have a record"))
    assert words in refusal(simulate_liars, monkeypatch, capsys, *more)
    assert call(simulate_liars, monkeypatch) == 0, "the documented command"


def test_pairs_of_another_interpreter_are_refused(tmp_path, monkeypatch, capsys):
    file = tmp_path / "pairs.json"
    write_records(file, [PAIR | {"case": case, "python": "/other/python"} for case in bench_beside.LIMITS])
    arguments = ["--json", file, "--pairs", 1, "--python"]
    assert "python /other/python" in refusal(bench_beside, monkeypatch, capsys, *arguments, "/this/python")
    call(bench_beside, monkeypatch, *arguments, "/other/python")
    write_records(file, [PAIR | {"case": case} for case in bench_beside.LIMITS])
    call(bench_beside, monkeypatch, *arguments, "/this/python")
    assert capsys.readouterr().out.count("median 1.00 of 1 pairs") == 6


def test_machines_with_another_number_of_rounds_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mixed_machines, "RESULTS", tmp_path)
    write_records(tmp_path / "loco-3.json", json.loads((RESULTS / "machines/loco-3.json").read_text()))
    arguments = ["--recipes", "loco", "--peers", 3]
    assert call(mixed_machines, monkeypatch, *arguments) == 0
    capsys.readouterr()
    assert "rounds 20, but this command has 5" in refusal(
        mixed_machines, monkeypatch, capsys, *arguments, "--rounds", 5
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--windows", 16], "scores.windows=16"),
        (["--recipe", "outerloop"], "recipe=outerloop"),
        (["--payloads", 2], "scores.payloads=2.0"),
        (["threads=2"], "'threads=2']"),
    ],
)
def test_scores_of_other_options_are_refused(more, words, monkeypatch, capsys):
    monkeypatch.setattr(bench_scores, "run_case", None)
    arguments = ["--out", RESULTS / "scores", "--seeds", "0,1", *more]
    assert words in refusal(bench_scores, monkeypatch, capsys, *arguments)
    call(bench_scores, monkeypatch, *arguments[:4])
    assert "4 of 4 runs have a record" in capsys.readouterr().out, "the documented command"


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--minutes", 3], "minutes 1.7, but this command has 3.0"), (["--minutes", 1.7, "seed=1"], "options []")],
)
def test_lies_of_other_options_are_refused_before_the_first_run(more, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attack_liar, "recorded", lambda *_: pytest.fail("nothing is to be run"))
    write_records(tmp_path / "views.json", read_records(RESULTS / "liar/views.json", {}))
    arguments = ["--runs", tmp_path, "--out", tmp_path]
    assert words in refusal(attack_liar, monkeypatch, capsys, *arguments, "--lies", "rosters,views", *more)
    assert call(attack_liar, monkeypatch, *arguments, "--lies", "views", "--minutes", 1.7) == 0


def test_a_lie_records_its_options(tmp_path, monkeypatch):
    monkeypatch.setattr(attack_liar, "Listed", lambda *_, **__: None)
    monkeypatch.setattr(attack_liar, "running", lambda swarm: contextlib.nullcontext())
    monkeypatch.setattr(attack_liar, "Attack", lambda *_, **__: SimpleNamespace(run=dict))
    args = SimpleNamespace(trust="members", minutes=0.7, options=["seed=1"], runs=tmp_path)
    assert attack_liar.recorded("views", args) == {"trust": "members", "minutes": 0.7, "options": ["seed=1"]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--minutes", 5], "minutes 10.0, but this command has 5.0"),
        (["--workers", 3], "workers 5"),
        (["--mbit", 10], "mbit 100.0"),
        (["--kinds", "attacked", "--mbit", 10], "mbit 100.0"),
    ],
)
def test_strangers_of_other_options_are_refused(more, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attack_strangers, "measured", lambda *_: pytest.fail("nothing is to be run"))
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    for kind in ("calm", "attacked", "open"):
        record = read_records(RESULTS / f"strangers/{kind}-0.json", {})
        write_records(tmp_path / f"{kind}-0.json", record | ({} if kind == "calm" else {"mbit": 100.0}))
    arguments = ["--runs", tmp_path, "--out", tmp_path, "--pairs", 1]
    assert words in refusal(attack_strangers, monkeypatch, capsys, *arguments, *more)
    assert call(attack_strangers, monkeypatch, *arguments) == 0
    assert call(attack_strangers, monkeypatch, *arguments, "--kinds", "calm", "--mbit", 10) == 0, "no stranger"
    assert call(attack_strangers, monkeypatch, *arguments, "--kinds", "open", "--minutes", 5) == 0
    call(attack_strangers, monkeypatch, "--runs", tmp_path, "--pairs", 1)
    assert "attacked round_s_median: 1.025" in capsys.readouterr().out, "the documented command"


def test_only_a_first_run_with_the_same_arguments_is_continued(tmp_path, capsys, monkeypatch):
    file = tmp_path / "records.json"
    monkeypatch.setattr(sys, "argv", ["bench_churn", "--runs", str(tmp_path), "--json", str(file), "seed=1"])
    wanted = bench_churn.arguments(bench_churn.parse())
    write_records(file, {"churn": {"rounds": 3, "arguments": wanted}})
    assert bench_churn.finished(file, wanted)["rounds"] == 3
    with pytest.raises(SystemExit, match="2"):
        bench_churn.finished(file, wanted | {"minutes": 1.0})
    assert "minutes 60.0, but this command has 1.0" in capsys.readouterr().err


def test_a_missing_calm_run_is_reported_before_the_first_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_churn, "churned", lambda args: pytest.fail("nothing is to be run"))
    monkeypatch.setattr(bench_churn.signal, "signal", lambda *_: None)
    arguments = ["--runs", tmp_path, "--json", tmp_path / "x.json", "--calm", tmp_path / "none.json"]
    assert "none.json has no calm run" in refusal(bench_churn, monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("content", ['[{"case": "ddp"', "\xff", "{}"])
def test_a_damaged_file_of_records_is_one_line(content, tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.json"
    file.write_bytes(content.encode("latin-1"))
    assert f"{file} " in refusal(bench_recipes, monkeypatch, capsys, *recipes(tmp_path))
    file.write_text("[1")
    assert f"{file} cannot be read" in refusal(simulate_liars, monkeypatch, capsys, "--out", file)
    assert f"{file} cannot be read" in refusal(bench_beside, monkeypatch, capsys, "--json", file)


def test_a_damaged_record_of_an_attack_is_one_line(tmp_path, capsys):
    case = bench_attacks.Size(4, 2).case("diloco", "plain", "calm", 0, seed=0)
    (tmp_path / case.file).write_text("{")
    with pytest.raises(SystemExit, match="2"):
        bench_attacks.missing(case, [], tmp_path)
    assert capsys.readouterr().err.count("\n") == 1


def test_records_are_replaced_as_a_whole(tmp_path, monkeypatch):
    """A disk that is full while the new content is written leaves the old records."""
    file = tmp_path / "new/rows.json"
    assert read_records(file, []) == []
    write_records(file, [{"a": 1}])
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_records(file, [{"a": 1}, {"a": 2}])
    assert read_records(file, []) == [{"a": 1}] and list(file.parent.iterdir()) == [file]


def test_rows_of_the_table_are_of_one_text(tmp_path, monkeypatch, capsys):
    """data=stdlib differs between Pythons, so that losses could not be compared."""
    (tmp_path / "book.txt").write_text("a text " * 1000)
    options = ["data=text", f"data.files=[{tmp_path}/book.txt]"]
    own = bench_table.text_of(load.load(options))
    (tmp_path / "book.txt").write_text("another text " * 1000)
    other = bench_table.text_of(load.load(options))
    assert own != other and len(own) == 32
    write_records(tmp_path / "rows.json", [{"case": "muloco", "text": own}])
    arguments = ["--runs", tmp_path, "--json", tmp_path / "rows.json", "--cases", "muloco", *options]
    said = refusal(bench_table, monkeypatch, capsys, *arguments)
    assert f"a record of muloco was made with text {own}, but this command has {other}" in said
    of_the_recipe = ["--cases", "outerloop_v3", "compress.large.of.k=9", *options]  # no other recipe has the option
    said = refusal(bench_table, monkeypatch, capsys, *arguments[:4], *of_the_recipe)
    assert f"but this command has {other}" in said
