"""Whole runs, workers as threads: every recipe, the files it leaves, killed and resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from outerloop.commands import train as train_command
from outerloop.config import load, run_directory
from outerloop.launcher import micro_batch
from outerloop.launcher.train import print_results, spent_line, train
from outerloop.report.runs import RESULTS
from outerloop.state import checkpoint
from outerloop.types import UserError
from tests.support.run_command import error_of
from tests.support.run_output import leave_figures_empty, summary_of

SMALL = ["model=nano", "workers=2", "eval.sequences=16", "inner.seq_len=32", "inner.batch=4"]
OWN_EXCHANGE = {"noloco"}
OWN_STEPS = {"ddp", "demo", "sparta"}
MUON = {"muloco", "outerloop"}  # half a second a step on a CPU that computes bfloat16 in software


def run(run_dir, *overrides):
    """The summary of a run. Its figure, which takes as long as some rounds, is left empty."""
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_empty(patch)
        train(load.load([*SMALL, "exchange=inprocess", f"run_dir='{run_dir}'", *overrides]))
    return summary_of(run_dir)


SHORTEST = ["rounds=1", "schedule.sync_every=1"]


@pytest.fixture(scope="module")
def shortest(tmp_path_factory):
    """A finished run, to be copied."""
    folder = tmp_path_factory.mktemp("shortest")
    run(folder / "run", *SHORTEST)
    return folder / "run"


@pytest.fixture
def finished(shortest, tmp_path):
    """The folder of a finished run with the options SHORTEST."""
    return Path(shutil.copytree(shortest, tmp_path / "run"))


@pytest.mark.parametrize("recipe", load.groups()["recipe"])
def test_every_recipe_trains_six_rounds(recipe, tmp_path):
    steps = [] if recipe in OWN_STEPS else [f"schedule.sync_every={1 if recipe in MUON else 4}"]
    exchange = [] if recipe in OWN_EXCHANGE else ["exchange=inprocess"]
    where = [f"run_dir={tmp_path}/run", f"recipe={recipe}", "rounds=6", "inner.warmup_steps=2"]
    train(load.load([*SMALL, *where, *steps, *exchange]))
    summary = summary_of(tmp_path / "run")
    assert summary["val_loss"] < summary["val_loss_initial"] - 0.2
    assert summary["rounds"] == 6 and summary["rounds_failed"] == 0 and len(set(summary["slow_hash"])) == 1


def test_files_of_a_finished_run(tmp_path):
    options = ["exchange=inprocess", "rounds=2", "schedule.sync_every=2", f"run_dir={tmp_path}/run"]
    train(load.load([*SMALL, *options]))
    summary = summary_of(tmp_path / "run")
    keys = """recipe workers rounds rounds_failed params tokens val_loss_initial val_loss bits_per_param_per_round
        bytes_sent_per_worker wait_s wall_s tokens_per_s slow_hash compute_s communication_s others_s utilization"""
    assert set(keys.split()) <= summary.keys()
    assert summary["tokens"] == 2 * 2 * 2 * 4 * 32
    assert (tmp_path / "run/loss.png").read_bytes().startswith(b"\x89PNG")
    events = [json.loads(line)["event"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {"ready", "eval", "validation", "round", "saved", "done"} <= set(events)


def test_a_measured_micro_batch_is_printed_and_saved_and_used(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(micro_batch, "choose", lambda config: 3)
    options = ["rounds=1", "schedule.sync_every=1"]
    run(tmp_path / "auto", "inner.micro_batch=auto", *options)
    assert "3 of 4 sequences per forward and backward pass (inner.micro_batch=auto)\n" in capsys.readouterr().out
    assert OmegaConf.load(tmp_path / "auto/config.yaml").inner.micro_batch == 3
    typed = run(tmp_path / "typed", "inner.micro_batch=3", *options)
    assert typed["slow_hash"] == summary_of(tmp_path / "auto")["slow_hash"]


def test_a_resumed_run_keeps_its_micro_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(micro_batch, "choose", lambda config: 3)
    options = [f"run_dir={tmp_path}/run", "inner.micro_batch=auto", "schedule.sync_every=1"]
    run(tmp_path / "run", "rounds=1", *options)
    monkeypatch.setattr(micro_batch, "choose", lambda config: 2)
    run(tmp_path / "run", "rounds=2", *options)
    assert OmegaConf.load(tmp_path / "run/config.yaml").inner.micro_batch == 3


def test_a_finished_run_and_one_in_use_are_reported_before_data_and_memory_are_looked_at(tmp_path, capsys, monkeypatch):
    (tmp_path / "book.txt").write_text("".join(f"<{i:06d}>" for i in range(3000)))
    data = ["data=text", f"data.files=[{tmp_path}/book.txt]", "corpus.share=book", f"corpus.folder={tmp_path}/corpus"]
    options = [*data, "rounds=1", "schedule.sync_every=1"]
    run(tmp_path / "run", *options)
    shutil.rmtree(tmp_path / "corpus")
    monkeypatch.setattr(micro_batch, "choose", lambda config: pytest.fail("nothing is to be measured"))
    options.append("inner.micro_batch=auto")
    capsys.readouterr()
    run(tmp_path / "run", *options)
    assert "is a finished run: nothing to do" in capsys.readouterr().out
    with pytest.raises(UserError, match="seed is 0 there and 1 here"):
        run(tmp_path / "run", *options, "seed=1")
    with (
        closing(run_directory.lock_directory(tmp_path / "run")),
        pytest.raises(UserError, match="is in use by another process"),
    ):
        run(tmp_path / "run", *options, "rounds=2")
    assert not (tmp_path / "corpus").exists()


def test_the_payload_in_the_summary_is_the_formula(tmp_path):
    """float32, whole model: 4 bytes a parameter and at most 1 % of header and table."""
    summary = run(tmp_path / "run", "recipe=diloco", "rounds=2", "schedule.sync_every=2")
    values = 4 * summary["params"] * 2
    assert values < summary["payload_bytes_per_worker"] < 1.01 * values
    assert summary["bytes_sent_per_worker"] == summary["payload_bytes_per_worker"]  # two workers: one copy each


def test_the_exported_model_loads_and_speaks(finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "hf")
    model = AutoModelForCausalLM.from_pretrained(finished / "hf")
    out = model.generate(**tokenizer("def f(", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert out.shape[1] == 14 and tokenizer.decode(out[0]).startswith("def f(")


def test_a_finished_run_says_so_with_its_results_and_stays(tmp_path, capsys):
    folder = tmp_path / "run[a]"  # brackets are not markup
    run(folder, "rounds=1", "schedule.sync_every=1")
    first = capsys.readouterr().out
    [loss] = [line for line in first.splitlines() if line.startswith("validation loss")]
    assert f"results in {folder}\n" in first
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run(folder, "rounds=1", "schedule.sync_every=1")
    again = capsys.readouterr().out
    assert f"{folder} is a finished run: nothing to do" in again and loss in again
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_finished_run_without_its_model_exports_it_again(finished):
    summary, model = summary_of(finished), (finished / "hf/model.safetensors").read_bytes()
    shutil.rmtree(finished / "hf")
    again = run(finished, *SHORTEST)
    assert again["slow_hash"] == summary["slow_hash"] and again["val_loss"] == summary["val_loss"]
    assert (finished / "hf/model.safetensors").read_bytes() == model
    assert (finished / "metrics.jsonl").read_text().count('"validation"') == 2, "it is not evaluated again"
    (finished / "hf").rename(finished / ".hf.old-0123abcd")
    (finished / ".hf.partial-0123abcd").mkdir()
    assert run(finished, *SHORTEST) == again and not list(finished.glob(".hf.*"))


@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda content: "{}"])
def test_a_summary_that_cannot_be_read_is_written_again(damage, finished):
    summary, file = summary_of(finished), finished / "summary.json"
    file.write_text(damage(file.read_text()))
    again = run(finished, *SHORTEST)
    assert (again["slow_hash"], again["val_loss"]) == (summary["slow_hash"], summary["val_loss"])


def test_the_summary_of_an_earlier_version_is_printed_without_the_lines_that_it_lacks(finished, capsys):
    summary = summary_of(finished)
    earlier = {name: summary[name] for name in (*RESULTS, "ratio_to_fp32")}
    (finished / "summary.json").write_text(json.dumps(earlier))
    capsys.readouterr()
    assert run(finished, *SHORTEST) == earlier
    said, names = capsys.readouterr().out, ("sent", "model", "figure", "summary")
    assert [line.split()[0] for line in said.splitlines()[1:]] == list(names) and "is a finished run" in said


def test_a_finished_run_is_extended(tmp_path, capsys):
    """At a constant learning rate it ends as the long run does, bit for bit; the decay of a method's follows too."""
    steady = ["inner.lr_floor=1", "inner.warmup_steps=0", "schedule.sync_every=2", "recipe=sparseloco"]
    run(tmp_path / "run", *steady, "rounds=2")
    extended, whole = (run(tmp_path / name, *steady, "rounds=4") for name in ("run", "whole"))
    assert "extended from 2 to 4 rounds" in capsys.readouterr().out
    for key in ("slow_hash", "val_loss", "tokens", "rounds"):
        assert extended[key] == whole[key], key
    with pytest.raises(UserError, match="rounds is 4 there and 2 here"):
        run(tmp_path / "run", *steady, "rounds=2")
    ddp = ["recipe=ddp", "schedule.sync_every=1"]
    assert [run(tmp_path / "ddp", *ddp, f"rounds={rounds}")["rounds"] for rounds in (2, 3)] == [2, 3]


