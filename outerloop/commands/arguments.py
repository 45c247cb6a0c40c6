"""Options of the commands that hydra does not read: argparse, whose mistakes are one line as everywhere here."""

from __future__ import annotations

import argparse
from typing import NoReturn

from outerloop.types import UserError


class Parser(argparse.ArgumentParser):
    """One command's options.

    Args:
        command: the word after `outerloop`.
        example: what to type for a plain use, shown with every mistake.
        description, epilog: of its --help, as they are.
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
        """Raises UserError."""
        raise UserError(f"{self.command}: {message}: type {self.example}, or {self.prog} --help")
