"""metrics.jsonl on a disk that is full for a while: no row is lost, and only a sync raises."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outerloop.launcher.supervisor import Supervisor
from outerloop.sinks.jsonl import Jsonl
from outerloop.swarm import resource_exhaustion
from outerloop.types import UserError

ROWS = [{"step": step, "text": "x" * 50} for step in range(300)]
"""More bytes than a buffer of Python's files holds."""


class Disk(io.FileIO):
    """A file on a disk with some free bytes, and the error of a write once there are none."""

    free, code = 0, errno.ENOSPC

    def write(self, data: Any) -> int:
        if not self.free:
            raise OSError(self.code, os.strerror(self.code))
        written = super().write(data[: self.free])
        self.free -= written
        return written


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jsonl:
    monkeypatch.setattr(resource_exhaustion.EXHAUSTION, "_told_s", {})
    return Jsonl(tmp_path / "metrics.jsonl", earlier=[])


@pytest.fixture
def disk(rows: Jsonl) -> Disk:
    rows.file.close()
    rows.file = Disk(rows.path, "a")
    return rows.file


def content(rows: Jsonl) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rows.path.read_text().splitlines()]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("free", [0, 10, 3000])
def test_rows_wait_for_space_in_order_and_it_is_said_once(
    code: int, free: int, disk: Disk, rows: Jsonl, caplog: pytest.LogCaptureFixture
) -> None:
    disk.free, disk.code = free, code
    with caplog.at_level(logging.WARNING):
        for row in ROWS[:-1]:
            rows.write(row)
    assert len(caplog.messages) == 1 and "metrics.jsonl" in caplog.text and "free some space" in caplog.text
    disk.free = 1 << 30
    rows.write(ROWS[-1])
    assert content(rows) == ROWS


def test_rows_in_memory_are_written_at_the_end(disk: Disk, rows: Jsonl) -> None:
    rows.write(ROWS[0])
    disk.free = 1 << 30
    rows.close()
    assert content(rows) == ROWS[:1]


def test_a_sync_to_a_full_disk_is_one_line_and_close_raises_nothing_more(disk: Disk, rows: Jsonl) -> None:
    rows.write(ROWS[0])
    with pytest.raises(
        UserError, match=r"metrics\.jsonl cannot be written \(No space left on device\): free some space"
    ):
        rows.sync()
    rows.close()


def test_another_error_is_raised_once(disk: Disk, rows: Jsonl) -> None:
    disk.code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        rows.write(ROWS[0])
    rows.close()


def test_a_run_with_rows_in_memory_is_not_finished(disk: Disk, rows: Jsonl) -> None:
    """What the workers sent last is needed for the summary."""
    session = object.__new__(Supervisor)
    session.run, session.rows = SimpleNamespace(path=rows.path.parent, resume_step=None), rows  # type: ignore[assignment]
    session.process_events = lambda pool: rows.write(ROWS[0])  # type: ignore[method-assign]
    pool = SimpleNamespace(start=lambda: None, stop=lambda: None, join=lambda: None)
    with pytest.raises(UserError, match="free some space"):
        session.supervise(pool)  # type: ignore[arg-type]
