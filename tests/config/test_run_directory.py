"""The run directory: whose it is, which settings may change, and which rows of a run survive."""

import errno
import json

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from outerloop.config import load, run_directory
from outerloop.config.options import resumed_settings
from outerloop.config.renamed_parts import RENAMED
from outerloop.launcher.run_worker import run_once
from outerloop.state.durable import make_folder
from outerloop.types import UserError


def test_a_run_dir_of_another_configuration_is_refused_untouched(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "seed=1"])).close()
    before = (tmp_path / "a/config.yaml").read_bytes()
    with pytest.raises(UserError, match="seed is 1 there and 2 here: set seed=1 or another run_dir="):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "seed=2"]))
    assert (tmp_path / "a/config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"recipe: [", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "contains no settings"),
        (b"- 1\n", "contains"),
    ],
)
def test_a_damaged_config_is_one_line_and_stays(content, said, tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a"])).close()
    file = tmp_path / "a/config.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"config\.yaml {said}.*set another run_dir=$"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))
    assert file.read_bytes() == content


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_directory.time, "strftime", lambda form: "2026-01-01_00-00-00")
    runs = [run_directory.open_run(load.load(["recipe=diloco", f"seed={seed}"])) for seed in range(3)]
    assert [str(run.path) for run in runs] == [f"runs/2026-01-01_00-00-00-diloco{end}" for end in ("", "-2", "-3")]
    for run in runs:
        run.close()


@pytest.mark.parametrize("options", [["compress=adaptive"], ["compress=auto"], ["feedback=local"]], ids=str)
def test_a_run_that_names_its_parts_as_they_were_called_before_is_resumed(tmp_path, options):
    options = ["recipe=sparseloco", *options, f"run_dir={tmp_path}/a"]
    run_directory.open_run(load.load(options)).close()
    file = tmp_path / "a/config.yaml"
    text = file.read_text()
    for before, now in RENAMED.items():
        text = text.replace(now, before)
    assert text != file.read_text()
    file.write_text(text)
    run_directory.open_run(load.load(options)).close()


@pytest.mark.parametrize("name", RENAMED.values())
def test_renamed_parts_exist(name):
    assert callable(get_object(name)) and name not in RENAMED


def test_a_run_dir_has_one_owner(tmp_path):
    owner = run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))
    with pytest.raises(UserError, match="is in use by another process"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))
    owner.close()
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a"]))


def test_a_run_dir_is_free_again_after_an_error(tmp_path, monkeypatch):
    config = load.load([f"run_dir={tmp_path}/a"])

    def full(*arguments):
        raise OSError("no space left on device")

    with monkeypatch.context() as broken, pytest.raises(UserError, match="no space left") as failed:
        broken.setattr(run_directory.checkpoint, "write_atomically", full)
        run_directory.open_run(config)
    run_directory.open_run(config).close()
    assert failed.tb, "the error keeps the lock file open, so that only `unlock` can have released it"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_not_a_run_in_use(code, tmp_path, monkeypatch):
    def flock(*arguments):
        raise OSError(code, "none here")

    monkeypatch.setattr(run_directory.fcntl, "flock", flock)
    file = tmp_path / "a/.lock"
    with pytest.raises(
        UserError, match=rf"{file} has no file locks \(none here\): set run_dir= to a folder on another"
    ):
        run_directory.lock_directory(make_folder(tmp_path / "a"))
    with pytest.raises(UserError, match="has no file locks"), run_once(tmp_path / ".model", "hash"):
        pass


def test_a_run_dir_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/a cannot be used \(Not a directory\): set run_dir=, or"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/file/a"]))
    config = load.load([f"run_dir={tmp_path}/b"])
    run_directory.open_run(config).close()

    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(run_directory.Path, "open", refuse)
    for start in (run_directory.finished_run, run_directory.open_run):
        with pytest.raises(UserError, match=r"b/\.lock cannot be used \(Permission denied\)"):
            start(config)


