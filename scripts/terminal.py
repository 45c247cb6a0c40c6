"""Run a command on a pseudo-terminal, and return what a person would see there."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
"""Control sequences for colors and the cursor, and carriage returns."""


@dataclass(frozen=True)
class Shown:
    """Output of a command on a terminal.

    text        the output, without control sequences
    exit_code   exit code of the command; negative: the signal that ended it
    first_s     seconds from the start of the command until its first output; None: it printed nothing
    seconds     seconds from the start of the command until its end
    cpu_s       CPU time of the command and the processes that it started and waited for
    """

    text: str
    exit_code: int
    first_s: float | None
    seconds: float
    cpu_s: float

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def run_on_terminal(command: Sequence[str], folder: Path, *, limit_s: float) -> Shown:
    """Run a command in a folder and return its output. After `limit_s` seconds, it is killed with its process group."""
    leader, follower = pty.openpty()
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    text, first_s = b"", None
    while piece := read(leader, began_s + limit_s):
        first_s = time.monotonic() - began_s if first_s is None else first_s
        text += piece
    os.close(leader)
    if time.monotonic() >= began_s + limit_s:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Shown(
        text=CONTROL.sub("", text.decode(errors="replace")),
        exit_code=process.returncode,
        first_s=first_s,
        seconds=time.monotonic() - began_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
    )


def read(leader: int, until_s: float) -> bytes:
    """Return the next output of a pseudo-terminal, or b"" if its processes have closed it, or after `until_s`."""
    ready, _, _ = select.select([leader], [], [], max(0.0, until_s - time.monotonic()))
    try:
        return os.read(leader, 1 << 16) if ready else b""
    except OSError:  # Linux reports the end of a pseudo-terminal as an I/O error
        return b""
