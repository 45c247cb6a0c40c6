"""Format the result of a check as one line: ✓ passed, ✗ failed or ? undecided, then the result and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.types import printable

MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Args:
        name: name of the check.
        passed: True or False; None if the result is unknown or depends on what the user wants.
        result: what the check found.
        advice: what the user should do; empty if nothing needs to be done.
    """

    name: str
    passed: bool | None
    result: str
    advice: str = ""

    def line(self) -> str:
        """Format the finding as one line. Escape non-printable characters, because parts may come from other peers."""
        text = f"{MARKS[self.passed]} {self.name:<9} {self.result}" + (f": {self.advice}" if self.advice else "")
        return printable(text)
