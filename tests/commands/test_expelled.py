"""`outerloop expelled`: one line a peer, and the operator's way to lift it; `outerloop status` shows them, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rich.console import Console

from outerloop.commands import status
from outerloop.config.run_directory import identity_file, lock_directory, unlock
from outerloop.swarm.accountability.evidence import Evidence
from outerloop.swarm.accountability.expulsion import Expulsion, ExpulsionRegister, read_register, write_register
from outerloop.swarm.accountability.signed_statement import Signed
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.storage import Folder
from tests.support.run_command import run_command

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
NAME = f"001-{ID}"
PAIR = [Signed(accept(7, bytes(32), 0, digest * 32), bytes(64)) for digest in (b"\1", b"\2")]
EVIDENCE = Evidence.of("r/1", NAME, *PAIR)


def folder(run_dir: Path, worker: int) -> Folder:
    return Folder(identity_file(run_dir, worker).with_suffix(".rounds"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of two workers that have expelled one peer; the place is that of swarm_gather.py."""
    one = Expulsion(NAME, EVIDENCE.session, EVIDENCE.number, EVIDENCE.why, 1_700_000_000.0, EVIDENCE)
    for worker in range(2):
        asyncio.run(write_register(folder(tmp_path, worker), ExpulsionRegister().with_expulsion(one)))
    return tmp_path


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code, out, err = run_command(monkeypatch, capsys, "expelled", *arguments)
    return code, out + err


def test_one_line_a_peer(run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said([str(run_dir)], monkeypatch, capsys)
    assert code == 0 and text.count("\n") == 1
    assert text.startswith(f"{NAME} accepted two proposals for commit 7, view 0; expelled 2023-11-1")


@pytest.mark.parametrize("peer", [ID, NAME])
def test_lifted_on_every_worker(
    peer: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said([str(run_dir), "--lift", peer], monkeypatch, capsys) == (0, "no peer is expelled\n")
    for worker in range(2):
        register = read_register(folder(run_dir, worker))
        assert not register.expelled and register.forgives(NAME, "r/1", 7)
    code, text = said([str(run_dir), "--lift", peer], monkeypatch, capsys)
    assert code == 2 and "has expelled" in text


def test_not_while_the_run_is_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it touch what the worker is writing just now."""
    lock = lock_directory(run_dir)
    begun = identity_file(run_dir, 0).with_suffix(".rounds") / ".agreement"
    begun.write_bytes(b"half")
    try:
        code, text = said([str(run_dir), "--lift", ID], monkeypatch, capsys)
        assert code == 2 and "stop it, lift the expulsion, and restart the run" in text and text.count("\n") == 1
        assert said([str(run_dir)], monkeypatch, capsys)[0] == 0
    finally:
        unlock(lock)
    assert ID in read_register(folder(run_dir, 0)).expelled
    assert begun.read_bytes() == b"half"


def test_a_folder_of_no_swarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said([str(tmp_path)], monkeypatch, capsys)
    assert code == 2 and "no swarm workers found in" in text and not list(tmp_path.iterdir())


def test_an_impossible_name_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(["x" * 300], monkeypatch, capsys)
    assert code == 2 and "cannot be read (File name too long): correct the name" in text and text.count("\n") == 1


def test_status_has_one_line_for_each() -> None:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(status.page("r", [], [EVIDENCE]))
    assert (
        capture.get().splitlines()[-1].strip() == "expelled: 001-…vnc6iDEp accepted two proposals for commit 7, view 0"
    )
