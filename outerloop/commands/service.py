"""--systemd and --docker: print a systemd unit or a docker command that keeps an outerloop command running.

The unit or container restarts the command after crashes and reboots. Printing it starts nothing.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from outerloop.types import UserError

FLAGS = ("--systemd", "--docker")
STOP_S = 180
"""Seconds that a stopped command has to save its state: more than supervisor.ANSWER_S + SAVE_S."""
RESTART_S = 30
"""Seconds until a command that failed is started again, for example because the network was not up yet."""
CORPUS_IN_VOLUME = "/work/runs/corpus"
"""Folder for the training data that a container downloads from peers. It is in the container's volume, so that a
restarted container does not download the data again."""
MAX_RUN = 40
"""Maximum number of characters of a run's id in the name of a unit."""
PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
"""Form of the arguments that need neither quotes nor escapes in a systemd unit."""

UNIT = """\
# {self} | sudo tee /etc/systemd/system/{name}.service
# sudo systemctl daemon-reload && sudo systemctl enable --now {name}
# follow it with: journalctl -fu {name}
[Unit]
Description={title}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
Environment=PYTHONUNBUFFERED=1
ExecStart={command}
Restart=on-failure
RestartSec={restart_s}
SuccessExitStatus=130 143
KillMode=mixed
TimeoutStopSec={stop_s}

[Install]
WantedBy=multi-user.target
"""
DOCKER = """\
# first, in a clone of the repository: docker build -t outerloop .
docker run --detach --name {name} --restart unless-stopped --stop-timeout {stop_s} --network host \\
    --volume outerloop-runs:/work/runs outerloop {command}
"""


def add_flags(parser: argparse.ArgumentParser, *, asks: str = "") -> None:
    """Add --systemd and --docker, which exclude each other. `asks`: what has to answer; "" if no peer is asked."""
    group, end = parser.add_mutually_exclusive_group(), f"and exit; {asks} must answer" if asks else "and exit"
    group.add_argument(
        "--systemd", action="store_true", help=f"print a systemd unit that keeps this command running, {end}"
    )
    group.add_argument("--docker", action="store_true", help=f"print a docker command that does the same, {end}")


def is_requested(options: argparse.Namespace, arguments: Sequence[str]) -> bool:
    """Return whether the user asked for a unit or a docker command.

    Raises UserError if the arguments name a folder of results that the container would lose.
    """
    if options.docker and any(argument.startswith(("run_dir=", "--run-dir")) for argument in arguments):
        raise UserError("--docker keeps all results in the volume outerloop-runs: leave out the run folder")
    return bool(options.systemd or options.docker)


def service_name(command: str, run: object) -> str:
    """Return the name of the unit or the container of a command that belongs to a run.

    `run`: id of the run, which other machines chose. Characters that are not allowed in file names become "-".
    """
    return f"outerloop-{command}-" + re.sub(r"[^A-Za-z0-9_.-]", "-", str(run)[:MAX_RUN])


def service_text(options: argparse.Namespace, arguments: Sequence[str], *, name: str, user: str) -> str:
    """Return the systemd unit, or the docker command, that runs `outerloop` with these arguments.

    The arguments are those of this command, without FLAGS. `name`: name of the unit or the container. `user`: the
    account that runs the unit.
    """
    arguments = [argument for argument in arguments if argument not in FLAGS]
    if options.docker:
        if arguments[0] == "join" and not any(argument.startswith("corpus.folder=") for argument in arguments):
            arguments.append(f"corpus.folder={CORPUS_IN_VOLUME}")
        return DOCKER.format(name=name, stop_s=STOP_S, command=shlex.join(arguments))
    command = [sys.executable, "-m", "outerloop", *arguments]
    return UNIT.format(
        self=shlex.join([*command, "--systemd"]),
        name=name,
        title=f"outerloop {arguments[0]} ({name})",
        user=user,
        folder=str(Path.cwd()).replace("%", "%%"),
        command=" ".join(map(quoted, command)),
        restart_s=RESTART_S,
        stop_s=STOP_S,
    )


def quoted(argument: str) -> str:
    """Return an argument of ExecStart as systemd reads it: quoted if needed, with %, $ and quotes escaped."""
    if PLAIN.fullmatch(argument):
        return argument
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'.replace("%", "%%").replace("$", "$$")
