"""Run `outerloop train -m`: one run for each combination of swept options, with any hydra launcher and sweeper."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import hydra
from hydra.conf import OverridesConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from outerloop.config import budget, load
from outerloop.config.options.compose import SEARCH_PATH, complete
from outerloop.config.options.resumed_settings import refuse_other_run
from outerloop.config.options.search_path import config_dir
from outerloop.config.options.sweep_check import expand_globs, hydra_settings, load_combinations
from outerloop.config.options.user_files import with_file_paths
from outerloop.config.run_directory import new_folder
from outerloop.launcher.supervisor import WorkerCrashed
from outerloop.launcher.sweep import stop as sweep_stop
from outerloop.launcher.train import train
from outerloop.output import print_error, print_leniently
from outerloop.report import runs, terminal
from outerloop.report.groups import Comparison
from outerloop.report.runs import DIED, Run
from outerloop.state import checkpoint
from outerloop.types import UserError

SWEEP_DIR = "hydra.sweep.dir="
LOCAL_LAUNCHERS = ("JoblibLauncher", "LocalLauncher")
"""Hydra's launchers that run jobs in other processes of this machine: joblib and submitit_local."""
CLUSTER_LAUNCHER = "SlurmLauncher"
NO_SUBFOLDER = "hydra.output_subdir=null"
"""Keeps hydra from writing to a job's folder, which may contain a run of another configuration."""


def multirun(overrides: list[str]) -> int:
    """Check the combinations of options, run the sweep, and print a table of the runs and the reason for each failure.

    Return exit code 1 if any run failed, else 0. Failures are detected from the files in the sweep's folder, because
    launchers may run jobs in other processes or on other machines. If the sweep is interrupted, its jobs on this
    machine save and end first (sweep/stop.py). Only recorded failures are printed then: the other runs can be resumed,
    as their last lines state.
    """
    overrides = expand_globs(complete(overrides))
    if any(o.startswith(("run_dir=", "hydra.run.dir=")) for o in overrides):
        raise UserError("run_dir= with -m would give every run the same folder: set hydra.sweep.dir=FOLDER")
    settings = hydra_settings(overrides)
    configs = load_combinations(overrides, settings)
    if not configs:
        raise UserError("one of the swept options has no values, so there is nothing to run: set at least one value")
    if any(config.workers_as == "ranks" or config.island.kind != "single" for config in configs):
        raise UserError("torchrun starts a single run: omit -m, or set exchange=inprocess island=single")
    swept = {override.key_or_group for override in load.parse_overrides(overrides) if override.is_sweep_override()}
    if not swept & {"rounds", *budget.BUDGETS} and (warning := budget.unequal_work(configs)):
        print_error(f"outerloop: {warning}")
    folder = sweep_folder(overrides, settings)
    added = [SWEEP_DIR + quoted(folder), not_swept(overrides), *joblib_processes(settings, len(configs))]
    sys.argv = [sys.argv[0], "--multirun", NO_SUBFOLDER, *overrides, *added]
    sweep_stop.sweep_process = os.getpid()
    sweep_stop.forget_stop(folder)
    launcher = class_name(settings.launcher)
    interrupted = False
    try:
        with sweep_stop.waiting_for_jobs(folder) if launcher in LOCAL_LAUNCHERS else nullcontext():
            hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(run_job)()
        print_report(folder)
    except KeyboardInterrupt:
        interrupted = True
        if launcher == CLUSTER_LAUNCHER:
            print_error("the jobs on the cluster continue: run scancel JOB to end one, which saves a checkpoint first")
        raise
    finally:
        failed = failed_runs(folder, interrupted=interrupted)
        for run in failed:
            print_error(f"outerloop: {run.path} died: {run.why}")
    return 1 if failed else 0


def print_report(folder: Path) -> None:
    """Print the table that compares the runs of a sweep, if any run has started."""
    if paths := runs.runs_under(folder):
        print()
        terminal.print_comparison(Comparison([runs.read(path) for path in paths], baseline=None), terminal.console())
        print(f"to draw the curves, run: outerloop report {folder}")


def sweep_folder(overrides: list[str], settings: DictConfig) -> Path:
    """Return the folder of the sweep: hydra.sweep.dir if it is set, else a new one named after the current time."""
    is_set = any(o.startswith(SWEEP_DIR) for o in overrides)
    return Path(settings.sweep.dir) if is_set else new_folder("sweep")


def not_swept(overrides: list[str]) -> str:
    """Return the hydra override that leaves options with only one value out of job names (run_info.py)."""
    constant = [o.key_or_group for o in load.parse_overrides(overrides) if not o.is_sweep_override()]
    return f"hydra.job.config.override_dirname.exclude_keys=[{','.join(constant)}]"


def class_name(part: DictConfig) -> str:
    """Return the name of the class that hydra makes from the settings of one of its parts."""
    return part._target_.rpartition(".")[2]


