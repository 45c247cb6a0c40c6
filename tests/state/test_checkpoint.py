"""Files that are whole or not there."""

import asyncio
import errno
import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch
import xxhash
from omegaconf import OmegaConf

from outerloop.config import load, run_directory
from outerloop.state import checkpoint
from outerloop.state.damage import PIECE_BYTES
from outerloop.swarm.storage import Folder
from outerloop.types import UserError


def put(run_dir, step, workers=2, sealed=True):
    for worker in range(workers):
        checkpoint.save(run_dir, step, worker, {"step": step, "w": torch.full((50,), float(step + worker))})
    if sealed:
        checkpoint.seal(run_dir, step)


def test_comes_back(tmp_path):
    put(tmp_path, 3)
    assert checkpoint.newest_valid(tmp_path, 2) == (3, [])
    assert checkpoint.load(tmp_path, 3, 1)["w"][0] == 4.0


def test_a_generation_counts_only_when_sealed(tmp_path):
    put(tmp_path, 3)
    put(tmp_path, 6, sealed=False)
    assert checkpoint.newest_valid(tmp_path, 2) == (3, [])


def test_a_generation_with_a_worker_missing_is_damaged(tmp_path):
    put(tmp_path, 3)
    put(tmp_path, 6, workers=1)
    assert checkpoint.newest_valid(tmp_path, 2)[0] == 3


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_file_cut_short_falls_back_and_says_so(tmp_path, cut):
    put(tmp_path, 3)
    put(tmp_path, 6)
    path = checkpoint.generation(tmp_path, 6) / "worker-1.pt"
    path.write_bytes(path.read_bytes()[:cut])
    step, said = checkpoint.newest_valid(tmp_path, 2)
    assert step == 3 and len(said) == 1 and "step-00000006/worker-1.pt" in said[0]


@pytest.mark.parametrize("harm", ["cut", "lost", "flipped"])
def test_a_damaged_shard_beside_a_whole_file_falls_back_and_says_so(tmp_path, harm):
    for step in (3, 6):
        shards = checkpoint.generation(tmp_path, step) / "island-0"
        shards.mkdir(parents=True)
        for rank in range(2):
            (shards / f"{rank}.distcp").write_bytes(bytes([rank]) * (PIECE_BYTES + 1))
        checkpoint.save(tmp_path, step, 0, {"step": step}, shards=shards)
        checkpoint.seal(tmp_path, step)
    assert checkpoint.newest_valid(tmp_path, 1) == (6, [])
    shard = shards / "1.distcp"
    whole = shard.read_bytes()
    shard.write_bytes({"cut": whole[:-1], "lost": b"", "flipped": b"\0" + whole[1:]}[harm])
    if harm == "lost":
        shard.unlink()
    step, said = checkpoint.newest_valid(tmp_path, 1)
    assert step == 3 and said == [f"{shard} is damaged"]


def test_one_flipped_bit_is_seen(tmp_path):
    put(tmp_path, 3)
    path = checkpoint.generation(tmp_path, 3) / "worker-0.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert checkpoint.newest_valid(tmp_path, 2)[0] is None


NO_VOUCHING = ["[]", "3", "null", '"x"', "{}", "[" * 100_000]
NO_VOUCHING += ['{"shards": []}', '{"shards": {"a": 3}}', '{"shards": {"\\u0000": {}}}']


@pytest.mark.parametrize("content", NO_VOUCHING, ids=lambda content: content[:30])
def test_json_that_vouches_for_nothing_falls_back_and_says_so(tmp_path, content):
    for step in (3, 6):
        put(tmp_path, step)
    path = checkpoint.generation(tmp_path, 6) / "worker-0.json"
    path.write_text(content)
    step, said = checkpoint.newest_valid(tmp_path, 2)
    assert step == 3 and len(said) == 1 and "step-00000006/" in said[0] and said[0].endswith("is damaged")
    assert list(checkpoint.resumable_steps(tmp_path, 0, newest=6)) == [3]


UNREADABLE = {"checkpoints": "checkpoints", "step-00000006": "step-00000006"}
UNREADABLE |= dict.fromkeys(["worker-0.json", "worker-1.pt"], "step-00000006")
"""Name of a file or folder that cannot be read -> the folder that the message names."""


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE])
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_read_error_that_may_pass_is_no_damage(tmp_path, monkeypatch, name, number):
    for step in (3, 6):
        put(tmp_path, step)
    settings = load.load(["workers=2", f"run_dir={tmp_path}"])
    OmegaConf.save(settings, tmp_path / "config.yaml")
    with monkeypatch.context() as broken:
        for function in ("open", "iterdir"):
            broken.setattr(Path, function, failing(getattr(Path, function), name, number))
        with pytest.raises(UserError, match=rf"{UNREADABLE[name]} cannot be read \(.*\): run the same command again"):
            run_directory.open_run(settings)
    with closing(run_directory.open_run(settings)) as run:
        assert (run.resume_step, run.notes) == (6, [])


