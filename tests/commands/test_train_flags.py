"""`outerloop train`: hydra's flags, own recipes, options of earlier runs, completion."""

import logging
import signal
import sys

import pytest
import yaml

from outerloop.commands import main, train
from outerloop.config import load
from outerloop.config.options import sweep_check, typed_options
from outerloop.config.options.compose import complete
from outerloop.config.options.search_path import ENVIRONMENT, choices_in, config_dir, packages_with_configs
from outerloop.config.options.user_files import with_file_paths
from outerloop.launcher import multirun
from outerloop.launcher.train import train as run
from outerloop.types import UserError

MINE = "defaults:\n  - /recipe/diloco\n  - _self_\nschedule:\n  sync_every: 7\n"
TINY = [
    "model=nano",
    "workers=2",
    "exchange=inprocess",
    "rounds=1",
    "schedule.sync_every=1",
    "eval.sequences=4",
    "inner.batch=1",
]


@pytest.fixture(autouse=True)
def root_handlers(monkeypatch):
    """Restore the handlers of the root logger: hydra's own help adds one that writes to this test's stdout."""
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a recipe in mine.yaml, in conf/ and in another folder of yaml files."""
    (tmp_path / "mine.yaml").write_text(MINE)
    for name in ("conf", "more"):
        (tmp_path / name / "recipe").mkdir(parents=True)
        (tmp_path / name / "recipe" / f"in_{name}.yaml").write_text("# @package _global_\n" + MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def outerloop(monkeypatch, capsys):
    def call(line):
        monkeypatch.setattr(sys, "argv", ["outerloop", *line.split()])
        capsys.readouterr()
        try:
            code = main.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("typed", [[], ["rounds=3"]])
def test_no_flag_is_needed(typed):
    flags = train.parse(typed)
    assert flags.overrides == typed and not flags.cfg and not flags.multirun


def test_the_help_lists_every_choice_of_every_group_in_lines_that_fit(outerloop):
    code, out, _ = outerloop("train --help")
    assert code == 0 and max(map(len, out.splitlines())) <= 120
    for group, names in choices_in([config_dir()]).items():
        assert f"  {group}=" in out and {*names} <= {*out.split()}


@pytest.mark.parametrize("flag", ["--cfg", "-c job"])
def test_cfg_shows_a_configuration_wherever_it_stands(outerloop, flag):
    for line in (f"train {flag} recipe=diloco rounds=3", f"train recipe=diloco {flag} rounds=3"):
        code, out, _ = outerloop(line)
        shown = yaml.safe_load(out)
        assert code == 0 and shown["schedule"]["sync_every"] == 100 and shown["rounds"] == 3
    assert yaml.safe_load(outerloop(f"train {flag} -p schedule")[1])["sync_every"] == 15


def test_hydras_other_flags(outerloop, folder):
    assert "sweep" in yaml.safe_load(outerloop("train --cfg hydra")[1])["hydra"]
    assert yaml.safe_load(outerloop("train --cfg job --resolve")[1])["exchange"]["peers"] == 4
    assert str(folder / "more") in outerloop("train --info searchpath --config-dir more")[1]
    code, out, _ = outerloop("train --config-dir=more recipe=in_more -c job -p schedule")
    assert code == 0 and "sync_every: 7" in out
    assert "Hydra (" in outerloop("train --hydra-help")[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train --foo", "--foo is not a flag"),
        ("train -m --cfg job", "--multirun and --cfg exclude each other"),
        ("train --resolve", "--resolve applies only to --cfg"),
        ("train --package", "expected one argument"),
        ("train --config-name x", "--config-name does not apply"),
        ("train --config-dir nowhere", "--config-dir nowhere is not a folder"),
        ("train --config nowhere/config.yaml", r"nowhere/\.hydra/overrides\.yaml is missing or damaged"),
        ("train run_dir=a hydra.run.dir=b", r"the folder of the run: omit hydra\.run\.dir"),
        ("train hydra/launcher=joblib", "hydra/launcher=joblib applies only to a sweep: run outerloop train -m, or"),
        ("train hydra/sweeper=optuna", "hydra/sweeper=optuna applies only to a sweep"),
        ("train hydra.sweep.dir=a", "hydra.sweep.dir=a applies only to a sweep"),
        ("train -m hydra.run.dir=b", r"set hydra\.sweep\.dir=FOLDER"),
        ("trian", "is not a command.*: run outerloop train"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(outerloop, line, said):
    import re

    code, _, err = outerloop(line)
    assert code == 2 and err.count("\n") == 1 and re.search(said, err)


def test_sigterm_ends_a_sweep_as_it_ends_a_run(outerloop, monkeypatch):
    def terminated(overrides):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(multirun, "multirun", terminated)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code, _, said = outerloop("train -m seed=0,1")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, said) == (143, "\nstopped\n")


def test_hydra_run_dir_is_the_run_dir():
    assert typed_options.with_run_dir(["seed=1", "hydra.run.dir=a/b"]) == ["seed=1", "run_dir=a/b"]


def test_a_recipe_in_a_file_is_a_recipe(folder, monkeypatch):
    settings = load.load(["recipe=./mine.yaml", "rounds=3"])
    assert settings.recipe == "mine" and settings.schedule.sync_every == 7 and settings.method.optimizer.nesterov
    assert load.load(["recipe=in_conf"]).schedule.sync_every == 7
    monkeypatch.setenv(ENVIRONMENT, str(folder / "more"))
    assert load.load(["recipe=in_more"]).schedule.sync_every == 7
    (folder / "half.yaml").write_text("_target_: outerloop.compress.cast.Cast\ndtype: float16\n")
    assert load.load(["recipe=diloco", "compress=half.yaml"]).compress.dtype == "float16"


def test_what_cannot_be_a_recipe_is_refused_in_one_line(folder, monkeypatch):
    (folder / "diloco.yaml").write_text(MINE)
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "conf/recipe/ddp.yaml").write_text("rounds: 2\n")
    for typed, said in {
        "recipe=./diloco.yaml": "has the name of another recipe: rename the file",
        "recipe=./list.yaml": "does not contain options",
        "recipe=./none.yaml": r"cannot be read \(No such file",
        "recipe=ddp": "conf/recipe/ddp.yaml has the same name as a yaml file of outerloop",
    }.items():
        with pytest.raises(UserError, match=said):
            load.load([typed])
    monkeypatch.setenv(ENVIRONMENT, "nowhere")
    with pytest.raises(UserError, match="OUTERLOOP_CONFIG_PATH=nowhere is not a folder"):
        load.load([])


def test_other_packages_bring_parts_by_an_entry_point(folder, monkeypatch):
    (folder / "other_package").mkdir()
    (folder / "other_package/__init__.py").write_text("raise ImportError('not to be imported')")
    (folder / "more").rename(folder / "other_package/configs")
    (folder / "other_package-1.dist-info").mkdir()
    (folder / "other_package-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    entry = "[outerloop.configs]\nother = other_package\n"
    (folder / "other_package-1.dist-info/entry_points.txt").write_text(entry)
    (folder / "other_package/configs/recipe").rename(folder / "other_package/recipe")
    monkeypatch.syspath_prepend(folder)
    packages_with_configs.cache_clear()
    assert load.load(["recipe=in_more"]).schedule.sync_every == 7
    monkeypatch.undo()
    packages_with_configs.cache_clear()


def test_a_job_of_a_sweep_records_the_path_of_a_file(folder):
    """Hydra knows the file by its name only, with which another process could not find it."""
    combination, *_ = sweep_check.combinations(complete(["recipe=./mine.yaml,diloco", "seed=1"]))
    assert "recipe=mine" in combination
    again = with_file_paths(combination)
    assert f"recipe='{folder}/mine.yaml'" in again and load.load(again).schedule.sync_every == 7
    assert with_file_paths(["recipe=diloco", "seed=1", "~log"]) == ["recipe=diloco", "seed=1", "~log"]


def test_a_run_can_be_repeated_with_its_options(folder, outerloop):
    typed = [*TINY, "recipe=./mine.yaml", "seed=3", "run_dir=first"]
    run(load.load(typed), overrides=typed)
    assert yaml.safe_load((folder / "first/.hydra/overrides.yaml").read_text()) == typed
    assert train.all_overrides(train.parse(["--config", "first/config.yaml", "seed=4"])) == [*typed[:-1], "seed=4"]
    code, out, _ = outerloop("train --config first/config.yaml inner.lr=1e-4 --cfg job --resolve")
    shown = yaml.safe_load(out)
    assert code == 0 and shown["run_dir"] is None and shown["seed"] == 3 and shown["recipe"] == "mine"
    assert shown["inner"]["optimizer"]["lr"] == shown["inner"]["lr"] == 1e-4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("outerloop tr", "train"),
        ("outerloop ho", "host"),
        ("outerloop host recipe=spa", "recipe=sparseloco recipe=sparta"),
        ("outerloop train recipe=spa", "recipe=sparseloco recipe=sparta"),
        ("outerloop train schedule.s", "schedule.sync_every="),
        ("outerloop report ru", ""),
    ],
)
def test_completion(outerloop, monkeypatch, line, words):
    monkeypatch.setenv("COMP_LINE", line)
    assert outerloop("-sc query=bash")[1].strip() == words


def test_the_completion_script_can_be_installed(outerloop):
    assert "complete -o nospace" in outerloop("-sc install=bash")[1]
