"""Sweeps whose jobs die: the sweep says so, whichever launcher ran them, and the report lists them."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from outerloop.commands import main, report
from outerloop.config import load, run_directory
from outerloop.config.options.sweep_check import hydra_settings
from outerloop.launcher import multirun, train
from outerloop.launcher.interrupts import Terminated
from outerloop.launcher.run_info import with_short_names
from outerloop.launcher.sweep import stop as sweep_stop
from outerloop.report import runs
from outerloop.state import checkpoint
from outerloop.types import UserError
from tests.support.swarm.loopback import eventually
from tests.support.train_processes import rounds_done

SMALL = (
    "exchange=inprocess model=nano workers=2 rounds=1 schedule.sync_every=1 eval.sequences=4 inner.batch=2 threads=1"
)
LAUNCHERS = {
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["hydra/launcher=submitit_local"],
}


def sweep(folder, *options):
    """A sweep as a command of its own: exit code, what it said."""
    command = [sys.executable, "-m", "outerloop", "train", "-m", *SMALL.split(), *options]
    done = subprocess.run(
        [*command, f"hydra.sweep.dir={folder}/sweep"], capture_output=True, text=True, cwd=folder, timeout=220
    )
    return done.returncode, done.stdout + done.stderr


def check_told(folder, code, said):
    """Job 0 has finished, job 1 has died of a missing file: that is said, and reported."""
    assert code == 1, said
    [told] = [line for line in said.splitlines() if line.startswith(f"outerloop: {folder}/sweep/1 died: ")]
    assert "nofile matches no file" in told
    assert "Finished runs" in said and f"outerloop report {folder}/sweep" in said
    assert f"{folder}/sweep/0 died" not in said and (folder / "sweep/0/summary.json").exists()
    assert "\n# sparseloco-filestext.md\n" in (folder / "sweep/0/hf/README.md").read_text()
    [good, dead] = map(runs.read, runs.find([folder / "sweep"]))
    assert good.results is not None and dead.results is None
    assert dead.recipe == "sparseloco" and dead.settings["data.files"] == "nofile"
    assert told.endswith(dead.why)


@pytest.mark.slow
def test_a_job_that_dies_is_told_and_listed(tmp_path, capsys):
    (tmp_path / "text.md").write_bytes(b"the quick brown fox. " * 4000)
    check_told(tmp_path, *sweep(tmp_path, "data=text", "data.files=text.md,nofile"))
    assert report.main([str(tmp_path / "sweep")]) == 0
    assert "nofile matches no file" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_that_dies_in_a_process_of_its_own_is_told_and_listed(launcher, tmp_path):
    (tmp_path / "text.md").write_bytes(b"the quick brown fox. " * 4000)
    check_told(tmp_path, *sweep(tmp_path, "data=text", "data.files=text.md,nofile", *LAUNCHERS[launcher]))


@pytest.mark.slow
def test_a_job_that_is_killed_outright_is_told_and_listed(tmp_path):
    """Its data kills the process, as a machine out of memory does: it leaves a folder and no word."""
    (tmp_path / "deadly.py").write_text("import os, signal\n\ndef corpus(): os.kill(os.getpid(), signal.SIGKILL)\n")
    options = ["data._target_=deadly.corpus", "~data.non_iid", "seed=0,1", *LAUNCHERS["joblib"]]
    code, said = sweep(tmp_path, *options)
    assert (
        code == 1
        and f"outerloop: {tmp_path}/sweep/0 died: ended without an error message before training began" in said
    )
    assert {path.name for path in runs.find([tmp_path / "sweep"])} >= {"0"}


@pytest.mark.slow
def test_a_sweeper_that_looks_for_the_best_goes_on_after_a_job_that_died(tmp_path):
    """Its value is infinite; optuna tries the next."""
    options = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "inner.device=choice(cpu,nothing)"]
    code, said = sweep(tmp_path, *options)
    finished = len(list((tmp_path / "sweep").glob("*/summary.json")))
    assert len(list((tmp_path / "sweep").glob("[0-9]"))) == 3, said
    assert said.count("died: inner.device='nothing' is not available") == 3 - finished and code == (finished < 3)


def test_which_runs_died_is_read_from_the_folders(tmp_path):
    """One that left a word, one that was killed before it began, one under way; the order is that of the numbers."""
    settings = load.load([*SMALL.split(), f"run_dir={tmp_path}/10", "recipe=diloco"])
    multirun.record_failure(settings, UserError("first line\nno space left"))
    (tmp_path / "9").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2/config.yaml").write_text("recipe: ddp\n")
    (tmp_path / "notes").mkdir()
    told = [(run.path.name, run.recipe, run.why) for run in multirun.failed_runs(tmp_path)]
    assert told == [
        ("2", "ddp", "stopped after round 0"),
        ("9", "unknown", "ended without an error message before training began"),
        ("10", "diloco", "no space left"),
    ]
    assert [run.path.name for run in multirun.failed_runs(tmp_path, interrupted=True)] == ["10"]
    assert [path.name for path in runs.find([tmp_path])] == ["10", "2"]
    (tmp_path / "multirun.yaml").touch()
    assert [path.name for path in runs.find([tmp_path])] == ["10", "2", "9"]


def test_a_run_that_died_in_a_sweep_can_be_started_again_where_it_was(tmp_path, monkeypatch):
    options = [*SMALL.split(), f"run_dir={tmp_path}/1"]
    multirun.record_failure(load.load(options), UserError("no space left"))
    monkeypatch.setattr(sys, "argv", ["outerloop", "train", *options])
    assert main.main() == 0
    assert not (tmp_path / "1/died.json").exists() and multirun.failed_runs(tmp_path) == []
    json.loads((tmp_path / "1/summary.json").read_text())


def contents(folder):
    """File -> content, for all files in and under a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow  # three commands; the next test checks the rule in this process