def failing(real, name, number):
    """A function that fails for the files and folders of this name."""

    def fails(path, *args, **kwargs):
        if path.name == name:
            raise OSError(number, errno.errorcode[number], str(path))
        return real(path, *args, **kwargs)

    return fails


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path):
    for step in (3, 6):
        put(tmp_path, step)
        (checkpoint.generation(tmp_path, step) / "worker-0.pt").write_bytes(b"")
    settings = load.load(["workers=2", f"run_dir={tmp_path}"])
    OmegaConf.save(settings, tmp_path / "config.yaml")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match=r"step-00000006/worker-0.pt is damaged, .* complete checkpoint: restore"):
        run_directory.open_run(load.load(["workers=2", f"run_dir={tmp_path}", "rounds=500"]))
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}.items()
    shutil.move(tmp_path / "checkpoints", tmp_path / "elsewhere")
    with closing(run_directory.open_run(settings)) as run:
        assert run.resume_step is None


def test_a_save_that_dies_before_its_seal_does_not_count(tmp_path, monkeypatch):
    put(tmp_path, 3)
    real = checkpoint.write_atomically

    def dies_at_the_seal(path, data):
        if path.name == "sealed":
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_atomically", dies_at_the_seal)
    with pytest.raises(KeyboardInterrupt):
        put(tmp_path, 6)
    assert checkpoint.newest_valid(tmp_path, 2) == (3, [])


def test_a_write_that_dies_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    checkpoint.write_atomically(path, b"old")
    monkeypatch.setattr(checkpoint.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError):
        checkpoint.write_atomically(path, b"new, and longer")
    assert path.read_bytes() == b"old"


def test_sealing_keeps_the_last_two(tmp_path):
    for step in (3, 6, 9):
        put(tmp_path, step)
    put(tmp_path, 12, sealed=False)
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000009",
        "step-00000012",
    ]


def test_nothing_in_a_file_is_executed(tmp_path):
    """A pickle with code in it is refused by the loader even when its seal is right."""

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    put(tmp_path, 3, workers=1)
    path = checkpoint.generation(tmp_path, 3) / "worker-0.pt"
    torch.save({"w": Evil()}, path)
    data = path.read_bytes()
    seal = {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    path.with_suffix(".json").write_text(json.dumps(seal))
    assert checkpoint.newest_valid(tmp_path, 1)[0] == 3
    with pytest.raises(Exception, match=r"[Ww]eights"):
        checkpoint.load(tmp_path, 3, 0)


def test_an_old_generation_is_removed_before_it_is_written_again(tmp_path):
    """Damaged or half done generations of an earlier session must neither count later nor push out good ones."""
    for step in (3, 6):
        put(tmp_path, step)
    put(tmp_path, 9, sealed=False)
    checkpoint.discard_after(tmp_path, 3)
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    checkpoint.discard_after(tmp_path, None)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_folders_of_other_names_are_left_alone(tmp_path):
    put(tmp_path, 3)
    others = [
        tmp_path / "checkpoints" / name for name in ("step-foo", "step-", "step-1", "step-000000003", "step--0000001")
    ]
    for folder in others:
        folder.mkdir()
        (folder / "sealed").touch()
    assert checkpoint.newest_valid(tmp_path, 2) == (3, [])
    for step in (6, 9):
        put(tmp_path, step)
    checkpoint.discard_after(tmp_path, None)
    assert sorted((tmp_path / "checkpoints").iterdir()) == sorted(others)


def test_a_disk_that_is_full_is_left_as_it_was(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(OSError):
        checkpoint.write_atomically(tmp_path / "x", b"something")
    assert not list(tmp_path.iterdir())


def test_files_of_killed_writers_are_removed_when_the_run_starts_again(tmp_path):
    left = [tmp_path / ".metrics.jsonl.17.tmp", tmp_path / "checkpoints/step-00000003/.worker-0.pt.17.tmp"]
    kept = [
        tmp_path / "config.yaml",
        tmp_path / "notes.17.tmp",
        tmp_path / ".mine.tmp",
        tmp_path / "workers/0/identity.key",
    ]
    for file in left + kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    settings = load.load(["model=nano", f"run_dir={tmp_path}"])
    OmegaConf.save(settings, tmp_path / "config.yaml")
    run_directory.open_run(settings).close()
    assert not any(file.exists() for file in left) and all(file.exists() for file in kept)


def test_payload_files_of_a_killed_peer_are_removed(tmp_path):
    folder = Folder(tmp_path / "rounds")
    asyncio.run(folder.write("whole", b"x"))
    (tmp_path / "rounds/.begun").write_bytes(b"half")
    assert Folder(tmp_path / "rounds").names() == ["whole"]
    assert len(list((tmp_path / "rounds").iterdir())) == 2, "another process may be writing it"
    folder.cleared()
    assert [file.name for file in (tmp_path / "rounds").iterdir()] == ["whole"]