def test_a_run_starts_from_the_weights_of_another(tmp_path):
    short = ["rounds=1", "schedule.sync_every=2"]
    first = run(tmp_path / "first", *short)
    for name, source in {"second": "first", "third": "first/hf"}.items():
        later = run(tmp_path / name, *short, f"init_from={tmp_path / source}", "workers=1")
        assert later["val_loss_initial"] == pytest.approx(first["val_loss"], abs=1e-3)
    for typed, said in {
        "model.hidden_size=48": "has shape",
        "model.layers=5": "has no parameter model.layers.4",
    }.items():
        with pytest.raises(UserError, match=said):
            run(tmp_path / "other", *short, f"init_from={tmp_path}/first", typed)
    with pytest.raises(UserError, match=r"init_from=.*nowhere: this folder does not exist: set it to"):
        run(tmp_path / "other", *short, f"init_from={tmp_path}/nowhere")


def test_a_resumed_run_does_not_need_the_weights_from_which_it_started(tmp_path, capsys):
    """Other weights are not used either: a note states this, and config.yaml keeps the first ones."""
    options = ["schedule.sync_every=2", "inner.lr_floor=1", "inner.warmup_steps=0"]
    run(tmp_path / "first", *options, "rounds=1")
    whole = run(tmp_path / "whole", *options, "rounds=3", f"init_from={tmp_path}/first")
    run(tmp_path / "run", *options, "rounds=1", f"init_from={tmp_path}/first")
    (tmp_path / "first").rename(tmp_path / "moved")
    capsys.readouterr()
    run(tmp_path / "run", *options, "rounds=2", f"init_from={tmp_path}/first")
    assert "init_from=" not in capsys.readouterr().out
    resumed = run(tmp_path / "run", *options, "rounds=3", f"init_from={tmp_path}/moved")
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"init_from={tmp_path}/moved is not used, because the run continues from its checkpoint" in said
    assert resumed["slow_hash"] == whole["slow_hash"]
    assert OmegaConf.load(tmp_path / "run/config.yaml").init_from == f"{tmp_path}/first"