def test_a_job_in_the_folder_of_a_run_of_another_configuration_has_failed_and_leaves_the_folder_alone(tmp_path):
    """The first sweep leaves one run; the jobs of the second one meet it, and a third one, as the first, is done."""
    assert sweep(tmp_path, "seed=3")[0] == 0
    before = contents(tmp_path / "sweep/0")
    code, said = sweep(tmp_path, "seed=4,5")
    assert code == 1 and f"outerloop: {tmp_path}/sweep/0 died: run_dir={tmp_path}/sweep/0 belongs to another" in said
    assert f"{tmp_path}/sweep/1 died" not in said
    assert contents(tmp_path / "sweep/0") == before
    assert [run.why for run in map(runs.read, runs.find([tmp_path / "sweep"]))] == ["", ""]
    code, said = sweep(tmp_path, "seed=3")
    assert code == 0 and "died" not in said and contents(tmp_path / "sweep/0") == before


def test_a_job_in_the_folder_of_a_finished_run_of_another_configuration_has_failed(tmp_path):
    options = [*SMALL.split(), f"run_dir={tmp_path}/0"]
    finished, other = load.load(options), load.load([*options, "seed=1"])
    run_directory.open_run(finished).close()
    (tmp_path / "0/summary.json").write_text(json.dumps(dict.fromkeys(runs.RESULTS, 1.0)))
    with pytest.raises(UserError, match="seed is 0 there") as error:
        run_directory.open_run(other)
    multirun.record_failure(other, error.value)
    [failed] = multirun.failed_runs(tmp_path)
    assert failed.path.name == "0" and "belongs to another configuration" in failed.why and failed.results
    assert not (tmp_path / "0/died.json").exists() and runs.read(tmp_path / "0").why == ""
    assert runs.find([tmp_path]) == [tmp_path / "0"]
    multirun.forget_failure(finished)
    assert multirun.failed_runs(tmp_path) == []


@pytest.mark.parametrize("typed", ["runs/a", "runs/it's", "/tmp/a b", "runs/a,b", "runs/a=b", "runs/${x"])
def test_the_folder_of_a_sweep_is_what_was_typed(typed):
    option = multirun.SWEEP_DIR + multirun.quoted(Path(typed))
    [override] = load.parse_overrides([option])
    assert override.value() == typed


def test_the_folder_of_a_sweep_has_the_time_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "now")
    settings = hydra_settings(["hydra.sweep.dir=a/b"])
    named_by_time = [multirun.sweep_folder([], settings), multirun.sweep_folder([], settings)]
    assert named_by_time == [Path("runs/now-sweep"), Path("runs/now-sweep-2")]
    assert multirun.sweep_folder(["hydra.sweep.dir=a/b"], settings) == Path("a/b")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["inner.lr", "seed"], ["lr", "seed"]),
        (["inner.lr", "method.optimizer.lr", "seed"], ["inner.lr", "method.optimizer.lr", "seed"]),
    ],
)
def test_swept_options_that_end_with_the_same_word_have_their_whole_names(options, named):
    values = {option: str(number) for number, option in enumerate(options)}
    assert with_short_names(values) == dict(zip(named, values.values(), strict=True))


