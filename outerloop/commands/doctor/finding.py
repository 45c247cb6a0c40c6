"""Result of a check as one line: ✓ passed, ✗ failed or ? undecided, then what was found and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.types import printable

MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Args:
        what: name of the check.
        good: True or False; None if it is unknown or depends on what the user wants.
        said: what was found.
        todo: what the user should do, empty if nothing.
    """

    name: str
    passed: bool | None
    result: str
    advice: str = ""

    def line(self) -> str:
        """Format the finding as one line. Escapes non-printable characters, as texts may come from other peers."""
        text = f"{MARKS[self.passed]} {self.name:<9} {self.result}" + (f": {self.advice}" if self.advice else "")
        return printable(text)
