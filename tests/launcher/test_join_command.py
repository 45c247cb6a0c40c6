"""A machine joins a run with `outerloop join ADDRESS`, leaves with Ctrl-C, and joins again with the same line."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outerloop.config import load
from outerloop.launcher.shared_data import prepare
from outerloop.launcher.supervisor import SAVE_S
from outerloop.swarm.corpus.folder import CorpusFolder
from tests.support.swarm.loopback import eventually
from tests.support.train_processes import invitation, outerloop, rounds_with_two, rows, start

RUN = ["recipe=sparseloco", "workers=1", "exchange.peers=1", "exchange.run=summer", "rounds=100000", "eval.every=0"]
RUN += ["schedule.sync_every=30"]  # rounds long enough for a newcomer on a busy machine to catch up


def joining(address: str, run_dir: Path, *options: str) -> subprocess.Popen[str]:
    own = [f"run_dir={run_dir}", "eval.sequences=16", "eval.every=0", "threads=1", *options]
    return outerloop("join", address, "--yes", "--host", "127.0.0.1", *own)


def left(process: subprocess.Popen[str]) -> str:
    """Interrupt a machine, and return what it printed. It may take SAVE_S seconds to finish its round and to save."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=SAVE_S + 60)[0]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a run with one machine, which ends after the test."""
    first = start(tmp_path / "a", *RUN, "threads=1")
    try:
        yield invitation(first).partition("[")[2].rstrip("]")
    finally:
        first.kill()  # at once: alone, it would wait for the other machine to return
        first.communicate()


def join_and_leave(address: str, run_dir: Path, *, after: int) -> str:
    """Join, leave after a round that is later than `after` and includes both, and return what the machine printed."""
    process = joining(address, run_dir)
    try:
        assert eventually(
            lambda: process.poll() is not None or max(rounds_with_two(run_dir), default=0) > after, limit_s=260
        )
        said = left(process)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, said
    return said


@pytest.mark.timeout(600)
def test_a_machine_joins_and_leaves_with_one_line(address: str, tmp_path: Path) -> None:
    said = join_and_leave(address, tmp_path / "b", after=0)
    assert "Traceback" not in (tmp_path / "b/workers/0/log.txt").read_text()
    assert "summer: 1 peer" in said and "model        nano" in said, said
    assert "of 4 sequences per forward and backward pass (inner.micro_batch=auto)" in said, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_comes_back_with_the_same_line(address: str, tmp_path: Path) -> None:
    join_and_leave(address, tmp_path / "b", after=0)
    said = join_and_leave(address, tmp_path / "b", after=max(rounds_with_two(tmp_path / "b")))
    assert "resuming after inner step" in said, said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_downloads_the_text_of_the_run_and_serves_it_to_others(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(f"<{i:08d}>" for i in range(1_000_000)))
    files, own = str(tmp_path / "book.txt"), f"corpus.folder={tmp_path}/corpus-a"
    processes = [
        start(tmp_path / "a", *RUN, "data=text", f"data.files=[{files}]", "corpus.share=book", own, "threads=1")
    ]
    try:
        address = invitation(processes[0]).partition("[")[2].rstrip("]")
        processes.append(joining(address, tmp_path / "b", f"corpus.folder={tmp_path}/corpus-b"))
        joined = processes[1]
        assert eventually(lambda: joined.poll() is not None or len(rounds_with_two(tmp_path / "b")) > 0, limit_s=240)
        assert joined.poll() is None
        processes[0].kill()  # from now on, only the machine that joined has the corpus
        [told] = [row for row in rows(tmp_path / "b") if row["event"] == "address"]
        (sha256,) = (path.name for path in (tmp_path / "corpus-b").iterdir())
        of_run = ["data=shared", f"data.sha256='{sha256}'", f"corpus.folder={tmp_path}/corpus-c", "exchange.run=summer"]
        third = load.load(["recipe=sparseloco", "workers=1", *of_run])
        third.exchange.initial_peers = told["addresses"][:1]
        prepare(third, lambda line: None)
        folder = CorpusFolder.open(tmp_path / "corpus-c" / sha256)
        assert (tmp_path / "book.txt").read_bytes() in b"".join(
            bytes(folder.get(sha) or b"") for sha in folder.index.shards
        )
    finally:
        for process in processes:
            process.kill()
        said = [process.communicate()[0] for process in processes]
    assert "corpus book: 10.0 of 10.0 MB received" in said[1], said[1]
    assert "data=shared (book: 10.0 MB of tokens, of which 10.0 MB are to be downloaded to" in said[1], said[1]