def test_a_job_of_a_sweep_is_resumed_with_the_sweep(monkeypatch, tmp_path):
    """`-m` refuses run_dir, which is the folder that a single run is resumed in."""
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    assert f"the same command with run_dir={tmp_path}/0 " in train.resume_hint(tmp_path / "0")
    basic = {"mode": RunMode.MULTIRUN, "sweeper": {}}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": basic}))
    assert f"the same command with hydra.sweep.dir={tmp_path} " in train.resume_hint(tmp_path / "0")


@pytest.mark.parametrize("seed", [None, 0])
def test_a_job_whose_sampler_has_no_seed_is_resumed_alone(seed, monkeypatch, tmp_path):
    """The sampler would draw other values for the sweep, and job 0 would be another configuration."""
    sampler = {"mode": RunMode.MULTIRUN, "sweeper": {"sampler": {"seed": seed}}}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": sampler}))
    alone, all_jobs = (
        f"train --config {tmp_path}/0 run_dir={tmp_path}/0",
        f"same command with hydra.sweep.dir={tmp_path}",
    )
    assert (alone if seed is None else all_jobs) + " starts" in train.resume_hint(tmp_path / "0")


def test_an_interrupted_job_has_not_died(trained, monkeypatch, tmp_path, capsys):
    """The line that states how to resume it is printed by the job. One that failed before is listed."""

    def interrupt(config, *, overrides):
        if config.seed:
            raise KeyboardInterrupt
        raise UserError("no space left")

    monkeypatch.setattr(multirun, "train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        multirun.multirun([*SMALL.split(), "seed=0,1", f"hydra.sweep.dir={tmp_path}"])
    died = [line for line in capsys.readouterr().err.splitlines() if "died" in line]
    assert died == [f"outerloop: {tmp_path}/0 died: no space left"]


def runs_until_signalled(monkeypatch, folder, number):
    """The value of a job in a process of its own. In its training, this signal arrives twice, or the sweep stops."""
    handled_twice = []
    hydra = {"sweep": {"dir": str(folder)}, "job": {"num": 0}, "overrides": {"task": [], "hydra": []}}
    monkeypatch.setattr(HydraConfig.instance(), "cfg", OmegaConf.create({"hydra": hydra}))
    monkeypatch.setattr(sweep_stop, "sweep_process", None)
    monkeypatch.setattr(sweep_stop, "LOOK_S", 0.01)

    def wait(config, *, overrides):
        if number is None:
            sweep_stop.request_stop(folder)
            time.sleep(60)  # ended by the request
        try:
            signal.raise_signal(number)
        finally:  # `timeout` signals a process and its group
            signal.raise_signal(number)
            handled_twice.append(number)
        return {"val_loss": 1.0}

    monkeypatch.setattr(multirun, "train", wait)
    stopped = sweep_stop.must_stop(folder)
    value = multirun.run_job(load.load([*SMALL.split(), f"run_dir={folder}/0"]))
    assert handled_twice == ([] if number is None or stopped else [number])
    return value


@pytest.fixture
def bypassed():
    """SIGTERM has no effect, as in a job of submitit; afterwards, this handler must still be there.

    The process of a job ignores SIGINT from then on.
    """
    said, of_ctrl_c = [], signal.getsignal(signal.SIGINT)
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: said.append(number))
    handler = signal.getsignal(signal.SIGTERM)
    yield said
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, of_ctrl_c)
    assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, earlier)


def test_sigterm_stops_a_job_of_submitit(bypassed, tmp_path, monkeypatch):
    assert runs_until_signalled(monkeypatch, tmp_path, signal.SIGTERM) == float("inf") and not bypassed
    assert multirun.failed_runs(tmp_path, interrupted=True) == []


def test_a_job_in_a_process_of_its_own_leaves_ctrl_c_to_the_sweep(bypassed, tmp_path, monkeypatch):
    assert runs_until_signalled(monkeypatch, tmp_path, signal.SIGINT) == 1.0


def test_a_sweep_stops_its_jobs_and_those_that_have_not_begun(bypassed, tmp_path, monkeypatch):
    assert runs_until_signalled(monkeypatch, tmp_path, None) == float("inf")
    assert runs_until_signalled(monkeypatch, tmp_path, signal.SIGINT) == float("inf"), "the request is still there"
    sweep_stop.forget_stop(tmp_path)
    assert runs_until_signalled(monkeypatch, tmp_path, signal.SIGINT) == 1.0


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
@pytest.mark.parametrize("then", [None, RuntimeError("the pool is broken")])
def test_a_sweep_that_is_interrupted_waits_for_its_jobs(number, error, then, tmp_path, capsys):
    done = []
    with pytest.raises(error) as raised, sweep_stop.waiting_for_jobs(tmp_path):
        signal.raise_signal(number)
        done.append(sweep_stop.must_stop(tmp_path))
        if then:
            raise then
    assert done == [True] and raised.type is error
    assert capsys.readouterr().err.count("waiting until all jobs have stopped") == 1


