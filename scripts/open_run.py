"""Run `outerloop` commands of an installed wheel on hosts of their own (scripts/wan.sh), each with its own home folder.

A command gets the environment of a login shell and nothing of this repository's environment.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from namespaces import Network

WAIT_S = 600.0
LOOK_S = 0.05
HOST, NEWCOMER = 0, 1


def command(
    hosts: Network, host: int, home: Path, python: str, *arguments: str, inside: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs `outerloop` on a host.

    `python`: interpreter of an environment in which the wheel is installed. `inside`: command that runs it there.
    """
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    clean = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
    return hosts.inside(host, [*inside, *clean, python, "-P", "-m", "outerloop", *arguments])


def start(hosts: Network, host: int, home: Path, python: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an `outerloop` command on a host. Its output goes to the file `output` in its home folder."""
    home.mkdir(exist_ok=True)
    with (home / "output").open("w") as output:
        return subprocess.Popen(
            command(hosts, host, home, python, *arguments),
            cwd=home,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def wait_for(found: Callable[[], Any], process: subprocess.Popen[str], output: Path) -> Any:
    """Return the first true value of `found`. Raises SystemExit if the process ends, or after WAIT_S seconds."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s and process.poll() is None:
        if value := found():
            return value
        time.sleep(LOOK_S)
    raise SystemExit(f"the measurement ended early; the last output was:\n{output.read_text()[-3000:]}")


def address_in(output: Path) -> str | None:
    """Return the address of a peer in the output of a command, or None if it has not printed one yet."""
    found = re.search(r"/ip4/10\.[^\s\]]+/p2p/\w+", output.read_text())
    return found[0] if found else None


def has(run_dir: Path, event: str, **values: object) -> bool:
    """Return whether the run has a metrics row with this event and these values."""
    file = run_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    wanted = {"event": event, **values}
    return any(json.loads(line).items() >= wanted.items() for line in lines if line.endswith("\n"))