def joblib_processes(settings: DictConfig, jobs: int) -> list[str]:
    """Return the hydra override that gives joblib at most one process for each of the `jobs`, if joblib runs them all.

    Ctrl-C ends a process that has no job, and joblib then kills those whose jobs are still saving. Sweepers that choose
    combinations do not run all of them.
    """
    if (class_name(settings.launcher), class_name(settings.sweeper)) != ("JoblibLauncher", "BasicSweeper"):
        return []
    import joblib  # an optional dependency, which this launcher has

    return [f"hydra.launcher.n_jobs={min(joblib.effective_n_jobs(settings.launcher.n_jobs), jobs)}"]


def quoted(folder: Path) -> str:
    """Return a path quoted for hydra, so that it may contain spaces, commas or quotes."""
    return "'" + str(folder).replace("'", "\\'") + "'"


def failed_runs(folder: Path, *, interrupted: bool = False) -> list[Run]:
    """Return the runs of a sweep whose job failed, or that have no summary although the sweep was not interrupted.

    They are ordered by number. A job also fails if its folder contains a run of another configuration.
    """
    numbered = [path for path in folder.glob("*/") if path.name.isdigit()]
    failed = [
        path
        for path in numbered
        if (path / DIED).exists()
        or refusal_file(path).exists()
        or (runs.read_results(path) is None and not interrupted)
    ]
    return [run_of_job(path) for path in sorted(failed, key=lambda path: int(path.name))]


def run_of_job(folder: Path) -> Run:
    """Read the run in a job's folder. If the job was refused because of another run there, `why` states this reason."""
    run, refusal = runs.read(folder), runs.read_record(refusal_file(folder))
    return replace(run, why=refusal["why"]) if "why" in refusal else run


def refusal_file(folder: Path) -> Path:
    """Return the file, next to a job's folder, that records that the folder contains a run of another configuration."""
    return folder.with_name(f"{folder.name}.{DIED}")


def run_job(settings: DictConfig) -> float:
    """Train one run of the sweep, and return its validation loss, or infinity if it died or was stopped.

    In the process that runs the sweep, a job that is interrupted raises KeyboardInterrupt instead.
    """
    folder = Path(HydraConfig.get().sweep.dir)
    if sweep_stop.must_stop(folder):
        return float("inf")
    try:
        with sweep_stop.stopping_with_sweep(folder):
            return train_job(settings)
    except KeyboardInterrupt:  # the job has saved, and its last line states how to resume it
        if sweep_stop.in_sweep_process():
            raise
        return float("inf")


def train_job(settings: DictConfig) -> float:
    """Train one run of the sweep in its numbered folder. Return its validation loss, or infinity if it died.

    The settings that hydra has composed are loaded again, which completes them as for a single run, and checks values
    that a sweeper has sampled. A UserError or a crashed worker ends only this run. Any other error is re-raised and
    ends the sweep.
    """
    runtime = HydraConfig.get()
    overrides, folder = typed_overrides(runtime.overrides), str(Path(runtime.sweep.dir) / str(runtime.job.num))
    settings.run_dir = folder
    print_leniently(f"\n== {folder}: {', '.join(runtime.overrides.task)}")
    forget_failure(settings)
    try:
        settings = load.load(overrides)
        settings.run_dir = folder
        OmegaConf.resolve(settings)
        return float(train(settings, overrides=overrides)["val_loss"])
    except Exception as error:
        record_failure(settings, error)
        if not isinstance(error, UserError | WorkerCrashed):
            raise
        return float("inf")


def typed_overrides(job: OverridesConf) -> list[str]:
    """Return the overrides that determine a job's settings: options, with paths of user files, and the search path."""
    return [*with_file_paths(job.task), *(text for text in job.hydra if text.startswith(SEARCH_PATH))]


def record_failure(settings: DictConfig, error: Exception) -> None:
    """Write the reason for a job's failure to its folder, where the sweep and `outerloop report` read it.

    If the folder contains a run of another configuration, write it next to the folder instead, where only the sweep
    reads it.
    """
    folder, lines = Path(settings.run_dir), str(error).strip().splitlines() or [type(error).__name__]
    folder.mkdir(parents=True, exist_ok=True)
    record = {"why": lines[-1], "settings": OmegaConf.to_container(settings)}
    file = refusal_file(folder) if contains_other_run(folder, settings) else folder / DIED
    checkpoint.write_atomically(file, json.dumps(record).encode())


def contains_other_run(folder: Path, settings: DictConfig) -> bool:
    """Return whether a folder contains a run of another configuration, or one that cannot be compared to `settings`."""
    if not (folder / "config.yaml").exists():
        return False
    try:
        refuse_other_run(folder, settings)
    except (UserError, OmegaConfBaseException):
        return True
    return False


def forget_failure(settings: DictConfig) -> None:
    """Remove the record that an earlier job with this folder was refused, before the job starts."""
    refusal_file(Path(settings.run_dir)).unlink(missing_ok=True)