def test_a_sweep_that_is_interrupted_twice_ends_at_once(tmp_path):
    """Twice in a second is once: `timeout` signals a process and its group."""
    now_s = [0.0]
    with pytest.raises(KeyboardInterrupt), sweep_stop.waiting_for_jobs(tmp_path, clock=lambda: now_s[0]):
        for now_s[0] in (0.0, 0.5):
            signal.raise_signal(signal.SIGINT)
        now_s[0] = 1.5
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second one did not end the block")


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (["hydra.launcher.n_jobs=3"], ["hydra.launcher.n_jobs=2"]),
        (["hydra.launcher.n_jobs=1"], ["hydra.launcher.n_jobs=1"]),
        (["hydra.launcher.n_jobs=3", "hydra/sweeper=optuna"], []),
        (["hydra/launcher=basic"], []),
    ],
)
def test_joblib_has_no_more_processes_than_jobs(options, processes):
    """Ctrl-C ends a process without a job, and joblib then kills the others."""
    assert multirun.joblib_processes(hydra_settings(["hydra/launcher=joblib", *options]), 2) == processes


def test_an_ignored_ctrl_c_stays_ignored_in_a_sweep(tmp_path):
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with sweep_stop.waiting_for_jobs(tmp_path):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, earlier)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "number"), [("joblib", signal.SIGINT), ("submitit", signal.SIGTERM)])
def test_jobs_in_processes_of_their_own_save_before_the_sweep_ends(launcher, number, tmp_path):
    """Ctrl-C reaches all processes of the terminal, SIGTERM only the sweep."""
    options = [*SMALL.split(), "rounds=100000", "checkpoint.every=1000000", "seed=0,1", *LAUNCHERS[launcher]]
    command = [sys.executable, "-m", "outerloop", "train", "-m", *options, f"hydra.sweep.dir={tmp_path}/sweep"]
    jobs = [tmp_path / "sweep" / str(job) for job in (0, 1)]
    with (tmp_path / "log").open("w") as log:
        sweep = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        assert eventually(lambda: all(rounds_done(job) > 2 for job in jobs), limit_s=120)
        (os.killpg if number == signal.SIGINT else os.kill)(sweep.pid, number)
        code = sweep.wait(120)
    finally:
        with suppress(ProcessLookupError):  # the jobs too
            os.killpg(sweep.pid, signal.SIGKILL)
    assert code == 128 + number, (tmp_path / "log").read_text()
    assert all(checkpoint.sealed(job) for job in jobs), (tmp_path / "log").read_text()
    assert "waiting until all jobs have stopped" in (tmp_path / "log").read_text()


@pytest.fixture
def trained(monkeypatch):
    """The settings of each job of a sweep in this process. The jobs do not train."""
    settings = []

    def record(config, *, overrides):
        settings.append(config)
        return {"val_loss": 1.0}

    monkeypatch.setattr(multirun, "train", record)
    monkeypatch.setattr(sys, "argv", ["outerloop"])
    return settings


def test_a_job_has_the_settings_of_a_single_run(trained, tmp_path):
    """Without the options of a replaced part: NoFeedback does not take the recipe's feedback.beta."""
    options = ["recipe=outerloop_v1", *SMALL.split()]
    multirun.multirun([*options, "feedback=none,ef", f"hydra.sweep.dir={tmp_path}"])
    single = [
        load.load([*options, f"feedback={name}", f"run_dir={tmp_path}/{i}"]) for i, name in enumerate(("none", "ef"))
    ]
    for config in single:
        OmegaConf.resolve(config)
    assert trained == single and [*trained[0].feedback] == ["_target_"]
    assert not logging.getLogger(multirun.__name__).disabled and logging.getLogger("outerloop").isEnabledFor(30)


def test_a_combination_that_a_sweeper_has_sampled_is_checked_by_its_job(trained, tmp_path, capsys):
    """Each value is valid with the first values of the other options, which are checked before."""
    sampler = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=0"]
    swept = ["workers=choice(1,3)", "eval.sequences=choice(3,2)", "hydra.sweeper.n_trials=12"]
    options = [option for option in SMALL.split() if option.partition("=")[0] not in ("workers", "eval.sequences")]
    assert multirun.multirun([*options, *sampler, *swept, f"hydra.sweep.dir={tmp_path}"]) == 1
    assert {(config.workers, config["eval"].sequences) for config in trained} == {(1, 3), (1, 2), (3, 3)}
    assert "died: eval.sequences=2 is less than one per worker: set eval.sequences=3" in capsys.readouterr().err
