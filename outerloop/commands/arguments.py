"""Parse the options of commands that do not use hydra. Errors of argparse become one-line UserErrors."""

from __future__ import annotations

import argparse
from typing import NoReturn

from outerloop.types import UserError


class Parser(argparse.ArgumentParser):
    """The option parser of one command.

    Args:
        command: name of the subcommand, as in `outerloop COMMAND`.
        example: a basic invocation, shown in every error message.
        description, epilog: text of --help, printed without reformatting.
    """

    def __init__(self, command: str, *, example: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"outerloop {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.command, self.example = command, example

    def error(self, message: str) -> NoReturn:
        """Raise UserError with the message and the example."""
        raise UserError(f"{self.command}: {message}: run {self.example}, or {self.prog} --help")