@pytest.mark.parametrize("content", ["missing folder", None])
def test_runs_that_is_not_a_folder_is_one_line(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content:
        (tmp_path / "runs").symlink_to(tmp_path / content)
    else:
        (tmp_path / "runs").touch()
    with pytest.raises(UserError, match=r"^runs cannot be used \(File exists\): set run_dir=, or"):
        run_directory.new_folder("diloco")


def test_a_folder_of_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="does not contain a run"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}"]))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_where_and_how_it_is_shown_may_differ_between_sessions(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a"])).close()
    other = ["log=wandb", "threads=1", "log_every=1", "exchange.initial_peers=[x]"]
    run = run_directory.open_run(load.load([f"run_dir={tmp_path}/a", *other]))
    assert run.resume_step is None and not run.finished
    assert OmegaConf.load(tmp_path / "a/config.yaml").exchange.initial_peers == ["x"], "workers read this session's"


def test_a_run_from_before_micro_batches_continues_with_any(tmp_path):
    where = f"run_dir={tmp_path}/a"
    run_directory.open_run(load.load([where])).close()
    file = tmp_path / "a/config.yaml"
    file.write_text(file.read_text().replace("  micro_batch: null\n", ""))
    for text in ("null", "2", "5"):
        run_directory.open_run(load.load([where, f"inner.micro_batch={text}"])).close()


def test_a_run_keeps_the_protocol_that_decides_its_rounds(tmp_path):
    run = ["exchange=swarm_gather", "workers=4", f"run_dir={tmp_path}/a"]
    run_directory.open_run(load.load(run)).close()
    with pytest.raises(UserError, match=r"exchange\.trust is members there and nobody here"):
        run_directory.open_run(load.load([*run, "exchange.trust=nobody"]))
    file = tmp_path / "a/config.yaml"  # as it was before the option
    file.write_text("".join(line for line in file.open() if "  trust: members" not in line))
    run_directory.open_run(load.load(run)).close()


def test_rows_after_the_checkpoint_and_a_torn_last_line_are_dropped(tmp_path):
    rows = [{"event": "step", "step": 1}, {"event": "done", "step": 2}, {"event": "step", "step": 2}]
    lines = [json.dumps(row) for row in [*rows, {"event": "step", "step": 3}]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"ste')
    assert run_directory.rows_until(tmp_path, 2) == [rows[0], rows[2]]
    assert run_directory.rows_until(tmp_path, None) == []


def test_the_saved_configuration_is_the_resolved_one(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "compress.large.k=64"]))
    assert "${" not in (tmp_path / "a/config.yaml").read_text()
    assert OmegaConf.load(tmp_path / "a/config.yaml").compress.large.k == 64


def test_a_run_from_before_there_was_a_clip_says_how_to_go_on(tmp_path):
    older = OmegaConf.to_container(load.load(["workers=2"]), resolve=True)
    older.pop("clip")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(older))
    with pytest.raises(UserError, match="clip is none there and auto here: set clip=none"):
        resumed_settings.refuse_other_settings(tmp_path, resumed_settings.comparable(load.load(["workers=2"])))
    resumed_settings.refuse_other_settings(tmp_path, resumed_settings.comparable(load.load(["workers=2", "clip=none"])))


@pytest.mark.parametrize("feedback", ["local", "ef"])
def test_a_run_from_before_beta_could_grow_goes_on(tmp_path, feedback):
    settings = load.load(["workers=2", f"feedback={feedback}"])
    older = OmegaConf.to_container(settings, resolve=True)
    older["feedback"].pop("growth", None)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(older))
    resumed_settings.refuse_other_settings(tmp_path, resumed_settings.comparable(settings))


def test_changed_files_of_a_published_corpus_are_to_be_restored(tmp_path):
    def shared(sha256):
        return load.load([f"run_dir={tmp_path}/a", "data=shared", f"data.sha256={sha256}"])

    run_directory.open_run(shared("ab" * 32)).close()
    with pytest.raises(UserError, match=r"set data.sha256=(ab)+ \(with corpus.share: restore the files .*\) or"):
        run_directory.open_run(shared("cd" * 32))


def test_a_run_of_other_workers_starts_from_the_weights(tmp_path):
    run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "workers=2"])).close()
    with pytest.raises(UserError, match=r"workers is 2 there and 3 here: set workers=2, or init_from=.*/a to"):
        run_directory.open_run(load.load([f"run_dir={tmp_path}/a", "workers=3"]))