RESUMED = ["rounds=6", "schedule.sync_every=4", "checkpoint.every=1", "eval.every=2", "recipe=sparseloco"]


def start(run_dir, *options):
    options = options or RESUMED
    command = [sys.executable, "-m", "outerloop", "train", *SMALL, "exchange=inprocess", *options, f"run_dir={run_dir}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_after_step(run_dir, step):
    """Start or go on, and kill -9 once a whole checkpoint of at least `step` is there."""
    process = start(run_dir)
    while checkpoint.newest_valid(run_dir, 2)[0] is None or checkpoint.newest_valid(run_dir, 2)[0] < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow  # in the default suite: the corrupt checkpoint below, whose run is also killed and resumed
def test_killed_and_resumed_twice_ends_bit_for_bit_the_same(tmp_path):
    """Against the uninterrupted run: weights, validation losses and token counts."""
    whole = run(tmp_path / "whole", *RESUMED)
    kill_after_step(tmp_path / "killed", 4)
    kill_after_step(tmp_path / "killed", 12)
    last = start(tmp_path / "killed")
    said = last.communicate()[0]
    assert last.returncode == 0 and "resuming after inner step" in said
    resumed = summary_of(tmp_path / "killed")
    for key in ("slow_hash", "val_loss", "val_loss_initial", "tokens", "payload_bytes_per_worker"):
        assert resumed[key] == whole[key], key
    rows = [json.loads(line) for line in (tmp_path / "killed/metrics.jsonl").read_text().splitlines()]
    rounds = [row["round"] for row in rows if row["event"] == "round" and row["worker"] == 0]
    assert rounds == [1, 2, 3, 4, 5, 6]
    first, second, third = (row["step"] for row in rows if row["event"] == "ready" and row["worker"] == 0)
    assert first == 0 and second >= 4 and third >= 12


@pytest.mark.slow  # in the default suite without processes: tests/state/test_checkpoint.py
def test_a_corrupt_checkpoint_falls_back_to_the_one_before(tmp_path):
    whole = run(tmp_path / "whole", *RESUMED)
    kill_after_step(tmp_path / "killed", 8)
    newest = checkpoint.newest_valid(tmp_path / "killed", 2)[0]
    broken = checkpoint.generation(tmp_path / "killed", newest) / "worker-1.pt"
    broken.write_bytes(broken.read_bytes()[:-7])
    last = start(tmp_path / "killed")
    said = last.communicate()[0]
    assert last.returncode == 0, said
    assert f"step-{newest:08d}/worker-1.pt is damaged: skipped" in said.replace("\n", "")
    assert summary_of(tmp_path / "killed")["slow_hash"] == whole["slow_hash"]


@pytest.mark.parametrize(
    ("sent", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_an_interrupted_run_saves_first_and_goes_on_bit_for_bit(sent, code, tmp_path):
    """In the middle of a round that would not have been saved."""
    options = ["recipe=sparseloco", "rounds=3", "schedule.sync_every=8", "checkpoint.every=0", "log_every=1"]
    process = start(tmp_path / "run", *options)
    while '"step": 3' not in (read(tmp_path / "run/metrics.jsonl")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.send_signal(sent)
    said = process.communicate()[0]
    [step] = checkpoint.sealed(tmp_path / "run")
    assert process.returncode == code and "Traceback" not in said
    hint = f"the same command with run_dir={tmp_path}/run resumes from the last checkpoint, after inner step {step}"
    assert hint in said.replace("\n", ""), said
    assert step > 3
    resumed = run(tmp_path / "run", *options)
    assert resumed["slow_hash"] == run(tmp_path / "whole", *options)["slow_hash"]


def read(path):
    return path.read_text() if path.exists() else ""


def test_mistakes_exit_with_2_and_one_line(tmp_path, monkeypatch, capsys):
    said = error_of(monkeypatch, capsys, "train", "workers=0", f"run_dir={tmp_path}/x")
    assert "workers=0 must be greater than" in said and not (tmp_path / "x").exists()


def test_wandb_works_offline_and_its_failure_stops_nothing(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(tmp_path / "run", "rounds=2", "schedule.sync_every=2", "log=wandb")
    assert list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))
    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(OSError("no disk")))
    assert run(tmp_path / "other", "rounds=1", "schedule.sync_every=1", "log=wandb")["rounds"] == 1


def test_waiting_for_others_and_utilization_are_printed_unless_workers_take_turns():
    summary = {"compute_s": 9.0, "communication_s": 0.5, "others_s": 0.5, "utilization": 0.9}
    spent = "9.0 s of inner steps per worker, 0.5 s of communication"
    assert spent_line(summary, take_turns=True).split(maxsplit=1) == ["time", spent]
    assert spent_line(summary, take_turns=False).endswith(f"90.0 %: {spent}, 0.5 s of waiting for others")


def test_results_name_the_machine_of_the_tokens_and_the_state_that_newcomers_got(tmp_path, capsys):
    summary = dict.fromkeys(("val_loss_initial", "val_loss", "bits_per_param_per_round", "ratio_to_fp32"), 1.0)
    summary |= {"tokens": 5000, "wall_s": 9.0, "bytes_sent_per_worker": 3e6, "workers": 1, "workers_died": []}
    summary |= {"slow_hash": ["x"], "compute_s": 1.0, "communication_s": 1.0, "others_s": 1.0, "utilization": 0.3}
    for more in ({}, {"workers": 2, "state_bytes_sent_per_worker": 2e6}):
        print_results(summary | more, tmp_path, Console(width=200), take_turns=False)
    said = capsys.readouterr().out
    assert "after 5.0k tokens in 9 s" in said and "after 5.0k tokens of this machine in 9 s" in said
    assert "3.0 MB per worker, 1.000 bits" in said
    assert "3.0 MB per worker (of which 2.0 MB: the state, for newcomers), 1.000 bits" in said


def test_checkpoints_that_are_kept_text_and_a_model_while_training(tmp_path, capsys):
    """Text and export change nothing in what is trained."""
    options = ["rounds=4", "schedule.sync_every=2", "checkpoint.every=1"]
    whole = run(tmp_path / "plain", *options)
    assert len(checkpoint.sealed(tmp_path / "plain")) == 2
    capsys.readouterr()
    extra = ["checkpoint.keep=3", "checkpoint.hf_every=3", "samples.every=2", "samples.tokens=5", "samples.prompt=def"]
    assert run(tmp_path / "run", *options, *extra)["slow_hash"] == whole["slow_hash"]
    assert len(checkpoint.sealed(tmp_path / "run")) == 3
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    samples = [row for row in rows if row["event"] == "sample"]
    assert [row["round"] for row in samples] == [2, 4] and all(row["text"].startswith("def") for row in samples)
    assert "round 2/4  sample: def" in capsys.readouterr().out
    card = (tmp_path / "run/hf/README.md").read_text()
    assert f"| {whole['val_loss']:.4f} |" in card and "from_pretrained" in card and "compress._target_: " in card


LAUNCHERS = {
    "basic": ["seed=0,1"],
    "joblib": ["seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["seed=0,1", "hydra/launcher=submitit_local"],
    "optuna": ["inner.lr=interval(1e-4,1e-2)", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2"],
}


EXTRAS = [name for name in LAUNCHERS if name != "basic"]


NAMES = """\
import json
class Names:
    def start(self, run): (run.path / "names.json").write_text(json.dumps([run.name, run.group, run.tags]))
    def write(self, row): raise OSError("enough")
    def close(self): pass
"""
"""A sink that writes down under which names a run appears in a logger."""


@pytest.mark.parametrize("launcher", ["basic", *(pytest.param(name, marks=pytest.mark.slow) for name in EXTRAS)])
def test_multirun_gives_one_run_a_combination(launcher, tmp_path):
    """Also through hydra's launchers for many processes and clusters, and its sweeper that looks for the best.

    Each is named after what is swept, and they are a group.
    """
    (tmp_path / "names.py").write_text(NAMES)
    tiny = ["recipe=diloco", "rounds=1", "schedule.sync_every=1", "exchange=inprocess"]
    tiny += [f"hydra.sweep.dir={tmp_path}/sweep", "+log.names._target_=names.Names"]
    command = [sys.executable, "-m", "outerloop", "train", "-m", *SMALL, *tiny, *LAUNCHERS[launcher]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "sweep").glob("*/summary.json"))) == 2
    told = [json.loads((tmp_path / f"sweep/{job}/names.json").read_text()) for job in range(2)]
    names, groups, tags = zip(*told, strict=True)
    assert groups == ("sweep", "sweep")
    if launcher == "optuna":
        assert len(set(names)) == 2 and all(name.startswith("diloco-lr0.00") for name in names)
    else:
        assert names == ("diloco-seed0", "diloco-seed1") and {"diloco", "seed=1", "exchange=InProcess"} <= set(tags[1])


def test_multirun_checks_every_combination_before_the_first_run(tmp_path, monkeypatch, capsys):
    sweep = ["recipe=diloco,ddp", "schedule.sync_every=1,3", f"hydra.sweep.dir={tmp_path}/sweep"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_command, "handle_interrupts", lambda: None)
    assert "schedule.sync_every=1" in error_of(monkeypatch, capsys, "train", "-m", *SMALL, *sweep)
    assert not (tmp_path / "sweep").exists()
