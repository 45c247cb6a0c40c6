"""`outerloop -sc`: complete commands and options in bash, zsh and fish, using hydra's completion scripts.

    eval "$(outerloop -sc install=bash)"     then: outerloop tr<TAB>, outerloop train recipe=<TAB>

The scripts call `outerloop -sc query=SHELL` and pass the typed line in the environment variable COMP_LINE.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from outerloop.commands.train import run_hydra

LINE = "COMP_LINE"
WITH_TRAIN_OPTIONS = ("train", "host")
"""Commands whose arguments are options of hydra."""


def complete(arguments: Sequence[str], commands: Sequence[str]) -> int:
    """Print the completions of the line in COMP_LINE, or the script to install. Return exit code 0.

    `arguments`: the arguments after -sc. `commands`: names of the subcommands.
    """
    program, *typed = os.environ.get(LINE, "outerloop train ").split(" ")
    if any(argument.startswith("query=") for argument in arguments):
        if len(typed) < 2:
            print(" ".join(command for command in commands if command.startswith("".join(typed))))
            return 0
        if typed[0] not in WITH_TRAIN_OPTIONS:
            return 0
        os.environ[LINE] = " ".join([program, *typed[1:]])  # hydra expects options directly after the program name
    return run_hydra(["--shell-completion", *arguments])
