"""The folder of a corpus holds complete shards alone, and refuses a disk without space for the rest."""

from __future__ import annotations

import fcntl
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from outerloop.swarm.corpus.folder import DEFAULT, FREE_BYTES, INDEX, LOCK, CorpusFolder, corpus_path
from outerloop.swarm.corpus.index import MAX_INDEX_BYTES, SHARD_BYTES
from outerloop.types import UserError
from tests.support.swarm.corpus_scene import INDEX as CORPUS
from tests.support.swarm.corpus_scene import SHA256, SHARDS, empty, filled


def test_what_was_written_is_served_and_nothing_else(tmp_path: Path) -> None:
    folder = CorpusFolder.open(filled(tmp_path).path)
    assert [bytes(folder.get(sha) or b"") for sha in CORPUS.shards] == SHARDS and not folder.missing()
    (folder.path / bytes(32).hex()).write_bytes(b"another file")
    assert folder.get(bytes(32)) is None


def test_a_shard_of_another_size_is_missing(tmp_path: Path) -> None:
    folder, sha = filled(tmp_path), CORPUS.shards[1]
    folder.file(sha).write_bytes(SHARDS[1][:-1])
    assert folder.missing() == {sha: SHARD_BYTES} and folder.get(sha) is None


def test_files_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    folder = empty(tmp_path)
    (folder.path / ".abc.123.tmp").write_bytes(b"half")
    with folder.writing():
        assert not list(folder.path.glob(".*.tmp"))


def test_a_process_waits_for_the_one_that_writes_and_says_so(tmp_path: Path) -> None:
    """The lock is that of another process: what it is writing stays, and no index is written in the meantime."""
    path, said = tmp_path / SHA256, threading.Event()
    path.mkdir()
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        said.set()

    with (path / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (path / f".{INDEX}.1.tmp").write_bytes(b"begun by the other process")
        waiting = threading.Thread(target=CorpusFolder.create, args=(path, CORPUS, tell))
        waiting.start()
        assert said.wait(60) and lines == [f"waiting for another process that writes to {path}"]
        assert [file.name for file in path.iterdir() if file.name != LOCK] == [f".{INDEX}.1.tmp"]
        fcntl.flock(lock, fcntl.LOCK_UN)
        waiting.join(60)
    assert CorpusFolder.open(path).index == CORPUS


def test_a_damaged_shard_is_written_again(tmp_path: Path) -> None:
    folder, (first, second, _) = filled(tmp_path), CORPUS.shards
    folder.file(first).write_bytes(SHARDS[1])
    lines: list[str] = []
    hashed: list[tuple[int, int]] = []

    def fill() -> None:
        assert folder.missing() == {first: SHARD_BYTES}
        folder.write(first, SHARDS[0])

    folder.complete(fill, lines.append, lambda *amounts: hashed.append(amounts))
    assert lines == [f"{folder.file(first)} was damaged: removed"]
    assert hashed == [(size, 2 * SHARD_BYTES + 100) for size in (SHARD_BYTES, 2 * SHARD_BYTES, 2 * SHARD_BYTES + 100)]
    assert [bytes(folder.get(sha) or b"") for sha in CORPUS.shards] == SHARDS
    folder.file(second).write_bytes(bytes(SHARD_BYTES))
    with pytest.raises(ZeroDivisionError):
        folder.complete(lambda: print(1 / 0))
    assert folder.get(second) is None, "not served, although nothing replaced it"


def test_a_complete_folder_is_used_without_writing_to_it(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder.path / LOCK).unlink()
    (folder.path / LOCK).mkdir()  # as in a read-only folder, the lock file cannot be opened
    CorpusFolder.create(folder.path, CORPUS).complete(lambda: pytest.fail("nothing is missing"))
    folder.file(CORPUS.shards[0]).unlink()
    with pytest.raises(UserError, match=r"cannot be written .*: set corpus\.folder"):
        folder.complete(lambda: None)


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/.* cannot be written \(Not a directory\): set corpus\.folder to"):
        CorpusFolder.create(tmp_path / "file" / SHA256, CORPUS)


@pytest.mark.parametrize("sha256", ["", "..", "AB" * 32, "ab" * 31, "ab" * 32 + "\n", "../" + "a" * 61])
def test_the_name_of_a_corpus_is_no_path(sha256: str) -> None:
    with pytest.raises(UserError, match=r"data\.sha256="):
        corpus_path(None, sha256)


def test_folders_are_in_the_users_cache_unless_set(tmp_path: Path) -> None:
    assert corpus_path(None, SHA256) == Path(DEFAULT).expanduser() / SHA256
    assert corpus_path(str(tmp_path), SHA256) == tmp_path / SHA256


@pytest.mark.parametrize("content", [None, b"", CORPUS.to_bytes() + b"x", bytes(MAX_INDEX_BYTES + 1)])
def test_a_missing_or_damaged_index_is_one_line(content: bytes | None, tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder.path / INDEX).unlink()
    if content is not None:
        (folder.path / INDEX).write_bytes(content)
    with pytest.raises(UserError, match=r"run outerloop join|remove the file"):
        CorpusFolder.open(folder.path)


def test_a_disk_without_space_is_refused_unless_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = empty(tmp_path)
    for free, refused in ((CORPUS.size_bytes + FREE_BYTES, False), (CORPUS.size_bytes + FREE_BYTES - 1, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        if refused:
            with pytest.raises(UserError, match=r"free some space, or set corpus\.folder"):
                folder.refuse_full_disk()
        else:
            folder.refuse_full_disk()
    filled(tmp_path).refuse_full_disk()
