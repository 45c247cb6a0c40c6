"""`outerloop`: the command line. The first argument selects a command, which receives the other arguments.

Exit codes: 0 success, 2 user error (one line on stderr), 1 any other failure (in doctor: a check failed; or standard
output cannot be written), 130 stopped by Ctrl-C, 141 the program that reads standard output ended, 143 stopped by
SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from textwrap import fill

import outerloop.launcher.passive_threads  # must precede every import that loads torch

# isort: split
from outerloop.config.options.search_path import choices_in, config_dir
from outerloop.launcher.collections_at_start import collect_rarely
from outerloop.launcher.interrupts import Terminated
from outerloop.output import OutputLost, finish_streams, prepare_streams, print_error
from outerloop.types import UserError, missing_package, printable

HELP = """\
outerloop {version}: train one model on machines that are far apart.

  outerloop train [option=value ...]       train; the default job has four local workers
  outerloop host [option=value ...]        start an open run for volunteers, or continue it
  outerloop join ADDRESS                   join a running run: its settings come from the peer at this address
  outerloop relay ADDRESS                  offer a second address to join a run, without training
  outerloop train -m recipe=a,b seed=0,1   one run for each combination
  outerloop train --cfg [option=value ...] print the full configuration without training
  outerloop train --config RUN/config.yaml train again with the options of an earlier run
  outerloop options [WORD]                 list the options with their defaults and meaning
  outerloop report DIR ...                 compare runs: table, figures, one HTML page
  outerloop inspect FILE                   show the contents of a payload kept by keep_payload_rounds=2
  outerloop plan --params 1e9 ...          before you rent machines: compare methods, forecast round and training times
  outerloop doctor [--peer ADDR]           check whether this machine can take part, and what to do if not
  outerloop status ADDR                    show the peers of a running swarm, live
  outerloop watch ADDR | DIR               serve a live web page of a swarm, a run or a sweep
  outerloop invite DIR                     print a token with which one machine can join a run with an allow-list
  outerloop expel DIR ID                   remove an invited peer from the run in this run_dir
  outerloop expelled DIR                   list the peers expelled from the run in this run_dir; --lift readmits one

Each command has its own --help.

Most used options (outerloop options lists all)
  workers=4    workers on this machine               rounds=60     outer rounds
  run_dir=DIR  where results go; the same DIR again resumes the run
  steps=       one budget for all recipes            seed=0
  schedule.sync_every=15   inner steps between two rounds

Groups (a recipe, the method of a paper, sets several of them)
{groups}

On a cluster: torchrun --nproc-per-node 4 -m outerloop train exchange=distributed. Each process is one worker. With
island=replicated | sharded | gathered and island.ranks=2, every two processes form one worker.

On several machines: start the first with exchange.host=<its address> exchange.peers=<number of all workers>. It prints
its full address. Start the others with exchange.initial_peers=[that address] and the same settings.

A run writes metrics.jsonl, summary.json, loss.png, hf/ (loads with transformers) and checkpoints/ to its run_dir.
"""


MOST_USED = ("recipe", "model", "data", "exchange", "log")
"""Groups that the help text lists first."""


def help_text() -> str:
    """Return the help text, which lists the choices found in the config folder."""
    choices = choices_in([config_dir()])
    groups = [*MOST_USED, *(group for group in choices if "/" not in group and group not in MOST_USED)]
    lines = [wrapped_choices(group, choices[group]) for group in groups]
    return HELP.format(version=outerloop.__version__, groups="\n".join(lines))


def wrapped_choices(group: str, names: Iterable[str]) -> str:
    """Return 'group=  a | b | ...' in lines of at most 100 characters."""
    return fill(" | ".join(names), 100, initial_indent=f"  {group + '=':13}", subsequent_indent=" " * 15)


MODULES = {
    "train": "outerloop.commands.train",
    "host": "outerloop.commands.host",
    "join": "outerloop.commands.join",
    "relay": "outerloop.commands.relay",
    "options": "outerloop.commands.options",
    "report": "outerloop.commands.report",
    "inspect": "outerloop.commands.inspect",
    "plan": "outerloop.commands.plan",
    "doctor": "outerloop.commands.doctor",
    "status": "outerloop.commands.status",
    "watch": "outerloop.commands.watch",
    "invite": "outerloop.commands.invite",
    "expel": "outerloop.commands.expel",
    "expelled": "outerloop.commands.expelled",
    "worker": "outerloop.launcher.worker_process",
    "measure": "outerloop.launcher.micro_batch",
}
"""Command -> the module whose `main` runs it. A module is imported only when its command is called."""
HIDDEN = ("worker", "measure")
"""Internal commands, left out of the help text and of completion."""
HELP_FLAGS = {"--help", "-h", "help"}
COMPLETION = ("-sc", "--shell-completion")
"""Flags that hydra's completion scripts pass to the program."""


def main() -> int:
    """Run the command named by the first argument and return its exit code. Print a UserError as one line."""
    command, *rest = sys.argv[1:] or ["--help"]
    if command in HELP_FLAGS or (command == "train" and HELP_FLAGS & {*rest}):
        print(help_text())
        return 0
    if command == "--version":
        print(outerloop.__version__)
        return 0
    try:
        if command in COMPLETION:
            from outerloop.commands.completion import complete

            return complete(rest, [name for name in MODULES if name not in HIDDEN])
        if command not in MODULES:
            commands = [name for name in MODULES if name not in HIDDEN]
            hint = next(iter(get_close_matches(command, commands, n=1)), "train")
            listed = ", ".join(commands)
            raise UserError(f"{command!r} is not a command; the commands are {listed}: run outerloop {hint}")
        return import_module(MODULES[command]).main(rest)
    except UserError as mistake:
        print_error(f"outerloop: {printable(str(mistake))}")
        return 2
    except KeyboardInterrupt as interrupt:
        print_error("\nstopped")
        return 143 if isinstance(interrupt, Terminated) else 130
    except ModuleNotFoundError as error:
        if missing_package(error.name) is None:
            raise
        print_error(f"outerloop: {missing_package(error.name)}")
        return 2
    except Exception as error:
        if type(error).__name__ != "WorkerCrashed":
            raise
        print_error("\n".join(["outerloop: a worker failed:", *map(printable, str(error).splitlines())]))
        return 1


def entry() -> None:
    """Run `main` and exit with its code. This is the entry point of the console script.

    If the program that reads standard output ends first, as in `outerloop options | head`, exit with code 141. If
    standard output cannot be written, print why and exit with code 1.
    """
    collect_rarely()
    prepare_streams()
    code: str | int
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code or 0
    except OutputLost:
        code = 0  # finish_streams knows the reason
    sys.exit(finish_streams(code) if isinstance(code, int) else code)
