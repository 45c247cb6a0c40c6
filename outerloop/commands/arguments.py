"""Parse and check the options of commands that do not use hydra. All errors are one-line UserErrors."""

from __future__ import annotations

import argparse
import ipaddress
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


def check_listen_address(host: str, port: int) -> None:
    """Check the values of --host and --port. Raises UserError if one is invalid."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is not a port: pass 1 to 65535, or 0 for any free port")
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise UserError(f"--host {host} is not an IP address: pass --host 0.0.0.0 for all interfaces") from error


def add_public_name(parser: Parser) -> None:
    """Add the option --public-name."""
    what = "name that others see next to the peer id, until a start without it; the same as exchange.public_name"
    parser.add_argument("--public-name", default="", metavar="TEXT", help=what)


def public_name_overrides(text: str) -> list[str]:
    """Return the override that sets the public name; none if it is empty. Raises UserError if the name is invalid."""
    if not text:
        return []
    from outerloop.config.option_mapping import to_overrides
    from outerloop.swarm.access.public_names import normalized  # imports hivemind, which other commands do not need

    return to_overrides({"exchange.public_name": normalized(text)})
